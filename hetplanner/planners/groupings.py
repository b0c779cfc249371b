"""A planner's search over groupings: one division for all hosts, then neighbours of the best, then the best for long.

Each grouping is a problem of its own, in which a group stands for a device, so any planner can search it. Neighbours
differ for one make of hosts. A grouping whose lower bound is above the best plan found is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hetplanner.cost.advice.feasibility import fitting_shape
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.capacity import Capacity
from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.groupings import Divisions, Groupings
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import LAST_PHASES, Budget, OnEvent, Planner, SearchEvent, SearchResult, ShouldStop

ALIKE, NEIGHBOURS, SECOND, BEST = 0.3, 0.55, 0.7, 1.0
"""Share of the budget that is spent after each round."""
MOST_NEIGHBOURS = 8
MOST_BOUNDED = 32
"""With more groupings than these, their least bound is not looked for."""
SAME = 1e-9
"""Share by which a bound must be below a value, for rounding."""


class _Option:
    """A grouping on its way through the rounds.

    Attributes:
        problem: with its groups.
        bound: no plan of it is below; infinite where none fits.
        result: of its best search so far.
        start: what its next search begins with.
    """

    def __init__(self, problem: Problem) -> None:
        model = CostModel.of(problem)
        bound = bound_cost if problem.objective == "cost" else bound_step
        fits = fitting_shape(Capacity(model.tables), problem) is not None
        self.problem = problem
        self.bound = bound(model.tables, model.links) if fits else float("inf")
        self.result: SearchResult | None = None
        self.start: Plan | None = None

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


@dataclass
class DividedBudget:
    """Divides a budget among searches that follow one another."""

    budget: Budget
    began_s: float = field(default_factory=time.perf_counter)
    loading_s: float = 0.0
    """That went into loading and compiling kernels, which no budget counts."""

    @property
    def spent_s(self) -> float:
        """Of the budget's time."""
        return time.perf_counter() - self.began_s - self.loading_s

    @property
    def is_late(self) -> bool:
        """Whether the budget's time is over."""
        return self.budget.seconds is not None and self.spent_s >= self.budget.seconds

    def part(self, until: float, searches: int, evaluations: int) -> Budget:
        """Of what is left until that share of the budget, what the next of so many searches gets."""
        total, left = self.budget, None
        if total.seconds is not None:
            left = max(0.0, until * total.seconds - self.spent_s) / searches
        count = None if total.evaluations is None else max(0, int(until * total.evaluations) - evaluations) // searches
        return Budget(seconds=left, evaluations=count)


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
        ways, events, options = Groupings(problem), _Events(self.on_event), dict[Divisions, _Option]()

        def looked_at(chosen: Iterable[Divisions]) -> list[_Option]:
            for divisions in chosen:
                if divisions not in options:
                    option = options[divisions] = _Option(problem.replace(groups=ways.groups(divisions)))
                    option.start = start if start is not None and start.problem == option.problem else None
            return [options[divisions] for divisions in chosen]

        clock = DividedBudget(budget)
        # Large groups make small problems, whose first plans come soon.
        self._round(looked_at(ways.alike()[::-1]), clock, ALIKE, seed, events)
        if not self.alike:
            best = min(options, key=lambda divisions: (options[divisions].value, options[divisions].bound))
            near = [divisions for divisions in ways.neighbours(best) if divisions not in options][:MOST_NEIGHBOURS]
            self._round(looked_at(near), clock, NEIGHBOURS, seed, events)
        found = sorted((o for o in options.values() if o.result is not None), key=lambda o: o.value)
        if not found:
            raise _explained(list(options.values()), problem)
        self._round(found[1:2], clock, SECOND, seed, events)
        self._round(found[:1], clock, BEST, seed, events)
        is_whole = self.alike or ways.count <= MOST_BOUNDED
        if is_whole and not self.alike:
            looked_at(list(ways.all()))
        bound = min(option.bound for option in options.values()) if is_whole else _work_bound(problem)
        return _merged(min(found, key=lambda o: o.value), bound, events, budget)

    def _round(self, chosen: list[_Option], clock: DividedBudget, until: float, seed: int, events: _Events) -> None:
        """Searches of some groupings; those that cannot be better, or come when the time is over, are left out."""
        for i, option in enumerate(chosen):
            best = float("inf") if events.best is None else events.best.best
            is_over = clock.is_late or (self.should_stop is not None and self.should_stop())
            if is_over and best < float("inf"):
                return
            if option.result is not None or option.bound < best * (1.0 - SAME):
                budget = clock.part(until, len(chosen) - i, events.evaluations)
                clock.loading_s += self._search(option, seed, budget, events)

    def _search(self, option: _Option, seed: int, budget: Budget, events: _Events) -> float:
        """One search of one grouping; a plan that it had is kept if it is better. Seconds of loading kernels."""

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
            return 0.0
        events.evaluations += found.evaluations
        option.bound = max(option.bound, found.lower_bound)
        if found.value < option.value:
            option.result = found
        option.start = option.result.plan if self.goes_on and option.result is not None else None
        return max(0.0, found.events[-1].seconds - found.events[-1].spent_s) if found.events else 0.0


def _work_bound(problem: Problem) -> float:
    """Seconds in which all devices together do a step's arithmetic: no grouping is faster. 0 where not known."""
    if problem.objective == "cost" or problem.profile is not None:
        return 0.0
    tables = CostModel.of(problem.replace(groups=())).tables
    rows = [problem.cluster.device_index(device) for device in problem.usable_devices]
    flops = float(tables.flops_O[-1]) * problem.workload.num_micro_batches
    return flops / float(tables.devices.rate_flops_per_s_D[rows].sum())


def _explained(options: list[_Option], problem: Problem) -> Infeasible:
    """Why nothing fits, for the grouping with the largest groups."""
    last, wanted = options[-1].problem, problem.constraints
    return explain_infeasible(last, CostModel.of(last).tables, wanted.stages or 1, wanted.replicas or 1)


def _merged(best: _Option, bound: float, events: _Events, budget: Budget) -> SearchResult:
    """The best of all searches as the result of one."""
    assert best.result is not None
    assert events.best is not None
    plan, seconds = best.result.plan, time.perf_counter() - events.began_s
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
