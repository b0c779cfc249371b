"""A group's stage as a single device has it, for what handles all of its numbers: reductions and checkpoints."""

import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from hetplanner.errors import RunError
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.tensor_parallel.group import TensorGroup
from hetplanner.runtime.tensor_parallel.shards import Shard
from hetplanner.runtime.tensor_parallel.shared_memory import shared_zeros
from hetplanner.runtime.train.optimizers import StageOptimizer

WAIT_FOR_MEMBERS_S, POLL_S = 1.0, 0.02
"""How long a leader waits for the others' parts when they cannot meet."""


class WholeStage:
    """One stage of a group, in host memory that its members share. All members call the same methods.

    Args:
        own: the member's part.
        config: of the run.
        group: the member's.

    Attributes:
        chunk: weights, gradients and optimizer states of the whole stage; no member computes with it.
    """

    def __init__(self, own: Chunk, config: TrainConfig, group: TensorGroup) -> None:
        self.own, self.group = own, group
        zeros = partial(shared_zeros, dtype=torch.float32, group=group)
        workload, first_op, end_op = own.model.workload, own.model.first_op, own.model.end_op
        model = StageModel(workload, first_op, end_op, None, CPU, zeros=zeros)
        optimizer = StageOptimizer(workload, first_op, end_op, config, model.flat, model.flat_grad, zeros=zeros)
        self.chunk = Chunk(own.stage, own.replica, model, StageRunner(model), optimizer)
        self.has_gradients = False
        self._gathered = shared_zeros(group.degree, torch.int64, group)  # by member, 1 + the steps in its part

    def add_repeated(self) -> None:
        """Adds up the gradients of weights that every member holds: each has those of its own tokens."""
        grad = self.own.model.flat_grad
        parts = [grad[s.own.first : s.own.end] for s in self.own.model.shards if s.is_repeated]
        if not parts:
            return
        total = self.group.all_reduce(torch.cat(parts))
        for part, values in zip(parts, total.split([part.numel() for part in parts]), strict=True):
            part.copy_(values)

    def gather_gradients(self) -> None:
        """From the members to the whole; afterwards the leader may change it. Once a step."""
        if self.has_gradients:
            return
        self.has_gradients = True
        self.add_repeated()
        self._gather(self.own.model.shards, self.chunk.model.flat_grad, self.own.model.flat_grad)
        self.group.barrier()

    def finish_gradients(self) -> None:
        """Gives each member its part of the whole gradients, where they were gathered; else adds up the repeated."""
        if not self.has_gradients:
            self.add_repeated()
            return
        self.has_gradients = False
        self.group.barrier()
        _scatter(self.own.model.shards, self.chunk.model.flat_grad, self.own.model.flat_grad)
        self.group.barrier()

    def gather_state(self) -> None:
        """Weights and optimizer states, from the members to the whole."""
        for shards, whole, own in self._states():
            self._gather(shards, whole, own)
        self.chunk.optimizer.num_steps = self.own.optimizer.num_steps
        self.group.barrier()

    def gather_state_alone(self, steps: int) -> None:
        """As `gather_state` where members can meet no more: each of them calls it on its own.

        Args:
            steps: that are in the member's weights.

        Raises:
            RunError: on the leader, another member has not called it in time, or has other steps.
        """
        for shards, whole, own in self._states():
            self._gather(shards, whole, own)
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
            _scatter(shards, whole, own)
        self.own.optimizer.num_steps = int(self.group.of_leader(self.chunk.optimizer.num_steps))
        self.group.barrier()

    def _states(self) -> Iterator[tuple[Sequence[Shard], Tensor, Tensor]]:
        """Shards, buffer of the whole, and buffer of the member; states lie as the weights do."""
        whole, own = self.chunk, self.own
        yield own.model.shards, whole.model.flat, own.model.flat
        yield own.model.frozen_shards, whole.model.frozen, own.model.frozen
        for part, states in own.optimizer.states.items():
            yield own.model.shards, whole.optimizer.states[part], states

    @torch.no_grad()
    def _gather(self, shards: Sequence[Shard], whole: Tensor, own: Tensor) -> None:
        for shard in shards:
            if shard.is_repeated and not self.group.is_leader:
                continue
            for there, here in shard.pieces(whole, own):
                there.copy_(here)


@torch.no_grad()
def _scatter(shards: Sequence[Shard], whole: Tensor, own: Tensor) -> None:
    for shard in shards:
        for there, here in shard.pieces(whole, own):
            here.copy_(there)


def whole_stages(chunks: Sequence[Chunk], config: TrainConfig, group: TensorGroup) -> tuple[WholeStage, ...]:
    """One for each chunk of a member; none for a single device, whose chunks are whole."""
    return tuple(WholeStage(chunk, config, group) for chunk in chunks) if group.degree > 1 else ()
