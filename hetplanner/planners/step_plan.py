"""The search for a whole plan: populations of all shapes, and the plan that comes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.planners.baseline_starts import BaselineStarts
from hetplanner.planners.finish import fitting_plan
from hetplanner.planners.interface import Progress
from hetplanner.planners.judge import best_plan
from hetplanner.planners.population import Candidate, Evolution, EvolutionSettings, warm_up
from hetplanner.planners.ragged_search import RaggedSpecies
from hetplanner.planners.shapes import feasible_shapes, free_shapes
from hetplanner.planners.step_search import FEW_DEVICES, StepSpecies
from hetplanner.planners.step_space import StepSpaces

# Of a time budget, for completing and simulating the finalists.
JUDGING_SHARE = 0.15
# Scoring a first guess without kernels takes some milliseconds per hundred devices.
MOST_GUESSES = 24
GUESSED_DEVICES = 2048
# Between the kernels and a finished plan, whose shards are whole elements.
ROUNDING = 1e-6


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
        few = len(problem.usable_devices) <= FEW_DEVICES
        options = feasible_shapes(model, free_shapes(problem, model.tables, spare=True), both=few)
        spaces, begin = StepSpaces(model), BaselineStarts(model).of
        self._species: list[StepSpecies | RaggedSpecies] = [
            StepSpecies(
                model,
                shape,
                seed,
                settings.starts,
                recompute=recompute,
                begin=begin,
                space=spaces.of(shape[0], recompute=recompute),
            )
            for shape, recompute in options
        ]
        if problem.constraints.replicas is None:
            for stages, recompute in sorted({(shape[0], recompute) for shape, recompute in options}):
                if 1 < stages < len(problem.usable_devices):
                    self._species.append(
                        RaggedSpecies(
                            model, stages, seed, recompute=recompute, space=spaces.of(stages, recompute=recompute)
                        )
                    )
        self._shapes = [shape for shape, _ in options]
        self.largest_shape = max(self._shapes)
        # First the shapes with the most devices: of small ones there are many.
        used = sorted(range(len(options)), key=lambda i: -options[i][0][0] * options[i][0][1])
        guessed = set(used[: max(1, min(MOST_GUESSES, GUESSED_DEVICES // len(problem.usable_devices)))])
        self.evolutions = [
            Evolution(one, settings, progress, np.random.default_rng([seed, 0, i]), guess=i in guessed)
            for i, one in enumerate(self._species)
        ]

    def extra(self, ahead: list[Evolution]) -> list[Evolution]:
        """Ragged layouts with as many stages as the best equal ones (of two and more), which go on from these."""
        for equal in ahead:
            for evolution in self.evolutions:
                leader, ragged = equal.species, evolution.species
                if isinstance(leader, StepSpecies) and isinstance(ragged, RaggedSpecies) and ragged.is_like(leader):
                    evolution.adopt([ragged.of_equal(candidate) for candidate in equal.population])
                    return [evolution]
        return []

    @property
    def judging_share(self) -> float:
        """Of the time, what the finalists need."""
        return JUDGING_SHARE if self._settings.finalists > 1 else 0.0

    def prove(self) -> None:
        """Raises the lower bound to the best of all layouts, where every one was tried.

        The kernels know dense messages and the sharded parameter server; other choices may be better.
        """
        problem, known = self._model.tables.problem, (("none",), ("sharded-ps",))
        if (problem.constraints.codecs, problem.constraints.reducers) == known and all(
            e.is_settled for e in self.evolutions
        ):
            value = min(e.value for e in self.evolutions) * (1.0 - ROUNDING)
            per_mtoken = 1e6 / problem.workload.tokens_per_step if problem.objective == "cost" else 1.0
            self._progress.lower_bound = value * per_mtoken

    def plan(self) -> Plan | None:
        """The plan to emit; None if nothing fits the devices' memory."""
        plans = self._plans(self._settings.finalists)
        if not plans:
            warm_up(self.evolutions)
            for evolution in self.evolutions:
                evolution.screen()
            plans = self._plans(1)
        if not plans:
            last_resort = (fitting_plan(*shape, self._model) for shape in self._shapes)
            plans = [plan for plan in last_resort if plan is not None][:1]
        rivals = self._rivals()
        budget = self._progress.budget
        searched = budget.seconds != 0.0 and budget.evaluations != 0
        simulated = searched and self._settings.finalists > 1
        return best_plan(plans, rivals, self._model, self._progress, simulated=simulated)

    def _plans(self, most: int) -> list[Plan]:
        """The best candidates that make plans, best first."""
        plans: list[Plan] = []
        for species, candidate in self._ranked():
            plan = species.plan(candidate)
            if plan is not None:
                plans.append(plan)
            if len(plans) == most or (plans and (self._progress.cancelled or self._progress.is_late())):
                break
        return plans

    def _rivals(self) -> list[Plan]:
        """What the best baseline would do."""
        known = [(species.rival.value, i) for i, species in enumerate(self._species) if species.rival is not None]
        for _, i in sorted(known):
            rival = self._species[i].rival
            plan = self._species[i].plan(rival) if rival else None
            if plan is not None:
                return [plan]
        return []

    def _ranked(self) -> Iterator[tuple[StepSpecies | RaggedSpecies, Candidate]]:
        found = [(c.value, i, k) for i, e in enumerate(self.evolutions) for k, c in enumerate(e.population)]
        for _, i, k in sorted(found):
            yield self._species[i], self.evolutions[i].population[k]
