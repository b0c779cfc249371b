"""Local steps: a rank's weights since replicas were last equal, and what becomes of the averaged change.

Between synchronisations every replica steps by itself. Then the plan's reducers average the changes (over the same
transport, with the plan's codec and error feedback), weighted by the micro-batches that each replica works on.
The outer optimizer takes the mean change for a step from the weights that all had. All replicas compute the same
numbers from the same bits, so they end equal. A stage without replicas has nothing to average and steps on.
Of a plan with fragments each is averaged in a step of its own, with its own anchor and momentum; the others go on.
Source: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), algorithm 1; without outer optimizer it is local SGD.
Douillard et al. 2025 (Streaming DiLoCo, arXiv 2501.18512) for fragments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import OuterOptimizer, Plan
from hetplanner.plan.parts import shares_of
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.runtime.model.chunk import Chunk


@dataclass(frozen=True, slots=True)
class _Span:
    """Weights of one chunk that are averaged together.

    Attributes:
        stage: of the chunk.
        share: what this copy's change counts in the mean.
        weights, change: views of the chunk's weights, and of its gradients, which are free once a step is taken.
        anchor: the weights when replicas were last equal.
        velocity: the outer optimizer's; None without one.
    """

    stage: int
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
        groups = [group for group in reduction_groups(plan) if not group.every_step]
        self._spans = {group.name: self._spans_of(plan, group, chunks) for group in groups}

    def _spans_of(self, plan: Plan, group: ReductionGroup, chunks: Sequence[Chunk]) -> list[_Span]:
        shares = shares_of(plan, group.stages)
        owner = plan.problem.workload.graph.ops[group.ops[0]].name
        spans = []
        for chunk in chunks:
            if chunk.stage not in group.stages or (group.tied and owner not in chunk.model.tied):
                continue
            own = group.first_element, group.first_element + group.num_elements
            part = slice(*(chunk.model.tied[owner] if group.tied else own))
            weights = chunk.model.flat.detach()[part]
            velocity = torch.zeros_like(weights) if self.outer else None
            share = shares[chunk.stage, chunk.replica]
            spans.append(_Span(chunk.stage, share, weights, chunk.model.flat_grad[part], weights.clone(), velocity))
        return spans

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

    def _step(self, span: _Span, *, mean: bool) -> None:
        outer = None if mean else self.outer
        step_outer(span.weights, span.change, span.anchor, span.velocity, outer)
        span.change.zero_()

    def state(self) -> dict[str, Tensor]:
        """Weights when replicas were last equal, and velocities, by name: part of the training's state."""
        state = {}
        for group, spans in self._spans.items():
            for span in spans:
                state[f"anchor.{group}.{span.stage}"] = span.anchor
                if span.velocity is not None:
                    state[f"velocity.{group}.{span.stage}"] = span.velocity
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave. Raises InvalidInput when it is another plan's."""
        mine = self.state()
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in state.items()}:
            raise InvalidInput(
                f"state of local steps: has {', '.join(sorted(state)) or 'nothing'}, but this plan has"
                f" {', '.join(sorted(mine)) or 'nothing'}; resume with the plan that was saved"
            )
        for name, tensor in mine.items():
            tensor.copy_(state[name])


@torch.no_grad()
def step_outer(
    weights: Tensor, change: Tensor, anchor: Tensor, velocity: Tensor | None, outer: OuterOptimizer | None
) -> None:
    """A step of the outer optimizer: weights and anchor become the new ones.

    Args:
        weights: overwritten; like all others 1-D and equally long.
        change: mean of the replicas' since the anchor; used up.
        anchor: the weights that all replicas had.
        velocity: of the momentum; None where there is no outer optimizer.
        outer: None takes the change as it is.
    """
    if outer is not None and velocity is not None:
        # Nesterov as torch.optim.SGD has it, of the gradient that is the negative change.
        velocity.mul_(outer.momentum).add_(change)
        change.add_(velocity, alpha=outer.momentum).mul_(outer.learning_rate)
    torch.add(anchor, change, out=weights)
    anchor.copy_(weights)
