"""The end of a step: what the ranks agree on about their gradients, and the update of the weights.

Where replicas take local steps, each part of the plan (a pipeline, mostly) is on its own: its mean gradient is over its
own micro-batches, and its ranks alone agree on its norm and on its loss scale.
"""

import math
from collections import Counter

import torch
from torch import Tensor

from hetplanner.plan.model import Plan
from hetplanner.plan.parts import Place, parts_of, portions_of
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig, exchanges_norms
from hetplanner.runtime.comm.transport import Expected, Topic, Transport
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.model.chunk import Chunk, added_up, tied_gradients
from hetplanner.runtime.model.precision import LossScale
from hetplanner.runtime.train.zero import counted_ranges

NORM_BYTES = 8


class Update:
    """One rank's part.

    Attributes:
        expected: the messages it takes, in order.
        targets_per_step: over so many the mean loss is; where some targets do not count, each step has its own number.
        grad_square: this rank's share of the squared norm of the last step's mean gradient, before clipping.
        scale: of the loss, in float16 only.
        overflowed: whether the step that was last agreed on left gradients that are no numbers (float16 only); all
            ranks come to the same answer, and `apply` leaves the weights alone.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        config: TrainConfig,
        chunks: tuple[Chunk, ...],
        transport: Transport,
        group: DeviceGroup = ALONE,
    ) -> None:
        self.rank, self.config, self.chunks, self.transport, self.group = rank, config, chunks, transport, group
        self.grad_square = 0.0
        self.targets_per_step = plan.problem.workload.tokens_per_step
        together = self._part_of(plan)
        self.peers = sorted({plan.rank_at(*place) for place in together} - {rank})
        self._copies = Counter(s for s, _ in together) if plan.is_local else None
        self._portions = self._own_portions(plan) if plan.is_local else []
        self._zero = plan.zero > 0
        self._counted = self._counted_parts(plan) if self._zero else []
        dtype = plan.problem.workload.dtype
        self.scale = LossScale() if dtype == "float16" else None
        self.overflowed = False
        self.exchanges_norms = exchanges_norms(config, dtype)
        self._own_ties = self._ties_without_group(plan)
        asks = self.exchanges_norms and group.is_leader
        self.expected = [Expected(r, Topic.NORM, 0, NORM_BYTES) for r in self.peers] if asks else []

    def _part_of(self, plan: Plan) -> list[Place]:
        """The replicas that agree with this rank's in every step."""
        if not plan.is_local:
            return [place for places in plan.places_of_rank for place in places]
        mine = plan.places_of_rank[self.rank][0]
        return next(list(part.places) for part in parts_of(plan, range(len(plan.stages))) if mine in part.places)

    def _ties_without_group(self, plan: Plan) -> list[list[Tensor]]:
        """Gradients of the weights that are tied across stages which are all on this rank alone."""
        ops = plan.problem.workload.graph.ops
        groups = [group for group in reduction_groups(plan) if group.every_step and self.rank in group.ranks]
        reduced = {ops[group.ops[0]].name for group in groups if group.tied}
        held = dict.fromkeys(owner for chunk in self.chunks for owner in chunk.model.tied)
        return [tied_gradients(self.chunks, owner) for owner in held if owner not in reduced]

    def _own_portions(self, plan: Plan) -> list[tuple[Tensor, float]]:
        """Gradients that come from a part of the step's micro-batches, and how large it is."""
        ties = plan.problem.workload.graph.tied_groups
        portions = []
        for chunk in self.chunks:
            place, model = (chunk.stage, chunk.replica), chunk.model
            portions.append((model.flat_grad[: model.own_end], portions_of(plan, [chunk.stage])[place]))
            for owner in model.tied:
                stages = {plan.stage_of_op[op] for op in ties[owner]}
                portions.append((chunk.tied_gradient(owner), portions_of(plan, stages)[place]))
        return portions

    @property
    def loss_factor(self) -> Tensor | None:
        """What a micro-batch's sum of losses is multiplied by before it goes backward; None for 1."""
        if not self.scale:
            return None
        return torch.tensor(self.scale.value / self.targets_per_step, device=self.chunks[-1].model.device)

    def agree(self) -> float | None:
        """Makes the mean gradient, clipped, of what reductions have left; returns its norm if that is known."""
        for buckets in self._own_ties:
            with added_up(buckets):
                pass
        self.average_gradients()
        self.grad_square = self.group.summed(self._squared_norm())
        if not self.exchanges_norms:
            return None
        norm = self.group.of_leader(self._global_norm() if self.group.is_leader else 0.0)
        if self.scale:
            self.overflowed = not math.isfinite(norm)
            self.scale.update(overflowed=self.overflowed)
        if self.config.clip_norm is not None and norm > self.config.clip_norm:
            self._multiply(self.config.clip_norm / (norm + 1e-6))
        return None if self.overflowed else norm

    def apply(self, step: int) -> None:
        """Updates the weights, unless gradients overflowed; gradients end as zeros.

        With ZeRO new weights take the place of their gradients instead, until `finish`.
        """
        rate = None if self.overflowed else self.config.learning_rate_at(step)
        for chunk in self.chunks:
            if self._zero:
                chunk.optimizer.step_into_gradients(rate)
                continue
            if rate is not None:
                chunk.optimizer.step(rate)
            chunk.model.flat_grad.zero_()

    @torch.no_grad()
    def finish(self) -> None:
        """With ZeRO: takes the new weights, stepped or gathered, from where gradients were; gradients end as zeros."""
        for chunk in self.chunks:
            chunk.model.flat.copy_(chunk.model.flat_grad)
            chunk.model.flat_grad.zero_()

    def average_gradients(self) -> None:
        """Sums over tokens become means: boundaries and reductions carried sums, one division is left to do."""
        self._multiply(1.0 / (self.scale.value if self.scale else self.targets_per_step))
        for gradient, portion in self._portions:
            gradient.div_(portion)

    def _multiply(self, factor: float) -> None:
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
        if self._zero:
            return sum(share * float(torch.linalg.vector_norm(part)) ** 2 for part, share in self._counted)
        # One pass over the gradient; the optimiser makes about seven.
        return sum(
            self._norm_weight(chunk)
            * sum(float(torch.linalg.vector_norm(part)) ** 2 for part in chunk.counted_gradients())
            for chunk in self.chunks
            if self._norm_weight(chunk)
        )

    def _counted_parts(self, plan: Plan) -> list[tuple[Tensor, float]]:
        """With ZeRO: the gradients that are reduced here and count in the norm, and what their squares count."""
        chunks = {chunk.stage: chunk for chunk in self.chunks}
        return [
            (part, share)
            for stage, first, end, share in counted_ranges(plan, self.rank)
            for part in chunks[stage].counted_within(first, end)
        ]

    def _norm_weight(self, chunk: Chunk) -> float:
        """Replica 0 speaks for its stage; with local steps, of several replicas in one part each speaks for some."""
        return 1.0 / self._copies[chunk.stage] if self._copies else float(chunk.replica == 0)
