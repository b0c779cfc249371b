"""The search for a whole plan: populations of all shapes, and the plan that comes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.planners.finish import fitting_plan
from hetplanner.planners.interface import Progress
from hetplanner.planners.search.population import Candidate, Evolution, EvolutionSettings, warm_up
from hetplanner.planners.search.rescoring import best_plan
from hetplanner.planners.shapes import feasible_shapes, free_shapes
from hetplanner.planners.step_time.ragged import RaggedSpecies
from hetplanner.planners.step_time.space import StepSpaces
from hetplanner.planners.step_time.species import FEW_DEVICES, Start, StepSpecies
from hetplanner.planners.step_time.starts import BaselineStarts
from hetplanner.planners.step_time.warm_start import WarmStart

# Of a time budget, for completing and simulating the finalists.
JUDGING_SHARE = 0.15
# Scoring a first guess without kernels takes some milliseconds per hundred devices.
MOST_GUESSES = 24
GUESSED_DEVICES = 2048
# Moves of a chain times devices, at most.
LONGEST_CHAIN = 2**22
# Completing a plan takes a good tenth of a millisecond per device; on thousands of devices only a few are judged.
FINISHED_DEVICES = 8192
FEWEST_FINALISTS = 2
# Between the kernels and a finished plan, whose shards are whole elements.
ROUNDING = 1e-6

Option = tuple[tuple[int, int], bool]


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
        self._start = WarmStart(progress.start, model) if progress.start else None
        self._spaces, self._baselines = StepSpaces(model), BaselineStarts(model)
        options = self._options()
        self._shapes = [shape for shape, _ in options]
        self.largest_shape = max(self._shapes)
        self._species = self._in_order([*self._equal(options, seed), *self._ragged(options, seed)])
        guessed = self._guessed()
        # Chains last a fraction of a second on thousands of devices too.
        chain = max(100, min(settings.chain, LONGEST_CHAIN // len(self._spaces.usable)))
        settings = settings.model_copy(update={"chain": chain})
        self.evolutions = [
            Evolution(one, settings, progress, np.random.default_rng([seed, 0, i]), guess=i in guessed)
            for i, one in enumerate(self._species)
        ]

    def _options(self) -> list[Option]:
        """Shapes that memory allows, that of the plan to begin with among them where the problem allows it."""
        model, start = self._model, self._start
        problem = model.tables.problem
        few = len(problem.usable_devices) <= FEW_DEVICES
        options = feasible_shapes(model, free_shapes(problem, model.tables, spare=True), both=few)
        if start is None or start.plan is None or start.shape is None:
            return options
        return list(dict.fromkeys([*options, (start.shape, start.recompute)]))

    def _in_order(self, species: list[StepSpecies | RaggedSpecies]) -> list[StepSpecies | RaggedSpecies]:
        """First what baselines choose from, then shapes with idle devices; each spread, so that a few will do."""
        tables, start = self._model.tables, self._start
        usual = {*free_shapes(tables.problem, tables), *([start.shape] if start and start.shape else [])}
        first = [s for s in species if isinstance(s, RaggedSpecies) or (s.stages, s.replicas) in usual]
        return _spread(first) + _spread([s for s in species if s not in first])

    def _guessed(self) -> set[int]:
        """Of which species to make first plans: the shapes with the most devices, pipelines before large groups."""
        sizes = [
            (-s.stages * s.replicas, s.replicas, i) for i, s in enumerate(self._species) if isinstance(s, StepSpecies)
        ]
        return {i for *_, i in sorted(sizes)[: max(1, min(MOST_GUESSES, GUESSED_DEVICES // len(self._spaces.usable)))]}

    def _equal(self, options: list[Option], seed: int) -> Iterator[StepSpecies]:
        for shape, recompute in options:
            space, starts = self._spaces.of(recompute=recompute), self._settings.starts
            yield StepSpecies(self._model, shape, seed, starts, recompute=recompute, begin=self._begin, space=space)

    def _ragged(self, options: list[Option], seed: int) -> Iterator[RaggedSpecies]:
        """One for each number of stages, where the number of replicas is free."""
        if self._model.tables.problem.constraints.replicas is not None:
            return
        for stages, recompute in sorted({(shape[0], recompute) for shape, recompute in options}):
            space = self._spaces.of(recompute=recompute)
            if 1 < stages < len(self._spaces.usable):
                yield RaggedSpecies(
                    self._model, stages, seed, recompute=recompute, space=space, begin=self._start, walk=self._walk
                )

    def _walk(self) -> IntArray:
        return self._baselines.walk_D

    def _begin(self, shape: tuple[int, int]) -> list[Start]:
        """Layouts that the population of a shape begins with."""
        known = self._baselines.of(shape) if self._settings.starts == "structured" else []
        return known + (self._start.of(shape) if self._start else [])

    @property
    def bound(self) -> None:
        """Known only behind the search: computing it takes longer than many searches."""
        return None

    def extra(self, ahead: list[Evolution]) -> list[Evolution]:
        """Ragged layouts with as many stages as the best equal ones (of two and more), which go on from these."""
        for equal in ahead:
            for evolution in self.evolutions:
                leader, ragged = equal.species, evolution.species
                if isinstance(leader, StepSpecies) and isinstance(ragged, RaggedSpecies) and ragged.is_like(leader):
                    evolution.adopt([ragged.of_equal(one)._replace(birth=one.birth) for one in equal.population])
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
            self._progress.lower_bound = min(e.value for e in self.evolutions) * (1.0 - ROUNDING)

    def plan(self) -> Plan | None:
        """The plan to emit; None if nothing fits the devices' memory."""
        most = min(self._settings.finalists, max(FEWEST_FINALISTS, FINISHED_DEVICES // len(self._spaces.usable)))
        plans = self._plans(most)
        if not plans:
            warm_up(self.evolutions)
            for evolution in self.evolutions:
                evolution.screen()
            plans = self._plans(1)
        if not plans and not self._model.tables.problem.constraints.pinned:
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
        """The plan to begin with, and what the best baseline would do."""
        begun = [self._start.plan] if self._start and self._start.plan else []
        known = [(e.rival.value, i) for i, e in enumerate(self.evolutions) if e.rival is not None]
        for _, i in sorted(known):
            rival = self.evolutions[i].rival
            plan = self._species[i].plan(rival) if rival else None
            if plan is not None:
                return [*begun, plan]
        return begun

    def _ranked(self) -> Iterator[tuple[StepSpecies | RaggedSpecies, Candidate]]:
        found = [(c.value, i, k) for i, e in enumerate(self.evolutions) for k, c in enumerate(e.population)]
        for _, i, k in sorted(found):
            yield self._species[i], self.evolutions[i].population[k]


def _spread(species: list[StepSpecies | RaggedSpecies]) -> list[StepSpecies | RaggedSpecies]:
    """The same ever more finely: by the number's bits back to front."""
    return [species[k] for k in sorted(range(len(species)), key=lambda k: int(f"{k:032b}"[::-1], 2))]
