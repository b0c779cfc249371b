"""A planner's search over groupings: one degree for all hosts, then neighbours of the best, then the best for long.

Each grouping is a problem of its own, in which a group stands for a device, so any planner can search it. Neighbours
differ for one make of hosts. A grouping whose lower bound is above the best plan found is left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from hetplanner.cost.advice.feasibility import fitting_shape
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.capacity import Capacity
from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.groupings import Grouping, all_groupings
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import (
    LAST_PHASES,
    Budget,
    OnEvent,
    Planner,
    SearchEvent,
    SearchResult,
    ShouldStop,
)

ALIKE_SHARE, NEIGHBOURS_SHARE, LAST_SHARE = 0.3, 0.25, 0.45
"""Of the budget, by round."""
MOST_NEIGHBOURS, LAST = 8, 2
"""Groupings in the later rounds."""
SAME = 1e-9
"""Share by which a bound must be below a value, for rounding."""


@dataclass
class _Option:
    """A grouping on its way through the rounds."""

    grouping: Grouping
    problem: Problem
    bound: float
    result: SearchResult | None = None
    start: Plan | None = None

    @property
    def value(self) -> float:
        """Of its best plan; infinite before there is one."""
        return float("inf") if self.result is None else self.result.value


@dataclass
class _Events:
    """The events of all searches as those of one."""

    on_event: OnEvent | None
    began_s: float = field(default_factory=time.perf_counter)
    best: SearchEvent | None = None
    evaluations: int = 0
    sent: list[SearchEvent] = field(default_factory=list)

    def take(self, event: SearchEvent, phase: str) -> None:
        better = self.best is None or event.best < self.best.best
        shown = event if better or self.best is None else self.best
        low = min(event.low, shown.best) if better else event.low
        spent_s = time.perf_counter() - self.began_s
        merged = replace(
            event,
            best=shown.best,
            low=low,
            placement=shown.placement,
            draft=shown.draft,
            evaluations=self.evaluations + event.evaluations,
            seconds=spent_s,
            spent_s=spent_s,
            searched_s=spent_s,
            phase=phase,
        )
        self.best = merged
        self.sent.append(replace(merged, draft=None))
        if self.on_event is not None:
            self.on_event(merged)


@dataclass(frozen=True)
class SearchOfGroupings:
    """How groupings are searched.

    Attributes:
        planner: searches each of them.
        on_event, should_stop: as of `Planner.solve`.
        goes_on: whether the planner can go on from a plan.
        alike: whether all hosts are divided alike.
    """

    planner: Planner
    on_event: OnEvent | None
    should_stop: ShouldStop | None
    goes_on: bool
    alike: bool

    def solve(self, problem: Problem, seed: int, budget: Budget, start: Plan | None) -> SearchResult:
        """The best plan over all groupings within the problem's constraints; its problem says the groups.

        Args:
            problem: without groups.
            seed, budget: searches share the budget.
            start: the search of its grouping begins with it.

        Raises:
            InvalidInput: no grouping is possible.
            Infeasible: no plan of any grouping fits.
        """
        options, events = _options(problem, alike=self.alike), _Events(self.on_event)
        for option in options:
            if start is not None and (start.problem.groups or ()) == option.problem.groups:
                option.start = start
        alike = {grouping.groups for grouping in all_groupings(problem, alike=True)}
        self._round([o for o in options if o.grouping.groups in alike], ALIKE_SHARE, options, seed, budget, events)
        best = min(options, key=lambda o: (o.value, o.bound))
        near = sorted(options, key=lambda o: (best.grouping.distance(o.grouping), o.bound))
        new = [o for o in near if o.result is None][:MOST_NEIGHBOURS]
        self._round(new, NEIGHBOURS_SHARE, options, seed, budget, events)
        last = [o for o in sorted(options, key=lambda o: o.value)[:LAST] if o.result is not None]
        self._round(last, LAST_SHARE, options, seed, budget, events)
        if _best(options) == float("inf"):
            raise Infeasible(f"{problem.workload.name}: no grouping of the devices has a plan that fits")
        return _merged(options, events, budget)

    def _round(
        self, chosen: list[_Option], share: float, options: list[_Option], seed: int, budget: Budget, events: _Events
    ) -> None:
        """Searches of some groupings; those that cannot be better, or come after the search was cancelled, are none."""
        for option in chosen:
            if self.should_stop is not None and self.should_stop() and _best(options) < float("inf"):
                return
            if option.result is not None or option.bound < _best(options) * (1.0 - SAME):
                self._search(option, seed, _part(budget, share / len(chosen)), events)

    def _search(self, option: _Option, seed: int, budget: Budget, events: _Events) -> None:
        """One search of one grouping; a plan that it had is kept if it is better."""

        def take(event: SearchEvent) -> None:
            events.take(event, "search" if event.phase in LAST_PHASES else event.phase)

        try:
            found = self.planner.solve(
                option.problem,
                seed=seed,
                budget=budget,
                on_event=take,
                should_stop=self.should_stop,
                start=option.start,
            )
        except Infeasible:
            option.bound = float("inf")
            return
        events.evaluations += found.evaluations
        option.bound = max(option.bound, found.lower_bound)
        if found.value < option.value:
            option.result = found
        option.start = option.result.plan if self.goes_on and option.result is not None else None


def _best(options: list[_Option]) -> float:
    return min(option.value for option in options)


def _options(problem: Problem, *, alike: bool) -> list[_Option]:
    """Groupings that memory allows, the least bound first; one degree for all goes before others."""
    options, last = [], None
    for grouping in all_groupings(problem, alike=alike):
        changed = problem.replace(groups=grouping.groups)
        model = CostModel.of(changed)
        if fitting_shape(Capacity(model.tables), changed) is None:
            last = changed
            continue
        bound = bound_cost if problem.objective == "cost" else bound_step
        options.append(_Option(grouping, changed, bound(model.tables, model.links)))
    if not options:
        assert last is not None
        wanted = problem.constraints
        raise explain_infeasible(last, CostModel.of(last).tables, wanted.stages or 1, wanted.replicas or 1)
    return options


def _part(budget: Budget, share: float) -> Budget:
    return Budget(
        seconds=None if budget.seconds is None else budget.seconds * share,
        evaluations=None if budget.evaluations is None else int(budget.evaluations * share),
    )


def _merged(options: list[_Option], events: _Events, budget: Budget) -> SearchResult:
    """The best of all searches as the result of one."""
    best = min((option for option in options if option.result is not None), key=lambda option: option.value)
    assert best.result is not None
    assert events.best is not None
    plan, seconds = best.result.plan, time.perf_counter() - events.began_s
    bound = min(option.bound for option in options)
    placement = tuple(tuple(replica[0] for replica in stage.replicas) for stage in plan.stages)
    events.take(replace(events.best, evaluations=0, best=best.value, placement=placement), "done")
    provenance = plan.provenance.replace(
        budget=budget.text(), evaluations=events.evaluations, seconds=seconds, lower_bound=bound
    )
    return replace(
        best.result,
        plan=plan.replace(provenance=provenance),
        lower_bound=bound,
        evaluations=events.evaluations,
        seconds=seconds,
        events=tuple(events.sent),
    )
