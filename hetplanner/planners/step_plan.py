"""The search for a whole plan: populations of all shapes, and the plan that comes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.planners.baseline_starts import BaselineStarts
from hetplanner.planners.finish import try_plan
from hetplanner.planners.interface import Progress
from hetplanner.planners.judge import best_plan
from hetplanner.planners.population import Candidate, Evolution, EvolutionSettings, warm_up
from hetplanner.planners.shapes import feasible_shapes, free_shapes
from hetplanner.planners.step_search import StepSpecies
from hetplanner.planners.step_space import StepSpaces

# Of a time budget, for completing and simulating the finalists.
JUDGING_SHARE = 0.1
# Scoring a first guess without kernels takes some milliseconds per hundred devices.
MOST_GUESSES = 24
GUESSED_DEVICES = 2048


class StepSearch:
    """One population per shape, and what the search makes of them.

    Args:
        model: the cost model of the problem.
        settings: of the search.
        seed: of every random choice.
        progress: clock, budget, events.

    Raises:
        InvalidInput: if the problem's shape contradicts its cluster or model.
        Infeasible: if no shape fits the devices' memory.
    """

    def __init__(self, model: CostModel, settings: EvolutionSettings, seed: int, progress: Progress) -> None:
        self._model, self._settings, self._progress = model, settings, progress
        problem = model.tables.problem
        options = feasible_shapes(model, free_shapes(problem, model.tables, spare=True))
        spaces, begin = StepSpaces(model), BaselineStarts(model).of
        self._species = [
            StepSpecies(model, shape, seed, settings.starts, recompute=recompute, spaces=spaces, begin=begin)
            for shape, recompute in options
        ]
        self.largest_shape = max(shape for shape, _ in options)
        # First the shapes with the most devices: of small ones there are many.
        used = sorted(range(len(options)), key=lambda i: -options[i][0][0] * options[i][0][1])
        guessed = set(used[: max(1, min(MOST_GUESSES, GUESSED_DEVICES // len(problem.usable_devices)))])
        self.evolutions = [
            Evolution(one, settings, progress, np.random.default_rng([seed, 0, i]), guess=i in guessed)
            for i, one in enumerate(self._species)
        ]

    @property
    def judging_share(self) -> float:
        """Of the time, what the finalists need."""
        return JUDGING_SHARE if self._settings.finalists > 1 else 0.0

    def plan(self) -> Plan | None:
        """The plan to emit; None if nothing fits the devices' memory."""
        plans = self._plans(self._settings.finalists)
        if not plans:
            warm_up(self.evolutions)
            for evolution in self.evolutions:
                evolution.screen()
            plans = self._plans(1)
        rivals = self._rivals()
        budget = self._progress.budget
        searched = budget.seconds != 0.0 and budget.evaluations != 0
        simulated = searched and self._settings.finalists > 1
        return best_plan(plans, rivals, self._model, self._progress, simulated=simulated)

    def _plans(self, most: int) -> list[Plan]:
        """The best candidates that make plans, best first."""
        plans: list[Plan] = []
        for species, candidate in self._ranked():
            plan = try_plan(species.layout(candidate), self._model)
            if plan is not None:
                plans.append(plan)
            if len(plans) == most or (plans and self._progress.cancelled):
                break
        return plans

    def _rivals(self) -> list[Plan]:
        """What the best baseline would do."""
        known = [(species.rival.value, i) for i, species in enumerate(self._species) if species.rival is not None]
        for _, i in sorted(known):
            rival = self._species[i].rival
            plan = try_plan(self._species[i].layout(rival), self._model) if rival else None
            if plan is not None:
                return [plan]
        return []

    def _ranked(self) -> Iterator[tuple[StepSpecies, Candidate]]:
        found = [(c.value, i, k) for i, e in enumerate(self.evolutions) for k, c in enumerate(e.population)]
        for _, i, k in sorted(found):
            yield self._species[i], self.evolutions[i].population[k]
