"""The evolutionary search, for all objectives: DT-FM's own, step time, tokens per dollar."""

from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm_search import dtfm_species
from hetplanner.planners.finish import fit_plan, fitting_plan, usable_rows
from hetplanner.planners.interface import Progress
from hetplanner.planners.population import Evolution, EvolutionSettings, evolve
from hetplanner.planners.shapes import fixed_shape
from hetplanner.planners.step_plan import StepSearch

logger = logging.getLogger(__name__)

# Moves of a chain times devices, at most: so chains last a fraction of a second on thousands of devices too.
LONGEST_CHAIN = 2**24
# Candidates kept for objective dtfm unless set: with few, a second is enough to anneal each often.
DTFM_POPULATION = 6


class EvolutionPlanner(BasePlanner[EvolutionSettings]):
    """Structured seeds, low-temperature annealing, crossover; exact cut, shares and matching inside."""

    name: ClassVar[str] = "evolution"
    summary: ClassVar[str] = "evolutionary search over placement, layer cut, shares and codecs"
    settings_type: ClassVar[type[EvolutionSettings]] = EvolutionSettings

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        if problem.objective == "dtfm":
            return self._solve_dtfm(problem, model, seed, progress)
        search = StepSearch(model, self.settings, seed, progress)
        progress.hold_back(search.judging_share)
        evolve(search.evolutions, progress, search.extra)
        progress.hold_back(0.0)
        search.prove()
        plan = search.plan()
        if plan is None:
            raise explain_infeasible(problem, model.tables, *search.largest_shape)
        return plan

    def _solve_dtfm(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        species = dtfm_species(problem, fixed_shape(problem), seed, self.settings.starts)
        settings = dtfm_settings(self.settings, len(problem.usable_devices))
        evolution = Evolution(species, settings, progress, np.random.default_rng([seed, 0]))
        evolve([evolution], progress, bound=species.lower_bound)
        try:
            return fit_plan(usable_rows(problem)[species.placement_SR(evolution.best)], model)
        except Infeasible:
            # The published objective knows no memory: better a placement that fits than none.
            plan = fitting_plan(species.stages, species.replicas, model)
            if plan is None:
                raise
            return plan


def dtfm_settings(settings: EvolutionSettings, num_devices: int) -> EvolutionSettings:
    """The settings as the search for objective dtfm on so many devices takes them."""
    chain = max(100, min(settings.chain, LONGEST_CHAIN // num_devices))
    population = settings.population if "population" in settings.model_fields_set else DTFM_POPULATION
    return settings.model_copy(update={"chain": chain, "population": population})
