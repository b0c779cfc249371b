"""The baseline without thought: uniform random placements, pipelines matched, cut and shares fitted."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm.factory import dtfm_species
from hetplanner.planners.dtfm.species import DtfmSpecies
from hetplanner.planners.finish import fit_plan, try_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress, Quantiles
from hetplanner.planners.search.population import Candidate
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_time.species import StepSpecies

# Placements that do not fit the devices' memory are drawn anew, this often.
MOST_UNFIT = 100


class RandomSettings(PlannerSettings):
    """Settings of the random baseline."""

    keep: Literal["first", "best"] = Field(
        "first", description="first: what one random placement costs; best: random search over the budget"
    )
    most: int = Field(1000, ge=1, le=1_000_000, description="placements tried at most when keeping the best")


class RandomPlanner(BasePlanner[RandomSettings]):
    """Uniform placements from the seed; every one gets matched pipelines, its best cut and shares."""

    name: ClassVar[str] = "random"
    is_baseline: ClassVar[bool] = True
    summary: ClassVar[str] = "baseline: random placement (matched, cut and shares fitted)"
    settings_type: ClassVar[type[RandomSettings]] = RandomSettings
    honours_pins: ClassVar[bool] = True

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        rng = np.random.default_rng([seed, 2])
        species = make_species(model, problem, seed, rng)
        keep = 1 if self.settings.keep == "first" else self.settings.most
        tried: list[Candidate] = []
        plan: Plan | None = None
        while plan is None or (len(tried) < keep and not progress.is_over()):
            if len(tried) >= max(keep, MOST_UNFIT):
                raise explain_infeasible(problem, model.tables, species.stages, species.replicas)
            tried.append(species.random())
            progress.evaluations += 1
            if plan is None or tried[-1].value < min(c.value for c in tried[:-1]):
                plan = _plan(species, tried[-1], model) or plan
            if progress.is_event_due():
                _report(species, progress, tried, "random")
        _report(species, progress, tried, "done")
        return plan


def _plan(species: DtfmSpecies | StepSpecies, candidate: Candidate, model: CostModel) -> Plan | None:
    """The plan of a candidate, or None if it does not fit."""
    if isinstance(species, StepSpecies):
        return try_plan(species.layout(candidate), model)
    try:
        return fit_plan(usable_rows(model.tables.problem)[species.placement_SR(candidate)], model)
    except Infeasible:
        return None


def make_species(model: CostModel, problem: Problem, seed: int, rng: np.random.Generator) -> DtfmSpecies | StepSpecies:
    """The species of the problem's objective; a free shape is drawn from those that fit."""
    if problem.objective == "dtfm":
        return dtfm_species(problem, fixed_shape(problem), seed, "random")
    options = feasible_shapes(model, free_shapes(problem, model.tables))
    shape, recompute = options[int(rng.integers(len(options)))]
    return StepSpecies(model, shape, seed, "random", recompute=recompute)


def _report(species: DtfmSpecies | StepSpecies, progress: Progress, tried: list[Candidate], phase: str) -> None:
    best = min(tried, key=lambda c: c.value)
    progress.report(best.value, Quantiles.of([c.value for c in tried]), species.placement(best), phase)
