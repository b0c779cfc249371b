"""What all planners share: settings, the search's book-keeping, and the finished result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from hetplanner.compiling import watched_compiling
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Objective, Problem
from hetplanner.planners.finish import finish, plan_without_kernels
from hetplanner.planners.groupings import SearchOfGroupings
from hetplanner.planners.interface import (
    Budget,
    CancelledWhileCompiling,
    OnEvent,
    PlannerSettings,
    Progress,
    SearchResult,
    ShouldStop,
    checked_seed,
)
from hetplanner.planners.layout import require_prices, value_of

SettingsT = TypeVar("SettingsT", bound=PlannerSettings)


class BasePlanner(ABC, Generic[SettingsT]):
    """A planner by its search alone; a new one gives its name, summary, settings and `search`.

    `objectives` lists what it can plan for; `honours_pins` says whether it keeps pinned devices at their stages (never
    for objective `dtfm`), `takes_start` whether it can begin with a plan, `groups_alike` whether all hosts are divided
    into groups of one size. What a planner cannot do is refused at once.
    """

    name: ClassVar[str]
    is_baseline: ClassVar[bool] = False
    summary: ClassVar[str]
    settings_type: ClassVar[type[PlannerSettings]] = PlannerSettings
    objectives: ClassVar[tuple[Objective, ...]] = ("step-time", "cost", "dtfm")
    honours_pins: ClassVar[bool] = False
    takes_start: ClassVar[bool] = False
    groups_alike: ClassVar[bool] = False

    def __init__(self, settings: SettingsT | None = None) -> None:
        self.settings: SettingsT = settings or self.settings_type()  # type: ignore[assignment]

    def solve(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        budget: Budget | str | float | None = None,
        on_event: OnEvent | None = None,
        should_stop: ShouldStop | None = None,
        start: Plan | None = None,
    ) -> SearchResult:
        """See :class:`hetplanner.planners.interface.Planner`."""
        self.check(problem, start)
        checked_seed(seed)
        if problem.is_grouping_open:
            how = SearchOfGroupings(self, on_event, should_stop, goes_on=self.takes_start, alike=self.groups_alike)
            return self.completed(how.solve(problem, seed, Budget.parse(budget), start))
        progress = Progress(Budget.parse(budget), on_event, should_stop, start=start)
        if start is not None and start.problem == problem and start.estimate is not None:
            progress.begin_at(start, value_of(start))
        model = CostModel.of(problem, progress.is_pressed)
        if problem.objective == "cost":
            require_prices(problem)
        plan = self.watched_search(problem, model, seed, progress)
        return self.completed(finish(plan, progress, seed, self.name, model))

    def watched_search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """:meth:`search`, where compiling kernels takes no budget and ends soon once the search is cancelled."""
        with watched_compiling(progress):
            try:
                return self.search(problem, model, seed, progress)
            except CancelledWhileCompiling:
                plan = plan_without_kernels(model, progress)
        if not progress.events:
            value = value_of(plan)
            progress.report(value, None, tuple(tuple(r[0] for r in s.replicas) for s in plan.stages), "done")
        return plan

    def check(self, problem: Problem, start: Plan | None = None) -> None:
        """Refuses what this planner cannot do. Raises InvalidInput."""
        if problem.objective not in self.objectives:
            raise InvalidInput(
                f"planner {self.name}: plans for objective {' or '.join(self.objectives)}, not {problem.objective};"
                " choose another objective or planner"
            )
        if problem.constraints.pinned and (problem.objective == "dtfm" or not self.honours_pins):
            raise InvalidInput(
                f"planner {self.name}: cannot keep devices pinned to stages (constraints.pinned) for objective"
                f" {problem.objective}; remove the pins, or choose planner evolution and objective step-time or cost"
            )
        if problem.objective == "dtfm" and problem.is_grouping_open:
            raise InvalidInput("constraints.tensor: objective dtfm knows no tensor parallelism; use step-time or cost")
        if start is not None and not self.takes_start:
            raise InvalidInput(f"planner {self.name}: cannot start from a plan; choose planner evolution, or no start")

    def completed(self, found: SearchResult) -> SearchResult:
        """The result with what this planner has found beside the plan."""
        return found

    @abstractmethod
    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """The best plan found; counts evaluations and reports events through `progress`, ends when it is over.

        Raises:
            InvalidInput: if the problem's shape contradicts its cluster or model.
            Infeasible: if no plan fits the devices' memory.
        """
