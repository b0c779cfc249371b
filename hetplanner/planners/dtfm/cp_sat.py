"""The planner that proves: DT-FM's objective over classes of interchangeable devices, by CP-SAT."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Objective, Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm.certificates import find_classes, load_solver, prove_optimum
from hetplanner.planners.dtfm.factory import dtfm_species
from hetplanner.planners.dtfm.species import DtfmSpecies
from hetplanner.planners.finish import fit_plan, usable_rows
from hetplanner.planners.interface import TAKES_CORES, PlannerSettings, Progress
from hetplanner.planners.search.population import SAME_VALUE, Candidate, Evolution, EvolutionSettings
from hetplanner.planners.shapes import fixed_shape


class CpSatSettings(PlannerSettings):
    """Settings of the proof."""

    workers: int = Field(2, ge=1, le=64, description="threads of the solver", json_schema_extra=TAKES_CORES)
    chunks: int = Field(12, ge=0, le=10_000, description="annealing chains of the search that warms the proof up")


class CpSatPlanner(BasePlanner[CpSatSettings]):
    """A short evolutionary search finds the plan, CP-SAT proves it or finds a better one.

    The evaluations of a budget limit the search before the proof; its seconds limit both.
    """

    name: ClassVar[str] = "cp-sat"
    summary: ClassVar[str] = "proves the optimum of DT-FM's objective where devices fall into few classes (ortools)"
    settings_type: ClassVar[type[CpSatSettings]] = CpSatSettings
    objectives: ClassVar[tuple[Objective, ...]] = ("dtfm",)

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`; also raises InvalidInput without ortools
        and where devices are too unlike."""
        load_solver()
        shape, rows = fixed_shape(problem), usable_rows(problem)
        grid = np.ix_(rows, rows)
        network = problem.cluster.published_delay_ms_DD[grid], problem.cluster.published_bandwidth_gbps_DD[grid]
        shared, piped = pair_costs(*network, shape[1])
        classes = find_classes(shared, piped)
        species = dtfm_species(problem, shape, seed, "structured")
        found = warm_start(species, seed, self.settings.chunks, progress)
        best_s = found.value
        placement = species.placement_SR(found)

        def is_over(_: float) -> bool:
            if progress.is_event_due():
                progress.report(best_s, None, species.placement(found), "prove")
            return progress.is_over()

        value = score_dtfm(placement, *network).total_s
        # Where the cheap bound is met already there is nothing left to prove.
        if not is_over(best_s) and bound_dtfm(shared, piped, *shape) < value * (1 - SAME_VALUE):
            proof = prove_optimum(
                classes,
                shape,
                upper_s=value,
                hint_SC=classes.count(placement),
                seconds=progress.remaining_seconds,
                workers=self.settings.workers,
                seed=seed,
                is_over=is_over,
            )
            progress.lower_bound = proof.lower_bound_s
            if proof.count_SC is not None:
                other = match_columns(classes.place(proof.count_SC), piped)
                other_s = score_dtfm(other, *network).total_s
                if other_s < value * (1 - SAME_VALUE):
                    placement, best_s = other, min(best_s, other_s)
        ids = problem.usable_devices
        progress.report(best_s, None, tuple(tuple(ids[d] for d in row) for row in placement), "done")
        return fit_plan(rows[placement], model)


def warm_start(species: DtfmSpecies, seed: int, chunks: int, progress: Progress) -> Candidate:
    """The best of a short evolutionary search, for so many annealing chains at most."""
    evolution = Evolution(species, EvolutionSettings(), progress, np.random.default_rng([seed, 0]))
    evolution.report("seeds")
    if progress.is_over():
        return evolution.best
    species.warm_up()
    progress.start_budget()
    evolution.init_population()
    for _ in range(chunks):
        if progress.is_over():
            break
        evolution.advance()
        if progress.is_event_due():
            evolution.report(evolution.phase)
    return evolution.best


def match_columns(placement_SR: IntArray, piped_s_DD: FloatArray) -> IntArray:
    """The same stages with their devices lined up, so that every hop is a bottleneck matching."""
    from hetplanner.planners.dtfm import kernels as dtfm_kernels

    stages, replicas = placement_SR.shape
    placed = np.empty((stages, replicas), dtype=np.int64)
    members = np.ascontiguousarray(placement_SR.reshape(-1))
    dtfm_kernels.align_columns(piped_s_DD, members, np.arange(stages), replicas, placed)
    return placed
