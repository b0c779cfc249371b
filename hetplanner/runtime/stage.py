"""A stage's micro-batches in flight: remote autodiff, local autograd between two boundaries.

What crosses a boundary is one flat float32 tensor, whatever the ops in front of it give.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.runtime.build import StageModel, boundary_shape
from hetplanner.runtime.models import DrawKey

Batch = tuple[Tensor, Tensor]
"""Inputs and labels of one micro-batch."""


@dataclass(slots=True)
class _Live:
    """What backward needs of one micro-batch; with recompute the output is computed again."""

    inputs: Tensor | None
    batch: Batch | None
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
        self._shape = None if model.is_first else boundary_shape(model.workload, model.first_op - 1)
        self._live: dict[int, _Live] = {}

    def forward(self, micro_batch: int, x: Tensor | None, batch: Batch | None, key: DrawKey) -> Tensor:
        """The stage's output, detached: the next boundary's flat tensor, or the loss sum on the last stage.

        Args:
            micro_batch: its index.
            x: the boundary's flat tensor; None on the first stage.
            batch: given where the model `needs_batch`.
            key: what random calls draw from.
        """
        if x is not None:
            x.requires_grad_(True)
        with torch.set_grad_enabled(not self.recompute):
            output = self._compute(x, batch, key)
        self._live[micro_batch] = _Live(x, batch, key, None if self.recompute else output)
        return output.detach()

    def _compute(self, x: Tensor | None, batch: Batch | None, key: DrawKey | None) -> Tensor:
        if x is not None:
            assert self._shape is not None
            x = x.view(self._shape)
        else:
            assert batch is not None
            x = batch[0]
        output = self.model(x, batch[1] if batch else None, key)
        return output if self.model.is_last else output.reshape(-1)

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Adds to the weights' gradients; returns the flat gradient of the stage's input (None on the first stage).

        Args:
            micro_batch: one that went forward.
            gradient: of the stage's output; None on the last stage, whose output is the loss.
        """
        live = self._live.pop(micro_batch)
        output = live.output if live.output is not None else self._compute(live.inputs, live.batch, live.key)
        torch.autograd.backward(output, gradient)
        return live.inputs.grad if live.inputs is not None else None

    @torch.no_grad()
    def evaluate(self, x: Tensor | None, batch: Batch | None) -> Tensor:
        """The output without dropout, nothing kept."""
        return self._compute(x, batch, None)

    def forget(self) -> None:
        """Drops all micro-batches in flight."""
        self._live.clear()
