"""Every placement and every cut of a small problem: the optimum that other planners are held against.

For DT-FM's objective it is the optimum over all partitions, matchings and stage orders. For the others it is the
optimum over placements x cuts x micro-batch shares of plans with equally many replicas in every stage and the greatest
depth that memory allows. Devices that can change places without a trace count once.

Legend of array suffixes: D devices, N devices in use first (spare ones after), S stages, R replicas, C cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, islice
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm_search import dtfm_species
from hetplanner.planners.finish import fit_plan, try_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.layout import value_of
from hetplanner.planners.population import Candidate
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_search import StepSpecies
from hetplanner.planners.symmetry import least_placements, list_partitions, list_placements, twins_of

IntArray = NDArray[np.int64]
Placements = Callable[[], Iterator[tuple[int, ...]]]
# Layouts scored between two looks at the budget.
CHUNK = 100_000


class ExhaustiveSettings(PlannerSettings):
    """Settings of the exhaustive search."""

    most: int = Field(
        2_000_000, ge=1, le=100_000_000, description="layouts (placements x cuts x shares) it tries at most"
    )


class ExhaustivePlanner(BasePlanner[ExhaustiveSettings]):
    """Tries everything, refuses what is too much; a budget that ends before leaves the best so far."""

    name: ClassVar[str] = "exhaustive"
    summary: ClassVar[str] = "every placement and cut of a small problem; refuses large ones"
    settings_type: ClassVar[type[ExhaustiveSettings]] = ExhaustiveSettings

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        if problem.objective == "dtfm":
            return self._search_dtfm(problem, model, progress)
        best: Plan | None = None
        shapes = feasible_shapes(model, free_shapes(problem, model.tables))
        spaces = [_StepSpace(model, shape, recompute) for shape, recompute in shapes]
        self._refuse_large([(space.list_placements, space.least_placements, space.variants) for space in spaces])
        progress.start_budget()
        for space in spaces:
            candidate = space.search(progress)
            plan = try_plan(space.species.layout(candidate), model)
            if plan is not None and (best is None or value_of(plan) < value_of(best)):
                best = plan
            if best is not None and progress.is_over():
                break
        if best is None:
            raise explain_infeasible(problem, model.tables, *shapes[-1][0])
        value = value_of(best)
        progress.report(value, value, 0.0, tuple(tuple(r[0] for r in s.replicas) for s in best.stages), "done")
        return best

    def _search_dtfm(self, problem: Problem, model: CostModel, progress: Progress) -> Plan:
        species = dtfm_species(problem, fixed_shape(problem), 0, "structured")
        twins = twins_of(species.pair_costs)

        def placements() -> Iterator[tuple[int, ...]]:
            return list_partitions(twins, species.stages, species.replicas)

        self._refuse_large([(placements, least_placements(twins, species.stages, species.replicas, ordered=False), 1)])
        progress.start_budget()
        best: Candidate | None = None
        for batch in _batches(placements(), len(twins), CHUNK // 100):
            found = species.best_of(batch)
            progress.evaluations += len(batch)
            best = found if best is None or found.value < best.value else best
            if progress.is_event_due():
                progress.report(best.value, best.value, 0.0, species.placement(best), "all")
            if progress.is_over():
                break
        assert best is not None
        progress.report(best.value, best.value, 0.0, species.placement(best), "done")
        return fit_plan(usable_rows(problem)[species.placement_SR(best)], model)

    def _refuse_large(self, spaces: list[tuple[Placements, int, int]]) -> None:
        """Counts layouts without scoring them. Raises InvalidInput above the limit."""
        left = self.settings.most
        for placements, least, each in spaces:
            room = left // each
            count = least if least > room else sum(1 for _ in islice(placements(), room + 1))
            if count > room:
                raise InvalidInput(
                    f"planner exhaustive: the problem has more than {self.settings.most} layouts (placements x cuts x"
                    " shares); use fewer devices or micro-batches, fix stages and replicas, or choose planner evolution"
                )
            left -= count * each


class _StepSpace:
    """All layouts of one shape for the closed form."""

    def __init__(self, model: CostModel, shape: tuple[int, int], recompute: bool) -> None:
        self.species = StepSpecies(model, shape, 0, "structured", recompute=recompute)
        self._twins = self.species.twins()
        self._shape = shape
        self._num_cuts = len(model.tables.cuts)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        self.least_placements = least_placements(self._twins, *shape, ordered=True)
        self.variants = comb(self._num_cuts, shape[0] - 1) * comb(self._micro_batches - 1, shape[1] - 1)

    def list_placements(self) -> Iterator[tuple[int, ...]]:
        """Placements in the species' numbers of devices."""
        return list_placements(self._twins, *self._shape)

    def search(self, progress: Progress) -> Candidate:
        """The best layout of this shape, or the best met when the budget ends."""
        stages, replicas = self._shape
        cuts = _splits(self._num_cuts + 1, stages)
        shares = np.diff(_splits(self._micro_batches, replicas), axis=1)
        size = max(1, CHUNK // self.variants)
        best: Candidate | None = None
        for batch in _batches(self.list_placements(), len(self._twins), size):
            found = self.species.best_of(batch, cuts, shares)
            progress.evaluations += len(batch) * self.variants
            best = found if best is None or found.value < best.value else best
            if progress.is_over():
                break
        assert best is not None
        return best


def _splits(total: int, parts: int) -> IntArray:
    """All ways to split a whole number into parts of at least one, as boundaries from 0 to the number."""
    inner = combinations(range(1, total), parts - 1)
    return np.array([[0, *ends, total] for ends in inner], dtype=np.int64)


def _batches(placements: Iterator[tuple[int, ...]], num_devices: int, size: int) -> Iterator[IntArray]:
    """Placements in batches, the devices that are not in use behind the others."""
    while chunk := list(islice(placements, size)):
        used = np.array(chunk, dtype=np.int64)
        if used.shape[1] < num_devices:
            spare = np.array([np.setdiff1d(np.arange(num_devices), row) for row in used])
            used = np.concatenate([used, spare], axis=1)
        yield used
