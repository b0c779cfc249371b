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
from hetplanner.planners.finish import fit_plan, fitting_plan, try_plan, usable_rows
from hetplanner.planners.interface import Progress
from hetplanner.planners.population import Evolution, EvolutionSettings, evolve
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_search import StepSpecies

logger = logging.getLogger(__name__)


class EvolutionPlanner(BasePlanner[EvolutionSettings]):
    """Structured seeds, low-temperature annealing, crossover; exact cut, shares and matching inside."""

    name: ClassVar[str] = "evolution"
    summary: ClassVar[str] = "evolutionary search over placement, layer cut, shares and codecs"
    settings_type: ClassVar[type[EvolutionSettings]] = EvolutionSettings

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        if problem.objective == "dtfm":
            return self._solve_dtfm(problem, model, seed, progress)
        return self._solve_step(problem, model, seed, progress)

    def _solve_dtfm(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        species = dtfm_species(problem, fixed_shape(problem), seed, self.settings.starts)
        evolution = Evolution(species, self.settings, progress, np.random.default_rng([seed, 0]))
        evolve([evolution], progress)
        try:
            return fit_plan(usable_rows(problem)[species.placement_SR(evolution.best)], model)
        except Infeasible:
            # The published objective knows no memory: better a placement that fits than none.
            plan = fitting_plan(species.stages, species.replicas, model)
            if plan is None:
                raise
            return plan

    def _solve_step(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        species = [
            StepSpecies(model, shape, seed, self.settings.starts, recompute=recompute)
            for shape, recompute in feasible_shapes(model, free_shapes(problem, model.tables))
        ]
        streams = [np.random.default_rng([seed, 0, i]) for i in range(len(species))]
        evolutions = [Evolution(one, self.settings, progress, rng) for one, rng in zip(species, streams, strict=True)]
        evolve(evolutions, progress)
        for i in sorted(range(len(species)), key=lambda k: evolutions[k].best.value):
            plan = try_plan(species[i].layout(evolutions[i].best), model)
            if plan is not None:
                return plan
        for one in species:
            plan = fitting_plan(one.stages, one.replicas, model)
            if plan is not None:
                return plan
        raise explain_infeasible(problem, model.tables, species[0].stages, species[0].replicas)
