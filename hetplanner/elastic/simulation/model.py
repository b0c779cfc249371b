"""A model of integers for the event simulation: every value depends on all that it should, so that any slip shows.

Weights are a number; an activation is a hash of input and weights, a gradient of output gradient, input and weights, an
update of weights and the sum of gradients. A contribution that is lost, doubled, of other weights or of another step
changes the weights for good: replicas are compared with a run that nothing disturbed.
"""

from __future__ import annotations

MODULUS = 2**61 - 1


def first_weights(stage: int) -> int:
    """Initial weights of a stage, the same on every host."""
    return hash((1, stage))


def read_batch(step: int, micro_batch: int) -> int:
    """Input of a micro-batch: a pure function of step and number."""
    return hash((2, step, micro_batch))


def run_forward(weights: int, value: int) -> int:
    """Activation; at the last stage it doubles as the loss's gradient."""
    return hash((3, weights, value))


def run_backward(weights: int, value: int, output_gradient: int) -> tuple[int, int]:
    """Gradients of the weights and of the input."""
    return hash((4, weights, value, output_gradient)) % MODULUS, hash((5, weights, value, output_gradient))


def apply_update(weights: int, total: int) -> int:
    """Weights after the optimizer's step with a sum of gradients."""
    return hash((6, weights, total % MODULUS))


class UndisturbedRun:
    """The same training in one process, step by step."""

    def __init__(self, stages: int, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._weights = [[first_weights(stage) for stage in range(stages)]]

    def weights(self, stage: int, step: int) -> int:
        """Of a stage after so many steps."""
        while len(self._weights) <= step:
            self._step()
        return self._weights[step][stage]

    def _step(self) -> None:
        step, weights = len(self._weights) - 1, self._weights[-1]
        totals = [0] * len(weights)
        for micro_batch in range(self._micro_batches):
            values = [read_batch(step, micro_batch)]
            for held in weights:
                values.append(run_forward(held, values[-1]))
            gradient = values[-1]
            for stage in reversed(range(len(weights))):
                own, gradient = run_backward(weights[stage], values[stage], gradient)
                totals[stage] += own
        self._weights.append([apply_update(w, total) for w, total in zip(weights, totals, strict=True)])
