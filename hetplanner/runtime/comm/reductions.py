"""All reductions of one rank: gradients in every step, and what replicas average after their local steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from hetplanner.codecs.spec import Codec
from hetplanner.plan.action import Action, Kind
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.runtime.comm.power import make_reducer
from hetplanner.runtime.comm.receive_order import receive_order, sent_messages
from hetplanner.runtime.comm.reduce import GroupReducer
from hetplanner.runtime.comm.transport import Transport
from hetplanner.runtime.model.chunk import Chunk, added_up, all_as_first, gradients_of
from hetplanner.runtime.train.local_steps import LocalSteps


class Reductions:
    """One rank's part.

    Attributes:
        groups: the plan's.
        reducers: by index of the group, those this rank is a member of.
        local: what replicas that take local steps average; None without such.

    Args:
        plan: the plan.
        rank: this rank.
        chunks: what it holds.
        transport: carries the messages.
        actions: REDUCE actions of all ranks, in order.
    """

    def __init__(
        self, plan: Plan, rank: int, chunks: Sequence[Chunk], transport: Transport, actions: Sequence[Action]
    ) -> None:
        self.plan, self.rank, self.chunks, self.transport = plan, rank, chunks, transport
        self.groups = reduction_groups(plan)
        self.reducers = {g: self._make(g, group) for g, group in enumerate(self.groups) if rank in group.ranks}
        self.local = LocalSteps(plan, chunks) if plan.is_local else None
        self._averaging = [action for action in actions if self.follows_step(action)]

    def _make(self, index: int, group: ReductionGroup) -> GroupReducer:
        return make_reducer(group, (index, len(self.groups)), self.rank, self._buckets(group)[0], self.transport)

    def _buckets(self, group: ReductionGroup) -> list[Tensor]:
        """What the group shares: gradients, or what takes their place (`LocalSteps.offer`, and with ZeRO
        `StageOptimizer.step_into_gradients`).
        """
        return gradients_of(self.chunks, group, self.plan.problem.workload.graph)

    def is_due(self, action: Action, fragment: int | None) -> bool:
        """Whether it is performed in a step in which replicas average this fragment (None: nothing)."""
        return action.kind is not Kind.REDUCE or self.groups[action.group].is_due(fragment)

    def follows_step(self, action: Action) -> bool:
        """Whether it averages what the optimiser has changed."""
        return action.kind is Kind.REDUCE and self.groups[action.group].follows_step

    def perform(self, index: int) -> int:
        """Adds up gradients, or averages changes, which then wait where the gradients were. Returns the bytes sent."""
        return self._perform(self.reducers[index])

    def _perform(self, reducer: GroupReducer) -> int:
        if not reducer.group.every_step:
            assert self.local is not None
            self.local.offer(reducer.group)
        buckets = self._buckets(reducer.group)
        with all_as_first(buckets) if reducer.group.part == "all-gather" else added_up(buckets):
            return reducer.reduce()

    def take(self, fragment: int) -> None:
        """Steps by a fragment's changes, which were averaged."""
        assert self.local is not None
        for reducer in self.reducers.values():
            if not reducer.group.every_step and reducer.group.is_due(fragment):
                self.local.take(reducer.group)

    def take_mean(self) -> None:
        """Steps by all changes, which were averaged, to the mean of all replicas: without the outer optimizer."""
        assert self.local is not None
        for reducer in self.reducers.values():
            if not reducer.group.every_step:
                self.local.take(reducer.group, mean=True)

    def average_finely(self) -> None:
        """Averages all changes out of turn, with nothing coarser than fp16: what that loses is lost for good."""
        groups = [
            replace(group, codec=Codec(name="fp16"), error_feedback=False) if group.keeps_errors else group
            for group in self.groups
        ]
        reducers = [self._make(g, groups[g]) for g, reducer in self.reducers.items() if not reducer.group.every_step]
        sent = sent_messages(self._averaging, groups, 0)
        taken = [message for reducer in reducers for message in reducer.expected]
        self.transport.expect(receive_order(taken, lambda peer: sent[peer, self.rank]))
        for reducer in reducers:
            self._perform(reducer)
        self.transport.end_step()

    def rescale(self, factor: float) -> None:
        """Gradients will come multiplied by a factor, other than before; changes of weights do not."""
        for reducer in self.reducers.values():
            if reducer.group.every_step:
                reducer.rescale(factor)

    def state(self) -> dict[str, Tensor]:
        """What reductions and local steps carry from step to step, by name: part of the training's state."""
        state = {f"reduce.{g}.{name}": lost for g, r in self.reducers.items() for name, lost in r.state().items()}
        return state | {f"local.{name}": t for name, t in (self.local.state() if self.local else {}).items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave. Raises InvalidInput when it is another plan's."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}

        for g, reducer in self.reducers.items():
            reducer.load_state(under(f"reduce.{g}."))
        if self.local:
            self.local.load_state(under("local."))
