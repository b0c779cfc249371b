"""A group's stage as a single device has it, for what handles all of its numbers: reductions and checkpoints."""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import itemgetter

import torch
from torch import Tensor

from hetplanner.errors import RunError
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.runtime.device_group.shards import Shard, add_repeated, gather_parts, own_ranges, scatter_parts
from hetplanner.runtime.device_group.shared_memory import shared_zeros
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.train.optimizers import Range, StageOptimizer
from hetplanner.runtime.train.zero import shard_ranges

WAIT_FOR_MEMBERS_S, POLL_S = 1.0, 0.02
"""How long a leader waits for the others' parts when they cannot meet."""
PIECE_ELEMENTS = 2**20
"""Of states that are copied at once: their places take memory, too."""


class WholeStage:
    """One stage of a group, in host memory that its members share. All members call the same methods.

    Args:
        own: the member's part.
        config: of the run.
        group: the member's.
        shard: of the whole, what the group steps (ZeRO stage 1); None: everything.

    Attributes:
        chunk: weights, gradients and optimizer states of the whole stage; no member computes with it.
        has_gradients: whether gradients, or with ZeRO the weights in their place, are gathered.
    """

    def __init__(
        self, own: Chunk, config: TrainConfig, group: DeviceGroup, shard: Sequence[Range] | None = None
    ) -> None:
        self.own, self.group = own, group
        zeros = partial(shared_zeros, dtype=torch.float32, group=group)
        workload, first_op, end_op = own.model.workload, own.model.first_op, own.model.end_op
        model = StageModel(workload, first_op, end_op, None, CPU, zeros=zeros)
        optimizer = StageOptimizer(
            workload, first_op, end_op, config, model.flat, model.flat_grad, zeros=zeros, shard=shard
        )
        self.chunk = Chunk(own.stage, own.replica, model, StageRunner(model), optimizer)
        self.has_gradients = False
        self._gathered = shared_zeros(group.degree, torch.int64, group)  # by member, 1 + the steps in its part

    def gather_gradients(self, *, are_stepped: bool = False) -> None:
        """From the members to the whole; afterwards the leader may change it. Until they are finished, once.

        Args:
            are_stepped: new weights are in their place (ZeRO), of which every member has the same where they are
                repeated.
        """
        if self.has_gradients:
            return
        self.has_gradients = True
        if not are_stepped:
            self._add_repeated()
        gather_parts(self.own.model.shards, self.chunk.model.flat_grad, self.own.model.flat_grad, self.group)
        self.group.barrier()

    def finish_gradients(self, *, are_stepped: bool = False) -> None:
        """Gives each member its part of what was gathered; of gradients that were not, it adds up the repeated."""
        if not self.has_gradients:
            if not are_stepped:
                self._add_repeated()
            return
        self.has_gradients = False
        self.group.barrier()
        scatter_parts(self.own.model.shards, self.chunk.model.flat_grad, self.own.model.flat_grad)
        self.group.barrier()

    def gather_state(self) -> None:
        """Weights and optimizer states, from the members to the whole."""
        self._gather_state()
        self.chunk.optimizer.num_steps = self.own.optimizer.num_steps
        self.group.barrier()

    def gather_state_alone(self, steps: int) -> None:
        """As `gather_state` where members can meet no more: each of them calls it on its own.

        Args:
            steps: that are in the member's weights.

        Raises:
            RunError: on the leader, another member has not called it in time, or has other steps.
        """
        self._gather_state()
        self._gathered[self.group.index] = steps + 1
        until_s = time.monotonic() + WAIT_FOR_MEMBERS_S
        while self.group.is_leader and not self._gathered.eq(steps + 1).all():
            if time.monotonic() > until_s:
                raise RunError(f"stage {self.own.stage}: another device of the group has not saved its part of it")
            time.sleep(POLL_S)

    def scatter_state(self) -> None:
        """Weights and optimizer states, from the whole to the members."""
        self.group.barrier()
        for shards, whole, own in self._states():
            scatter_parts(shards, whole, own)
        for places, own_places, _ in self._sharded():
            for part, states in self.own.optimizer.states.items():
                states[own_places] = self.chunk.optimizer.states[part][places]
        self.own.optimizer.num_steps = int(self.group.of_leader(self.chunk.optimizer.num_steps))
        self.group.barrier()

    @torch.no_grad()
    def _gather_state(self) -> None:
        for shards, whole, own in self._states():
            gather_parts(shards, whole, own, self.group)
        for places, own_places, shard in self._sharded():
            if shard.is_repeated and not self.group.is_leader:
                continue
            for part, states in self.own.optimizer.states.items():
                self.chunk.optimizer.states[part][places] = states[own_places].cpu()

    def _sharded(self) -> Iterator[tuple[Tensor, slice, Shard]]:
        """With ZeRO, the states of the group's shard by piece: places in the whole's and in the member's buffers."""
        ranges, done = self.chunk.optimizer.shard or (), 0
        starts = list(accumulate((end - first for first, end in ranges), initial=0))
        for shard, block, begin, stop in own_ranges(self.own.model.shards, ranges):
            for first in range(begin, stop, PIECE_ELEMENTS):
                places = block.places_of(first, min(stop, first + PIECE_ELEMENTS))
                number = bisect_right(ranges, int(places[0]), key=itemgetter(0)) - 1
                yield places - ranges[number][0] + starts[number], slice(done, done + len(places)), shard
                done += len(places)

    def _states(self) -> Iterator[tuple[Sequence[Shard], Tensor, Tensor]]:
        """Shards, buffer of the whole, and buffer of the member; states lie as the weights do."""
        whole, own = self.chunk, self.own
        yield own.model.shards, whole.model.flat, own.model.flat
        yield own.model.frozen_shards, whole.model.frozen, own.model.frozen
        for part, states in own.optimizer.states.items() if whole.optimizer.shard is None else ():
            yield own.model.shards, whole.optimizer.states[part], states

    def _add_repeated(self) -> None:
        add_repeated(self.own.model.shards, self.own.model.flat_grad, self.group)


def whole_stages(
    plan: Plan, chunks: Sequence[Chunk], config: TrainConfig, group: DeviceGroup
) -> tuple[WholeStage, ...]:
    """One for each chunk of a member; none for a single device, whose chunks are whole."""
    if group.degree == 1:
        return ()
    return tuple(
        WholeStage(
            chunk, config, group,
            shard_ranges(plan, plan.rank_at(chunk.stage, chunk.replica), chunk.stage) if plan.zero else None,
        )
        for chunk in chunks
    )  # fmt: skip
