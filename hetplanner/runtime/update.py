"""The end of a step: what the ranks agree on about their gradients, and the update of the weights."""

import math

import torch
from torch import Tensor

from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.chunk import Chunk, added_up, tied_gradients
from hetplanner.runtime.transport import Expected, Topic, Transport

NORM_BYTES = 8


class Update:
    """One rank's part.

    Attributes:
        expected: the messages it takes, in order.
        grad_square: this rank's share of the squared norm of the last step's mean gradient, before clipping.
    """

    def __init__(
        self, plan: Plan, rank: int, config: TrainConfig, chunks: tuple[Chunk, ...], transport: Transport
    ) -> None:
        self.rank, self.config, self.chunks, self.transport = rank, config, chunks, transport
        self.grad_square = 0.0
        self.tokens_per_step = plan.problem.workload.tokens_per_step
        self.peers = [r for r in range(len(plan.ranks)) if r != rank]
        self.exchanges_norms = config.clip_norm is not None
        self._own_ties = self._ties_without_group(plan)
        self.expected = [Expected(r, Topic.NORM, 0, NORM_BYTES) for r in self.peers] if self.exchanges_norms else []

    def _ties_without_group(self, plan: Plan) -> list[list[Tensor]]:
        """Gradients of the weights that are tied across stages which are all on this rank alone."""
        ops = plan.problem.workload.graph.ops
        reduced = {ops[group.ops[0]].name for group in reduction_groups(plan) if group.tied}
        held = dict.fromkeys(owner for chunk in self.chunks for owner in chunk.model.tied)
        return [tied_gradients(self.chunks, owner) for owner in held if owner not in reduced]

    def agree(self) -> float | None:
        """Makes the mean gradient, clipped, of what reductions have left; returns its norm if that is known."""
        for buckets in self._own_ties:
            with added_up(buckets):
                pass
        self.average_gradients()
        self.grad_square = self._squared_norm()
        if self.config.clip_norm is None:
            return None
        norm = self._global_norm()
        if norm > self.config.clip_norm:
            self._scale(self.config.clip_norm / (norm + 1e-6))
        return norm

    def apply(self, step: int) -> None:
        """Updates the weights; gradients end as zeros."""
        for chunk in self.chunks:
            chunk.optimizer.step(self.config.learning_rate_at(step))
            chunk.model.flat_grad.zero_()

    def average_gradients(self) -> None:
        """Sums over tokens become means: boundaries and reductions carried sums, one division is left to do."""
        self._scale(1.0 / self.tokens_per_step)

    def _scale(self, factor: float) -> None:
        for chunk in self.chunks:
            chunk.model.flat_grad.mul_(factor)

    def _global_norm(self) -> float:
        """Norm of the whole model's gradient: every rank sums the same squares in the same order."""
        squares = {self.rank: self.grad_square}
        for peer in self.peers:
            message = self.transport.buffer(NORM_BYTES)
            self.transport.payload(message).view(torch.float64).fill_(self.grad_square)
            self.transport.send(message, peer, Topic.NORM, 0)
        for expected in self.expected:
            squares[expected.peer] = float(self.transport.receive(expected).view(torch.float64))
        return math.sqrt(sum(squares[r] for r in sorted(squares)))

    def _squared_norm(self) -> float:
        """This rank's share."""
        # One pass over the gradient; the optimiser makes about seven.
        parts = [part for chunk in self.chunks for part in chunk.counted_gradients()]
        return sum(float(torch.linalg.vector_norm(part)) ** 2 for part in parts)
