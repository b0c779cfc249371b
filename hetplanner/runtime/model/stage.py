"""A stage's micro-batches in flight: remote autodiff, local autograd between two boundaries."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hetplanner.cost.compute.recomputation import Recomputation
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.precision import autocast, set_matrix_products
from hetplanner.runtime.rng import RngKey


@dataclass(slots=True)
class _Live:
    """What backward needs of one micro-batch; with recompute of a whole stage the output is computed again."""

    inputs: Tensor | None
    batch: Batch | None
    key: RngKey
    output: GradientEdge | None
    """Where the backward begins; the output itself is not kept."""


class StageRunner:
    """Forward and backward of micro-batches through one stage.

    Args:
        model: the stage.
        recompute: keep only inputs and compute the rest again in backward.
        in_flight: micro-batches held at once; with few of them the inputs of layers are kept, see
            :class:`hetplanner.cost.compute.recomputation.Recomputation`.
        members: as there.
    """

    def __init__(self, model: StageModel, *, recompute: bool = False, in_flight: int = 1, members: int = 0) -> None:
        self.model = model
        again = Recomputation(model.workload, members) if recompute else None
        segments = again.segments(model.first_op, model.end_op, in_flight) if again else ()
        self._keeps_input = len(segments) == 1
        self._layers: tuple[tuple[int, int], ...] = segments if len(segments) > 1 else ()
        self._dtype, self._device_type = model.workload.dtype, model.device.type
        set_matrix_products(self._dtype)
        self._live: dict[int, _Live] = {}

    def forward(self, micro_batch: int, x: Tensor | None, batch: Batch | None, key: RngKey) -> Tensor:
        """The stage's output, detached: the next boundary's flat tensor, or the loss sum on the last stage.

        Args:
            micro_batch: its index.
            x: the flat tensor of the boundary in front; None on the first stage.
            batch: inputs and labels, where the model `needs_batch`.
            key: what random calls draw from.
        """
        if x is not None and self.model.trains_in_front:
            x.requires_grad_(True)
        keeps = self.model.goes_backward and not self._keeps_input
        with torch.set_grad_enabled(keeps), autocast(self._dtype, self._device_type):
            output = self.model.forward(x, batch, key, segments=self._layers)
        self._live[micro_batch] = _Live(x, batch, key, get_gradient_edge(output) if keeps else None)
        return output.detach()

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Adds to the weights' gradients; returns the flat gradient of the stage's input.

        None where there is none: on the first stage, and where no weight in front is trained.

        Args:
            micro_batch: one that went forward.
            gradient: of the stage's output, flat; on the last stage, whose output is the loss, the factor by which
                the loss counts, or None for 1. Where nothing goes backward it is not looked at.
        """
        live = self._live.pop(micro_batch)
        if self.model.goes_backward:
            edge = live.output
            if edge is None:
                with autocast(self._dtype, self._device_type):
                    edge = get_gradient_edge(self.model.forward(live.inputs, live.batch, live.key, again=True))
            torch.autograd.backward(edge, gradient)
        return live.inputs.grad if live.inputs is not None and self.model.trains_in_front else None

    def forget(self, micro_batch: int) -> None:
        """Drops a micro-batch that went forward and will not come back."""
        self._live.pop(micro_batch, None)

    @torch.no_grad()
    def score(self, x: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """See `StageModel.score`."""
        with autocast(self._dtype, self._device_type):
            return self.model.score(x, batch)

    @torch.no_grad()
    def evaluate(self, x: Tensor | None, batch: Batch | None) -> Tensor:
        """The output without dropout and by running statistics, nothing kept."""
        with autocast(self._dtype, self._device_type):
            return self.model.forward(x, batch)
