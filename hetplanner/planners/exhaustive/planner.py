"""Every placement and every cut of a small problem: the optimum that other planners are held against.

For DT-FM's objective it is the optimum over all partitions, matchings and stage orders. For the others it is the
optimum over placements x cuts x micro-batch shares of plans with equally many replicas in every stage, the greatest
depth that memory allows and the sharded parameter server; where others are allowed, the reducer of the best layout is
chosen afterwards, so that another layout might be better with it. Devices that can change places without a trace
count once.

Legend of array suffixes: D devices, N devices in use first (spare ones after), S stages, R replicas, C cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm.factory import dtfm_species
from hetplanner.planners.dtfm.species import EXACT_STAGES
from hetplanner.planners.exhaustive.enumeration import StepLayouts, count_placements, in_parts, num_variants
from hetplanner.planners.exhaustive.symmetry import Listing, least_placements, twins_of
from hetplanner.planners.finish import fit_plan, fitting_plan, try_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.layout import value_of
from hetplanner.planners.search.population import Candidate
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_time.space import StepSpaces
from hetplanner.planners.step_time.species import StepSpecies

# Of the time, for counting.
COUNTING_SHARE = 0.5
# Work of scoring partitions (their stages' orders are exact up to `EXACT_STAGES`) between two looks at the budget.
DTFM_CHUNK = 2**22


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
        """See :meth:`hetplanner.planners.base.BasePlanner.search`; counting layouts is part of the budget."""
        progress.start_budget()
        if problem.objective == "dtfm":
            return self._search_dtfm(problem, model, progress)
        best: Plan | None = None
        shapes = feasible_shapes(model, free_shapes(problem, model.tables))
        if any(num_variants(model, *shape) > self.settings.most for shape, _ in shapes):
            raise self._too_large()  # before tables for thousands of devices are made
        tables = StepSpaces(model)
        spaces = [
            StepLayouts(
                model,
                StepSpecies(model, shape, 0, "structured", recompute=recompute, space=tables.of(recompute=recompute)),
            )
            for shape, recompute in shapes
        ]
        self._refuse_large([(space.least_placements, space.listing, space.variants) for space in spaces], progress)
        for space in spaces:
            candidate = space.search(progress)
            plan = try_plan(space.species.layout(candidate), model)
            if plan is not None and (best is None or value_of(plan) < value_of(best)):
                best = plan
            if best is not None and progress.is_over():
                break
        if best is None and not problem.constraints.pinned:
            # What was met before the budget ended may have fitted no memory.
            best = next((plan for (shape, _) in shapes if (plan := fitting_plan(*shape, model)) is not None), None)
        if best is None:
            raise explain_infeasible(problem, model.tables, *shapes[-1][0])
        value = value_of(best)
        progress.report(value, None, tuple(tuple(r[0] for r in s.replicas) for s in best.stages), "done")
        return best

    def _search_dtfm(self, problem: Problem, model: CostModel, progress: Progress) -> Plan:
        species = dtfm_species(problem, fixed_shape(problem), 0, "structured")
        twins, shape = twins_of(species.pair_costs), (species.stages, species.replicas)

        def listing() -> Listing:
            return Listing(twins, shape, is_named=False)

        self._refuse_large([(least_placements(twins, *shape, is_named=False), listing, 1)], progress)
        best: Candidate | None = None
        for batch in in_parts(listing(), len(twins), dtfm_chunk(species.stages)):
            found = species.best_of(batch)
            progress.evaluations += len(batch)
            best = found if best is None or found.value < best.value else best
            if progress.is_event_due():
                progress.report(best.value, None, species.placement(best), "all")
            if progress.is_over():
                break
        assert best is not None
        progress.report(best.value, None, species.placement(best), "done")
        return fit_plan(usable_rows(problem)[species.placement_SR(best)], model)

    def _refuse_large(self, spaces: list[tuple[int, Callable[[], Listing], int]], progress: Progress) -> None:
        """Counts layouts without scoring them, for half of the budget's time at most.

        Args:
            spaces: of every shape: placements that it has at least, their listing, and layouts of each placement.
            progress: once it is cancelled nothing more is counted.

        Raises:
            InvalidInput: above the limit.
        """
        left = self.settings.most
        progress.hold_back(COUNTING_SHARE)
        for least, listing, each in spaces:
            room = left // each
            count = least if least > room else count_placements(listing(), room, progress)
            if count is None:
                break
            if count > room:
                raise self._too_large()
            left -= count * each
        progress.hold_back(0.0)

    def _too_large(self) -> InvalidInput:
        return InvalidInput(
            f"planner exhaustive: the problem has more than {self.settings.most} layouts (placements x cuts x shares);"
            " use fewer devices or micro-batches, fix stages and replicas, or choose planner evolution"
        )


def dtfm_chunk(stages: int) -> int:
    """Partitions to score between two looks at the budget."""
    return max(1, min(1000, DTFM_CHUNK // (2 ** min(stages, EXACT_STAGES) * stages**2)))
