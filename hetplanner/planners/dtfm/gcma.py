"""DT-FM's own search (GCMA, NeurIPS 2022) as published, on our kernels: the reference that others are compared with.

Population of random partitions; two uniform parents; five-point crossover on the device -> group string with size
repair; one pass of cyclic partitioning; the offspring replaces the worse parent unless it is worse than both. Groups
are ordered by the exact open path up to the size that allows it. Two defects of the published code are left out: it
overwrites its random seed, and it reads the matching after the edges were removed, so that its plan can miss the cost
it reports. Here the plan is emitted from the matching itself and scored again, from scratch.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.dtfm import pair_costs
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Objective, Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.dtfm.species import EXACT_STAGES
from hetplanner.planners.finish import fit_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress, Quantiles
from hetplanner.planners.shapes import fixed_shape


class GcmaSettings(PlannerSettings):
    """Settings of the published search."""

    population: int = Field(100, ge=2, le=10_000, description="random partitions at the start")
    trials: int = Field(4900, ge=0, le=10_000_000, description="offspring")
    cuts: int = Field(5, ge=1, le=64, description="points of the crossover")


class GcmaPlanner(BasePlanner[GcmaSettings]):
    """Ends after its trials, or before when the budget is spent."""

    name: ClassVar[str] = "gcma"
    summary: ClassVar[str] = "DT-FM's own search as published (objective dtfm only)"
    settings_type: ClassVar[type[GcmaSettings]] = GcmaSettings
    objectives: ClassVar[tuple[Objective, ...]] = ("dtfm",)

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        game = _Partitions(problem, fixed_shape(problem))
        rng = np.random.default_rng([seed, 4])
        progress.start_budget()
        label_PD, cost_P, order_PS = self._init_population(game, rng, progress)
        for _ in range(self.settings.trials):
            if progress.is_over():
                break
            one, two = rng.choice(len(label_PD), size=2, replace=len(label_PD) < 2)
            child = self._offspring(game, label_PD[one], label_PD[two], rng)
            cost, order = game.score(child[None])
            progress.evaluations += 1
            worse = one if cost_P[one] >= cost_P[two] else two
            if cost[0] <= cost_P[worse]:
                label_PD[worse], cost_P[worse], order_PS[worse] = child, cost[0], order[0]
            if progress.is_event_due():
                self._report(game, progress, label_PD, cost_P, order_PS, "evolve")
        self._report(game, progress, label_PD, cost_P, order_PS, "done")
        best = int(np.argmin(cost_P))
        return fit_plan(usable_rows(problem)[game.placement_SR(label_PD[best], order_PS[best])], model)

    def _init_population(
        self, game: _Partitions, rng: np.random.Generator, progress: Progress
    ) -> tuple[IntArray, FloatArray, IntArray]:
        left = progress.remaining_evaluations
        size = self.settings.population if left is None else max(1, min(self.settings.population, left))
        label_PD = np.array([game.random_label(rng) for _ in range(size)])
        cost_P, order_PS = game.score(label_PD)
        progress.evaluations += size
        return label_PD, cost_P, order_PS

    def _offspring(self, game: _Partitions, mother: IntArray, father: IntArray, rng: np.random.Generator) -> IntArray:
        """Crossover, size repair, one pass of local search."""
        from hetplanner.planners.dtfm.gcma_kernels import cycle_groups

        cuts = np.sort(rng.integers(0, len(mother), size=self.settings.cuts))
        odd = np.searchsorted(cuts, np.arange(len(mother)), side="right") % 2 == 1
        child = np.where(odd, father, mother)
        game.repair(child, rng)
        cycle_groups(game.shared_DD, child, game.stages, rng.permutation(game.stages))
        return child

    def _report(
        self,
        game: _Partitions,
        progress: Progress,
        label_PD: IntArray,
        cost_P: FloatArray,
        order_PS: IntArray,
        phase: str,
    ) -> None:
        best = int(np.argmin(cost_P))
        placement = game.placement(label_PD[best], order_PS[best])
        progress.report(float(cost_P[best]), Quantiles.of(cost_P.tolist()), placement, phase)


class _Partitions:
    """Partitions of a problem's usable devices as device -> group strings; the last group is of spare devices."""

    def __init__(self, problem: Problem, shape: tuple[int, int]) -> None:
        self.stages, self.replicas = shape
        self._ids = problem.usable_devices
        rows = usable_rows(problem)
        grid = np.ix_(rows, rows)
        cluster = problem.cluster
        delay, bandwidth = cluster.published_delay_ms_DD[grid], cluster.published_bandwidth_gbps_DD[grid]
        shared, piped = pair_costs(delay, bandwidth, self.replicas)
        self.shared_DD, self.piped_DD = np.ascontiguousarray(shared), np.ascontiguousarray(piped)
        spare = len(rows) - self.stages * self.replicas
        self._size_G = np.array([*[self.replicas] * self.stages, spare])

    def random_label(self, rng: np.random.Generator) -> IntArray:
        """A uniform partition."""
        return rng.permutation(np.repeat(np.arange(self.stages + 1), self._size_G)).astype(np.int64)

    def repair(self, label_D: IntArray, rng: np.random.Generator) -> None:
        """Moves random devices of groups that are too large to groups that are too small, in place."""
        size = np.bincount(label_D, minlength=self.stages + 1)
        missing = np.repeat(np.arange(self.stages + 1), np.maximum(self._size_G - size, 0))
        surplus = [
            device
            for g in np.flatnonzero(size > self._size_G)
            for device in rng.permutation(np.flatnonzero(label_D == g))[: size[g] - self._size_G[g]]
        ]
        label_D[rng.permutation(np.array(surplus, dtype=np.int64))] = missing

    def score(self, label_PD: IntArray) -> tuple[FloatArray, IntArray]:
        """Costs, and the best order of the groups."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        members = np.argsort(label_PD, axis=1, kind="stable")
        order = np.tile(np.arange(self.stages), (len(label_PD), 1))
        cost = np.empty(len(label_PD))
        dtfm_kernels.score_population(
            self.shared_DD, self.piped_DD, members, order, cost, self.stages, self.replicas, EXACT_STAGES
        )
        return cost, order

    def placement_SR(self, label_D: IntArray, order_S: IntArray) -> IntArray:
        """Usable device by stage and replica, with the pipelines matched."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        placed = np.empty((self.stages, self.replicas), dtype=np.int64)
        members = np.argsort(label_D, kind="stable")
        dtfm_kernels.align_columns(self.piped_DD, members, order_S, self.replicas, placed)
        return placed

    def placement(self, label_D: IntArray, order_S: IntArray) -> tuple[tuple[str, ...], ...]:
        """Devices by stage."""
        return tuple(tuple(self._ids[d] for d in np.flatnonzero(label_D == g)) for g in order_S)
