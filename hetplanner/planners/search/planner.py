"""The evolutionary search, for all objectives: DT-FM's own, step time, tokens per dollar."""

from __future__ import annotations

from typing import ClassVar

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm.plan import DtfmSearch
from hetplanner.planners.interface import Progress
from hetplanner.planners.search.ancestry import ancestors_of
from hetplanner.planners.search.island_search import evolve_islands
from hetplanner.planners.search.population import EvolutionSettings, evolve, leader_of
from hetplanner.planners.search.tried import tried_shapes
from hetplanner.planners.step_time.plan import StepSearch


class EvolutionPlanner(BasePlanner[EvolutionSettings]):
    """Structured seeds, low-temperature annealing, crossover; exact cut, shares and matching inside."""

    name: ClassVar[str] = "evolution"
    summary: ClassVar[str] = "evolutionary search over placement, layer cut, shares and codecs"
    settings_type: ClassVar[type[EvolutionSettings]] = EvolutionSettings
    honours_pins: ClassVar[bool] = True
    takes_start: ClassVar[bool] = True

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        search = make_search(model, self.settings, seed, progress)
        progress.hold_back(search.judging_share)
        if self.settings.islands > 1:
            evolve_islands(make_search, search, problem, seed, progress)
        else:
            evolve(search.evolutions, progress, search.extra, search.bound)
        progress.hold_back(0.0)
        progress.tried = tried_shapes(search.evolutions)
        if self.settings.islands == 1:  # islands do not hand parents on
            progress.ancestry = ancestors_of(leader_of(search.evolutions).best.birth)
        search.prove()
        plan = search.plan()
        if plan is None:
            raise explain_infeasible(problem, model.tables, *search.largest_shape)
        return plan


def make_search(
    model: CostModel, settings: EvolutionSettings, seed: int, progress: Progress
) -> DtfmSearch | StepSearch:
    """The populations for a problem's objective. Raises InvalidInput or Infeasible, as the search does."""
    if model.tables.problem.objective == "dtfm":
        return DtfmSearch(model, settings, seed, progress)
    return StepSearch(model, settings, seed, progress)
