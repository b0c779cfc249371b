"""From ops to a trainable stage: weights and gradients are views into one flat buffer each.

One flat buffer makes the reduction of gradients a matter of slices. Its layout, agreed by all replicas of a
stage, is: the stage's own weights in op order, then every weight that is tied across stages. Frozen weights lie in a
buffer of their own, without gradients. What crosses a boundary is flat too: one float32 tensor, whatever the ops in
front of it give.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hetplanner.plan.train import check_trainable
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.device_group.shards import Shard, make_shards
from hetplanner.runtime.model.captured import ProgramStage
from hetplanner.runtime.model.layout import (
    ModelWeight,
    Weight,
    crossing_tensors,
    frozen_weights,
    own_pieces,
    saved_tensors,
    stage_weights,
    tied_ranges,
)
from hetplanner.runtime.model.transformer_stage import TransformerStage
from hetplanner.runtime.rng import RngKey
from hetplanner.workload.model import Op
from hetplanner.workload.workload import Workload


class Batch(NamedTuple):
    """One micro-batch.

    Attributes:
        inputs: int64 [B, T] or float32 [B, C, H, W].
        labels: int64 [B, T] or [B]; -100 where none counts.
        documents: which document of its sequence a token is of, int64 [B, T]; None where all see those before them.
    """

    inputs: Tensor
    labels: Tensor
    documents: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """On another device."""
        moved = [None if part is None else part.to(device, non_blocking=True) for part in self]
        return Batch(*moved)  # type: ignore[arg-type]


Segments = Sequence[tuple[int, int]]
"""First and end op of each."""


class StageOps(Protocol):
    """The ops of one stage, wherever they come from, without storage for their weights.

    Attributes:
        reads: what they read of a micro-batch: inputs, labels, both or neither.
        isolates_documents: whether they keep documents of a sequence apart, where the data knows them.
        running: statistics that training moves without gradients (batch norm's), by name in a saved model.
        expert_loads: by op of a mixture of experts, how often each was taken (int64 [experts]); readers reset it.
    """

    reads: frozenset[str]
    isolates_documents: bool
    running: dict[str, Tensor]
    expert_loads: dict[str, Tensor]

    def bind(self, weight: ModelWeight, parameter: nn.Parameter) -> None:
        """Puts a weight where the stage's ops use it."""

    def fill(self, weight: ModelWeight, values: Tensor, seed: int) -> None:
        """Writes initial values: a function of (seed, name), so the same in every stage that holds the weight."""

    def compute(
        self, inputs: list[Tensor], batch: Batch | None, key: RngKey | None, *, again: bool = False,
        segments: Segments = (),
    ) -> list[Tensor]:  # fmt: skip
        """The crossing tensors behind the stage, or the loss sum, from those in front of it.

        Behind the loss sum stands in evaluation how many targets the model gives the greatest score, if it tells.

        Args:
            inputs: in the boundary's order, none on the first stage.
            batch: given where the stage `reads` of it; what it does not read is empty.
            key: what random calls draw from; None evaluates.
            again: the same micro-batch a second time (recompute): `running` is left alone.
            segments: of its ops, each computed again in its backward; without segments everything is kept.
        """


class StageModel:
    """The ops of one stage. `seed` None leaves the weights unset, to be loaded.

    Args:
        workload: what is trained; a transformer or a captured model with its program.
        first_op, end_op: the stage's range of ops.
        seed: of initial weights.
        device: where weights live and calls compute.
        group: whose members share the stage: this one holds its shards of the weights, and computes its tokens.
        zeros: makes the buffer of gradients, and without `seed` that of weights; a size to float32, 1-D.

    Attributes:
        weights: every trained weight once (of a member its part), in the flat buffer's order; `op_index` is its
            owner's.
        shards: of a member, what it holds of each of them.
        frozen_shards: the same of the frozen weights.
        parameters: the same as leaves of autograd, their gradients views into `flat_grad`.
        flat, flat_grad: values and gradients of the trained weights, float32, 1-D.
        frozen: values of the frozen weights, float32, 1-D; they have no gradients.
        trains_in_front: whether a stage in front of it has trained weights, so that it wants a gradient.
        own_end: elements in front of it are the stage's own; what follows is tied across stages.
        tied: owner's name -> element range of the weights of that op that are tied across stages.
        running: statistics that training moves without gradients, by name in a saved model.
        counted: those that count, as they were when all replicas were last equal.
    """

    def __init__(
        self,
        workload: Workload,
        first_op: int,
        end_op: int,
        seed: int | None,
        device: torch.device | None = None,
        group: DeviceGroup = ALONE,
        zeros: Callable[[int], Tensor] | None = None,
    ) -> None:
        check_trainable(workload)
        self.group = group
        self.device = device or torch.device("cpu")
        self.workload, self.first_op, self.end_op = workload, first_op, end_op
        self.ops: tuple[Op, ...] = workload.graph.ops[first_op:end_op]
        self.stage_ops: StageOps = (
            ProgramStage(workload, first_op, end_op, self.device, group)
            if workload.program is not None
            else TransformerStage(workload, first_op, end_op, group)
        )
        self.running = self.stage_ops.running
        self.counted: dict[str, Tensor] = {}
        self._note_counters()
        self._input_shapes = [
            piece.part_shape(group.index, group.degree) for piece in own_pieces(workload, first_op, group)
        ]
        self._input_sizes = [prod(shape) for shape in self._input_shapes]
        self.trains_in_front = workload.graph.first_trained < first_op
        self._lay_out(seed, zeros or partial(torch.zeros, device=self.device))

    # -- weights ----------------------------------------------------------------------------------

    def _lay_out(self, seed: int | None, zeros: Callable[[int], Tensor]) -> None:
        whole = stage_weights(self.workload, self.first_op, self.end_op)
        layout, self.shards = self._own(whole)
        self.weights = tuple(weight for _, weight in layout)
        end = self.weights[-1].end if self.weights else 0
        self.own_end, self.tied = tied_ranges(self.workload, self.weights)
        self.flat = zeros(end) if seed is None else torch.empty(end, device=self.device)
        self.flat_grad = zeros(end)
        self.parameters: list[nn.Parameter] = []
        self._lay_out_frozen(seed, zeros)
        for i, (w, weight) in enumerate(layout):
            self.parameters.append(self._parameter(weight))
            self.stage_ops.bind(w, self.parameters[-1])
            if seed is not None:
                self._fill(w, self.flat, weight, self.shards[i] if self.shards else None, seed)

    def _own(
        self, whole: Sequence[tuple[ModelWeight, Weight]]
    ) -> tuple[Sequence[tuple[ModelWeight, Weight]], tuple[Shard, ...]]:
        """The weights as they lie in this device's buffer, and of a member of a group its shards."""
        if self.group.degree == 1:
            return whole, ()
        shards = make_shards(self.workload, whole, self.group)
        return [(model_weight, shard.own) for (model_weight, _), shard in zip(whole, shards, strict=True)], shards

    def _lay_out_frozen(self, seed: int | None, zeros: Callable[[int], Tensor]) -> None:
        layout, self.frozen_shards = self._own(frozen_weights(self.workload, self.first_op, self.end_op))
        self._frozen_weights = tuple(weight for _, weight in layout)
        size = layout[-1][1].end if layout else 0
        self.frozen = zeros(size) if seed is None and size else torch.empty(size, device=self.device)
        for i, (w, weight) in enumerate(layout):
            values = self.frozen[weight.first : weight.end]
            self.stage_ops.bind(w, nn.Parameter(values.view(weight.shape), requires_grad=False))
            if seed is not None:
                self._fill(w, self.frozen, weight, self.frozen_shards[i] if self.frozen_shards else None, seed)

    def _parameter(self, weight: Weight) -> nn.Parameter:
        parameter = nn.Parameter(self.flat[weight.first : weight.end].view(weight.shape))
        parameter.grad = self.flat_grad[weight.first : weight.end].view(weight.shape)
        return parameter

    def _fill(self, weight: ModelWeight, flat: Tensor, place: Weight, shard: Shard | None, seed: int) -> None:
        values = torch.empty(weight.shape)  # drawn on the CPU: the same numbers on every device
        self.stage_ops.fill(weight, values, seed)
        if shard is None:
            flat[place.first : place.end].copy_(values.view(-1))
        else:
            shard.take(values, flat)

    def named_weights(self) -> dict[str, Tensor]:
        """Views of all weights, frozen ones included, by the name they have in a saved model."""
        frozen = {w.name: self.frozen[w.first : w.end].view(w.shape) for w in self._frozen_weights}
        return frozen | {w.name: self.flat[w.first : w.end].view(w.shape) for w in self.weights}

    def parts(self) -> dict[str, Tensor]:
        """The flat buffers of weights, by the names that checkpoints have for them; an empty one is left out."""
        return {"weights": self.flat} | ({"frozen": self.frozen} if self.frozen.numel() else {})

    def saved_tensors(self) -> dict[str, Tensor]:
        """What this stage saves, in the saved model's order: running statistics, and all weights but replicas of
        another stage's.
        """
        held = self.named_weights() | self.running
        mine = (t for t in saved_tensors(self.workload) if self.first_op <= t.op < self.end_op)
        return {t.name: held[t.name] for t in mine}

    @torch.no_grad()
    def load_running(self, values: Mapping[str, Tensor]) -> None:
        """Sets the running statistics, as all replicas of the stage hold them."""
        for name, tensor in self.running.items():
            tensor.copy_(values[name])
        self._note_counters()

    def _note_counters(self) -> None:
        self.counted = {name: t.clone() for name, t in self.running.items() if not t.is_floating_point()}

    # -- computing --------------------------------------------------------------------------------

    @property
    def goes_backward(self) -> bool:
        """Whether any trained weight is in the stage or in front of it."""
        return self.trains_in_front or bool(self.weights)

    @property
    def is_first(self) -> bool:
        """Whether no stage is in front of it."""
        return self.first_op == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage ends in the loss."""
        return self.end_op == len(self.workload.graph.ops)

    @property
    def reads(self) -> frozenset[str]:
        """What the stage reads of a micro-batch: inputs, labels, both or neither."""
        return self.stage_ops.reads

    def take_expert_loads(self) -> dict[str, list[int]]:
        """By op of a mixture of experts, how often each expert was taken since the last call; members add theirs up."""
        counted = self.stage_ops.expert_loads.items()
        group = self.group if self.group.divides_samples else ALONE
        loads = {op: group.all_reduce(load_E.clone()).tolist() for op, load_E in counted}
        for load_E in self.stage_ops.expert_loads.values():
            load_E.zero_()
        return loads

    @property
    def needs_batch(self) -> bool:
        """Whether it reads a micro-batch's inputs or labels."""
        return bool(self.reads)

    def forward(
        self, x_N: Tensor | None, batch: Batch | None, key: RngKey | None = None, *, again: bool = False,
        segments: Segments = (),
    ) -> Tensor:  # fmt: skip
        """The next boundary's flat tensor (float32, 1-D), or the loss sum on the last stage.

        Args:
            x_N: the flat tensor of the boundary in front; None on the first stage.
            batch: inputs and labels, where the stage `needs_batch`.
            key: what random calls draw from; None evaluates (no dropout, running statistics).
            again: the same micro-batch a second time (recompute): running statistics do not move.
            segments: first and end ops of those that are computed again one by one; a captured model has none.
        """
        inputs = [] if x_N is None else self._unpacked(x_N)
        outputs = self.stage_ops.compute(inputs, batch, key, again=again, segments=segments)
        if self.is_last:
            return outputs[0]
        if len(outputs) == 1:
            return outputs[0].reshape(-1).float()
        return torch.cat([output.reshape(-1).float() for output in outputs])

    def score(self, x_N: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Of the last stage in evaluation: the loss sum, and how many targets get the greatest score; None: unknown."""
        loss, *correct = self.stage_ops.compute([] if x_N is None else self._unpacked(x_N), batch, None)
        return loss, correct[0] if correct else None

    def _unpacked(self, x_N: Tensor) -> list[Tensor]:
        if len(self._input_shapes) == 1:
            return [x_N.view(self._input_shapes[0])]
        pieces = x_N.split(self._input_sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._input_shapes, strict=True)]


def boundary_elements(workload: Workload, boundary: int) -> int:
    """Elements of one micro-batch's flat tensor in front of op `boundary`."""
    return sum(t.num_elements for t in crossing_tensors(workload, boundary))
