"""The front of step time and dollars, over degrees of tensor parallelism where several are allowed.

Each degree is a search of its own, and all share the budget. The front is of all their plans; each plan's problem says
its groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hetplanner.errors import Infeasible
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.problem import Problem
from hetplanner.planners.groupings import DividedBudget
from hetplanner.planners.interface import Budget, ShouldStop
from hetplanner.planners.step_time.pareto import (
    OnParetoEvent,
    ParetoEvent,
    ParetoFront,
    point_of,
    search_front_of_grouping,
    undominated,
)


@dataclass
class _Events:
    """Events of the searches as those of one: points of all fronts so far, evaluations and seconds added up."""

    on_event: OnParetoEvent | None
    fronts: list[ParetoFront] = field(default_factory=list)
    sent: list[ParetoEvent] = field(default_factory=list)

    def take(self, event: ParetoEvent, *, is_last: bool = False) -> None:
        points = [*event.points, *(point_of(plan) for front in self.fronts for plan in front.plans)]
        merged = replace(
            event,
            points=tuple(points[i] for i in undominated(points)),
            evaluations=event.evaluations + sum(front.evaluations for front in self.fronts),
            seconds=event.seconds + sum(front.seconds for front in self.fronts),
            spent_s=event.spent_s + sum(front.events[-1].spent_s for front in self.fronts),
            phase="between" if event.phase == "done" and not is_last else event.phase,
        )
        self.sent.append(merged)
        if self.on_event is not None:
            self.on_event(merged)


def search_front(
    problem: Problem,
    *,
    seed: int = 0,
    budget: Budget | str | float | None = None,
    on_event: OnParetoEvent | None = None,
    should_stop: ShouldStop | None = None,
) -> ParetoFront:
    """Searches for the front of step time and dollars of a problem; its own objective is not read.

    Where the constraints allow several degrees of tensor parallelism, each is searched for all hosts alike: hosts
    without so many equal devices have the next smaller degree.

    Args:
        problem: what to plan.
        seed: of every random choice; same seed and same number of evaluations give the same front.
        budget: of all searches together, see :class:`Budget`; zero still gives a valid plan.
        on_event: called at most ten times a second, and once at the end.
        should_stop: asked between chunks of work; True ends the search with the front so far.

    Returns:
        The front; its plans belong to the problem with objective step-time and their groups.

    Raises:
        InvalidInput: if the problem's shape contradicts its cluster or model, a usable device has no price,
            devices are pinned to stages, or no allowed degree divides the model.
        Infeasible: if no plan fits the devices' memory.
    """
    total = Budget.parse(budget)
    if not problem.is_grouping_open:
        return search_front_of_grouping(problem, seed, total, on_event, should_stop)
    ways, events, clock = Groupings(problem), _Events(on_event), DividedBudget(total)
    options, why = ways.alike(), Infeasible("no degree of tensor parallelism is possible")
    for i, degrees in enumerate(options):
        if events.fronts and (clock.is_late or (should_stop is not None and should_stop())):
            break
        part = clock.part(1.0, len(options) - i, sum(front.evaluations for front in events.fronts))
        grouped = problem.replace(groups=ways.groups(degrees))
        try:
            front = search_front_of_grouping(grouped, seed, part, events.take, should_stop)
        except Infeasible as error:
            why = error
            continue
        clock.loading_s += max(0.0, front.seconds - front.events[-1].spent_s)
        events.fronts.append(front)
    if not events.fronts:
        raise why
    return _merged(problem, events)


def _merged(problem: Problem, events: _Events) -> ParetoFront:
    fronts = events.fronts
    plans = [plan for front in fronts for plan in front.plans]
    last = replace(fronts[-1].events[-1], points=(), evaluations=0, seconds=0.0, spent_s=0.0, phase="done")
    events.take(last, is_last=True)
    return ParetoFront(
        problem=problem,
        plans=tuple(plans[i] for i in undominated(map(point_of, plans))),
        least_step_s=min(front.least_step_s for front in fronts),
        least_usd_per_mtoken=min(front.least_usd_per_mtoken for front in fronts),
        evaluations=sum(front.evaluations for front in fronts),
        seconds=sum(front.seconds for front in fronts),
        seed=fronts[0].seed,
        events=tuple(events.sent),
        cancelled=any(front.cancelled for front in fronts),
    )
