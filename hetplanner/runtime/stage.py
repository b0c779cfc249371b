"""A stage's micro-batches in flight: remote autodiff, local autograd between two boundaries."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.runtime.build import StageModel
from hetplanner.runtime.models import DrawKey


@dataclass(slots=True)
class _Live:
    """What backward needs of one micro-batch; with recompute the output is computed again."""

    inputs: Tensor
    labels: Tensor | None
    key: DrawKey
    output: Tensor | None


class StageRunner:
    """Forward and backward of micro-batches through one stage.

    Args:
        model: the stage.
        recompute: keep only the stage's input and compute the rest again in backward.
    """

    def __init__(self, model: StageModel, *, recompute: bool = False) -> None:
        self.model, self.recompute = model, recompute
        self._live: dict[int, _Live] = {}

    def forward(self, micro_batch: int, x: Tensor, labels: Tensor | None, key: DrawKey) -> Tensor:
        """The stage's output, detached: the next boundary's tensor, or the loss sum on the last stage."""
        if not self.model.is_first:
            x.requires_grad_(True)
        with torch.set_grad_enabled(not self.recompute):
            output = self.model(x, labels, key)
        self._live[micro_batch] = _Live(x, labels, key, None if self.recompute else output)
        return output.detach()

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Adds to the weights' gradients; returns the gradient of the stage's input (None on the first stage).

        Args:
            micro_batch: one that went forward.
            gradient: of the stage's output; None on the last stage, whose output is the loss.
        """
        live = self._live.pop(micro_batch)
        output = live.output if live.output is not None else self.model(live.inputs, live.labels, live.key)
        torch.autograd.backward(output, gradient)
        return live.inputs.grad

    @torch.no_grad()
    def evaluate(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """The output without dropout, nothing kept."""
        return self.model(x, labels, None)

    def forget(self) -> None:
        """Drops all micro-batches in flight."""
        self._live.clear()
