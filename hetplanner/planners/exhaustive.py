"""Every placement and every cut of a small problem: the optimum that other planners are held against.

For DT-FM's objective it is the optimum over all partitions, matchings and stage orders. For the others it is the
optimum over placements x cuts x micro-batch shares of plans with equally many replicas in every stage, the greatest
depth that memory allows and the sharded parameter server; where others are allowed, the reducer of the best layout is
chosen afterwards, so that another layout might be better with it. Devices that can change places without a trace
count once.

Legend of array suffixes: D devices, N devices in use first (spare ones after), S stages, R replicas, C cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
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
from hetplanner.planners.enumeration import CHUNK, StepLayouts, in_batches_of
from hetplanner.planners.finish import fit_plan, try_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.layout import value_of
from hetplanner.planners.population import Candidate
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_search import StepSpecies
from hetplanner.planners.step_space import StepSpaces
from hetplanner.planners.symmetry import least_placements, list_partitions, twins_of

IntArray = NDArray[np.int64]
Placements = Callable[[], Iterator[tuple[int, ...]]]


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
    honours_pins: ClassVar[bool] = True

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        if problem.objective == "dtfm":
            return self._search_dtfm(problem, model, progress)
        best: Plan | None = None
        shapes = feasible_shapes(model, free_shapes(problem, model.tables))
        tables = StepSpaces(model)
        spaces = [
            StepLayouts(
                model,
                StepSpecies(model, shape, 0, "structured", recompute=recompute, space=tables.of(recompute=recompute)),
            )
            for shape, recompute in shapes
        ]
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
        for batch in in_batches_of(placements(), len(twins), CHUNK // 100):
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
