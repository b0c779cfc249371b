"""The baseline without thought: uniform random placements, pipelines matched, cut and shares fitted."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Provenance
from hetplanner.plan.problem import Problem
from hetplanner.planners.dtfm_search import DtfmSpecies, dtfm_species
from hetplanner.planners.finish import finish, fit_plan, usable_rows
from hetplanner.planners.interface import (
    Budget,
    OnEvent,
    PlannerSettings,
    Progress,
    SearchResult,
    ShouldStop,
)
from hetplanner.planners.layout import plan_of, require_prices
from hetplanner.planners.population import Candidate
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_search import StepSpecies


class RandomSettings(PlannerSettings):
    """Settings of the random baseline."""

    keep: Literal["first", "best"] = Field(
        "first", description="first: what one random placement costs; best: random search over the budget"
    )
    most: int = Field(1000, ge=1, le=1_000_000, description="placements tried at most when keeping the best")


class RandomPlanner:
    """Uniform placements from the seed; every one gets matched pipelines, its best cut and shares."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "baseline: random placement (matched, cut and shares fitted)"
    settings_type: ClassVar[type[RandomSettings]] = RandomSettings

    def __init__(self, settings: RandomSettings | None = None) -> None:
        self.settings = settings or RandomSettings()

    def solve(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        budget: Budget | str | float | None = None,
        on_event: OnEvent | None = None,
        should_stop: ShouldStop | None = None,
    ) -> SearchResult:
        """See :class:`hetplanner.planners.interface.Planner`."""
        progress = Progress(Budget.parse(budget), on_event, should_stop)
        model = CostModel.of(problem)
        if problem.objective == "cost":
            require_prices(problem)
        rng = np.random.default_rng([seed, 2])
        species = make_species(model, problem, seed, rng)
        keep = 1 if self.settings.keep == "first" else self.settings.most
        tried: list[Candidate] = []
        while not tried or (len(tried) < keep and not progress.is_over()):
            tried.append(species.random())
            progress.evaluations += 1
            if progress.is_event_due():
                _report(species, progress, tried, "random")
        _report(species, progress, tried, "done")
        best = min(tried, key=lambda c: c.value)
        if isinstance(species, DtfmSpecies):
            plan = fit_plan(usable_rows(problem)[species.placement_SR(best)], model)
        else:
            plan = plan_of(species.layout(best), model, Provenance())
        return finish(plan, progress, seed, self.name, model)


def make_species(model: CostModel, problem: Problem, seed: int, rng: np.random.Generator) -> DtfmSpecies | StepSpecies:
    """The species of the problem's objective; a free shape is drawn from those that fit."""
    if problem.objective == "dtfm":
        return dtfm_species(problem, fixed_shape(problem), seed, "random")
    options = feasible_shapes(model, free_shapes(problem, model.tables))
    shape, recompute = options[int(rng.integers(len(options)))]
    return StepSpecies(model, shape, seed, "random", recompute=recompute)


def _report(species: DtfmSpecies | StepSpecies, progress: Progress, tried: list[Candidate], phase: str) -> None:
    values = np.array([c.value for c in tried])
    best = min(tried, key=lambda c: c.value)
    progress.report(best.value, float(values.mean()), float(values.std()), species.placement(best), phase)
