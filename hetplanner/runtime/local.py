"""Local steps: a rank's weights since replicas were last equal, and what becomes of the averaged change.

Between synchronisations every replica steps by itself. Then the changes are averaged by the plan's reducers (over the
same transport, with the plan's codec and error feedback), weighted by the micro-batches that each replica works on,
and the outer optimizer takes the mean change for a step from the weights that all had. All replicas compute the same
numbers from the same bits, so they end equal.
Source: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), algorithm 1; without outer optimizer it is local SGD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.parts import shares_of
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.runtime.chunk import Chunk


@dataclass(frozen=True, slots=True)
class _Span:
    """Weights of one chunk that are averaged together.

    Attributes:
        share: what this copy's change counts in the mean.
        weights, change: views of the chunk's weights, and of its gradients, which are free once a step is taken.
        anchor: the weights when replicas were last equal.
        velocity: the outer optimizer's; None without one.
    """

    share: float
    weights: Tensor
    change: Tensor
    anchor: Tensor
    velocity: Tensor | None


class LocalSteps:
    """One rank's part.

    Args:
        plan: with `local_steps` and `outer`.
        chunks: the rank's, with weights that are equal on all replicas.
    """

    def __init__(self, plan: Plan, chunks: Sequence[Chunk]) -> None:
        self.outer = plan.outer
        self._anchor = {chunk.stage: chunk.model.flat.detach().clone() for chunk in chunks}
        self._velocity = {s: torch.zeros_like(anchor) for s, anchor in self._anchor.items()} if self.outer else {}
        groups = [group for group in reduction_groups(plan) if not group.every_step]
        self._spans = {group.name: self._spans_of(plan, group, chunks) for group in groups}
        self._alone = self._spans_alone(plan, chunks, groups)

    def _spans_of(self, plan: Plan, group: ReductionGroup, chunks: Sequence[Chunk]) -> list[_Span]:
        shares = shares_of(plan, group.stages)
        owner = plan.problem.workload.graph.ops[group.ops[0]].name
        return [
            self._span(chunk, chunk.model.tied[owner] if group.tied else (0, chunk.model.own_end), shares)
            for chunk in chunks
            if (owner in chunk.model.tied if group.tied else chunk.stage == group.stages[0])
        ]

    def _span(self, chunk: Chunk, ends: tuple[int, int], shares: Mapping[tuple[int, int], float]) -> _Span:
        part, s, model = slice(*ends), chunk.stage, chunk.model
        return _Span(
            shares[s, chunk.replica],
            model.flat.detach()[part],
            model.flat_grad[part],
            self._anchor[s][part],
            self._velocity[s][part] if self.outer else None,
        )

    def _spans_alone(self, plan: Plan, chunks: Sequence[Chunk], groups: list[ReductionGroup]) -> list[_Span]:
        """What no other rank holds: without a mean to take, but the outer optimizer is for all weights."""
        ops = plan.problem.workload.graph.ops
        stages = {group.stages[0] for group in groups if not group.tied}
        owners = {ops[group.ops[0]].name for group in groups if group.tied}
        alone = []
        for chunk in chunks if self.outer else ():
            whole = {(chunk.stage, chunk.replica): 1.0}
            ends = [] if chunk.stage in stages else [(0, chunk.model.own_end)]
            ends += [ends for owner, ends in chunk.model.tied.items() if owner not in owners]
            alone += [self._span(chunk, each, whole) for each in ends]
        return alone

    @torch.no_grad()
    def offer(self, group: ReductionGroup) -> None:
        """Writes the weighted changes of the group's weights to where its reducer adds them up."""
        for span in self._spans[group.name]:
            torch.sub(span.weights, span.anchor, out=span.change)
            span.change.mul_(span.share)

    def take(self, group: ReductionGroup, *, mean: bool = False) -> None:
        """Steps by the reduced change. `mean`: to the mean of all replicas, the outer optimizer left alone."""
        for span in self._spans[group.name]:
            self._step(span, mean=mean)

    @torch.no_grad()
    def step_alone(self) -> None:
        """The outer step of weights that have no replica."""
        for span in self._alone:
            torch.sub(span.weights, span.anchor, out=span.change)
            self._step(span, mean=False)

    @torch.no_grad()
    def _step(self, span: _Span, *, mean: bool) -> None:
        if self.outer and span.velocity is not None and not mean:
            # Nesterov as torch.optim.SGD has it, of the gradient that is the negative change.
            span.velocity.mul_(self.outer.momentum).add_(span.change)
            span.change.add_(span.velocity, alpha=self.outer.momentum).mul_(self.outer.learning_rate)
        torch.add(span.anchor, span.change, out=span.weights)
        span.anchor.copy_(span.weights)
        span.change.zero_()

    def state(self) -> dict[str, Tensor]:
        """Weights when replicas were last equal, and velocities, by name: part of the training's state."""
        anchors = {f"anchor.{s}": anchor for s, anchor in self._anchor.items()}
        return anchors | {f"velocity.{s}": velocity for s, velocity in self._velocity.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave. Raises InvalidInput when it is another plan's."""
        mine = self.state()
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in state.items()}:
            raise InvalidInput(
                f"state of local steps: has {', '.join(sorted(state)) or 'nothing'}, but this plan has"
                f" {', '.join(sorted(mine))}; resume with the plan that was saved"
            )
        for name, tensor in mine.items():
            tensor.copy_(state[name])
