"""What a rank holds of one stage: one chunk a rank, several when the plan is interleaved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.device_group.shards import own_elements
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.runtime.train.zero import shard_ranges
from hetplanner.workload.model import OpGraph


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stage's weights on one rank, its micro-batches in flight, and its optimiser.

    Attributes:
        stage, replica: its place in the plan.
    """

    stage: int
    replica: int
    model: StageModel
    runner: StageRunner
    optimizer: StageOptimizer

    @staticmethod
    def build(
        plan: Plan, place: tuple[int, int], config: TrainConfig, device: torch.device, group: DeviceGroup = ALONE
    ) -> "Chunk":
        """The chunk of (stage, replica), with initial weights; of a member of a group its part."""
        stage, workload = plan.stages[place[0]], plan.problem.workload
        model = StageModel(workload, stage.first_op, stage.end_op, config.seed, device, group)
        weights = model.weights if group.degree > 1 else None
        shard = shard_ranges(plan, plan.rank_at(*place), place[0]) if plan.zero else None
        if shard is not None and group.degree > 1:
            shard = own_elements(model.shards, shard)
        return Chunk(
            *place,
            model,
            StageRunner(
                model, recompute=stage.recompute or workload.recompute, in_flight=plan.held_S[place[0]],
                members=plan.problem.sample_members,
            ),
            StageOptimizer(
                workload, stage.first_op, stage.end_op, config, model.flat, model.flat_grad, weights, shard=shard
            ),
        )  # fmt: skip

    def tied_gradient(self, owner: str) -> Tensor:
        """This chunk's gradient of a weight that is tied across stages, by the name of the op that owns it."""
        first, end = self.model.tied[owner]
        return self.model.flat_grad[first:end]

    def counted_gradients(self) -> list[Tensor]:
        """Gradients of what the stage's ops own: a weight tied across stages counts for its owner's stage alone.

        Of a group, what every member holds counts for the leader alone.
        """
        model = self.model
        own_names = {op.name for op in model.ops}
        if not model.group.is_leader:
            ops = range(model.first_op, model.end_op)
            counted = [s.own for s in model.shards if not s.is_repeated and s.own.op_index in ops]
            return [model.flat_grad[weight.first : weight.end] for weight in counted]
        owned = [self.tied_gradient(name) for name in model.tied if name in own_names]
        return [model.flat_grad[: model.own_end], *owned]

    def counted_within(self, first: int, end: int) -> list[Tensor]:
        """Gradients of a range of a single device's buffer; of a group each member has its part, see above."""
        model = self.model
        if model.group.degree == 1:
            return [model.flat_grad[first:end]]
        shards = [shard for shard in model.shards if model.group.is_leader or not shard.is_repeated]
        return [model.flat_grad[begin:stop] for begin, stop in own_elements(shards, [(first, end)])]


def build_chunks(
    plan: Plan, rank: int, config: TrainConfig, device: torch.device = CPU, group: DeviceGroup = ALONE
) -> tuple[Chunk, ...]:
    """All chunks of a rank, in stage order; of a member of its group the parts that it holds."""
    return tuple(Chunk.build(plan, place, config, device, group) for place in plan.places_of_rank[rank])


def gradients_of(chunks: Sequence[Chunk], group: ReductionGroup, graph: OpGraph) -> list[Tensor]:
    """The slices of gradients that a group shares; several if the rank holds a tied weight more than once."""
    if group.tied:
        return tied_gradients(chunks, graph.ops[group.ops[0]].name)
    model = next(chunk for chunk in chunks if chunk.stage == group.stages[0]).model
    return [model.flat_grad[group.first_element : group.first_element + group.num_elements]]


def tied_gradients(chunks: Sequence[Chunk], owner: str) -> list[Tensor]:
    """The gradients of a weight tied across stages, of every chunk that holds it."""
    return [chunk.tied_gradient(owner) for chunk in chunks if owner in chunk.model.tied]


@contextmanager
def added_up(buckets: Sequence[Tensor]) -> Iterator[None]:
    """Gradients of one weight, held several times: the first is their sum inside, afterwards all are as the first."""
    for other in buckets[1:]:
        buckets[0].add_(other)
    with all_as_first(buckets):
        yield


@contextmanager
def all_as_first(buckets: Sequence[Tensor]) -> Iterator[None]:
    """Afterwards all buckets are as the first."""
    yield
    for other in buckets[1:]:
        other.copy_(buckets[0])
