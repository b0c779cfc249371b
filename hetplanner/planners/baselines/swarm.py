"""SWARM's assignment: replicas of a stage in proportion to its load, as many as its throughput asks for.

Stages have equal layers; each gets devices until its share of all throughput is its share of the work (largest
remainder on FLOP/s, not on the count), so stages have unlike numbers of replicas. Peers then move as SWARM's rebalancer
would move them, from the least to the most loaded stage, while the slowest stage gains by it. Inside a stage every
replica takes micro-batches in proportion to its rate. SWARM wires peers at random, weighted by throughput; a plan
needs fixed routes, so both sides of a boundary lay their shares out in the network's linear order and a route is what
overlaps: near devices talk to each other, and each of R1 + R2 - 1 routes or fewer carries the overlap. With mode
elastic the result is SWARM's own: the peers that a swarm starts with, wired at random as it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Objective, Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.baselines.opfence import walk_network
from hetplanner.planners.baselines.swarm_elastic import elastic_plan
from hetplanner.planners.interface import NO_FIELD, PlannerSettings, Progress, SearchResult
from hetplanner.planners.layout import apportion, complete_plan, greatest_depth, proportional_cut, value_of
from hetplanner.planners.shapes import free_shapes
from hetplanner.planners.step_time.space import even_layers

PlanT = TypeVar("PlanT")


@dataclass(frozen=True)
class Assignment:
    """Who serves what: rows of the cluster by stage, op boundaries, and whether stages keep only their inputs."""

    model: CostModel
    members: list[IntArray]
    cut: tuple[int, ...]
    recompute: bool


class SwarmSettings(PlannerSettings):
    """What a plan is to be carried out by."""

    mode: Literal["static", "elastic"] = Field(
        "static", description="fixed routes, or a swarm whose peers come and go", json_schema_extra=NO_FIELD
    )


class SwarmPlanner(BasePlanner[SwarmSettings]):
    """Ragged replicas by load, unequal shares, routes through overlapping shares; tries every number of stages."""

    name: ClassVar[str] = "swarm"
    summary: ClassVar[str] = "SWARM: replicas of each stage in proportion to its load, unequal shares"
    settings_type: ClassVar[type[PlannerSettings]] = SwarmSettings
    objectives: ClassVar[tuple[Objective, ...]] = ("step-time", "cost")

    def check(self, problem: Problem, start: Plan | None = None) -> None:
        """See :meth:`hetplanner.planners.base.BasePlanner.check`."""
        if self.settings.mode == "elastic" and problem.constraints.zero:
            raise InvalidInput(
                "constraints.zero: a peer of a swarm has all states of the optimizer, so that it can go on when others"
                " leave; plan with zero 0"
            )
        super().check(problem, start)

    def completed(self, found: SearchResult) -> SearchResult:
        """See :meth:`hetplanner.planners.base.BasePlanner.completed`; with mode elastic the elastic plan."""
        # Of a search over groupings each result has its own.
        elastic = found.elastic or self._elastic
        return found if elastic is None else replace(found, elastic=elastic.replace(provenance=found.plan.provenance))

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`; nothing is searched beyond stages and recompute."""
        self._elastic: ElasticPlan | None = None
        shapes = free_shapes(problem, model.tables)
        walk = walk_network(problem, model)
        best: Plan | None = None
        for stages in sorted({s for s, _ in shapes}):
            for recompute in [True] if problem.workload.recompute else [False, True]:
                if best is not None and progress.is_pressed():
                    break
                plan, elastic = self._assign(model, walk, stages, recompute)
                progress.evaluations += 1
                if plan is not None and (best is None or value_of(plan) < value_of(best)):
                    best, self._elastic = plan, elastic
            if best is not None and progress.is_over():
                break
        if best is None:
            raise explain_infeasible(problem, model.tables, *max(shapes))
        value = value_of(best)
        progress.report(value, None, tuple(tuple(r[0] for r in s.replicas) for s in best.stages), "done")
        return best

    def _assign(
        self, model: CostModel, walk_D: IntArray, stages: int, recompute: bool
    ) -> tuple[Plan | None, ElasticPlan | None]:
        """The plan to judge, with mode elastic a steady-state step of the elastic one beside it."""
        if self.settings.mode == "static":
            return assign(model, walk_D, stages, recompute, _static), None
        elastic = assign(model, walk_D, stages, recompute, _elastic)
        return (None if elastic is None else steady_state_plan(elastic, model)), elastic


def assign(
    model: CostModel, walk_D: IntArray, stages: int, recompute: bool, make: Callable[[Assignment], PlanT]
) -> PlanT | None:
    """SWARM's plan for a number of stages, with equal layers or, where memory forbids these, other cuts.

    Args:
        model: the cost model of the problem.
        walk_D: usable devices (rows of the cluster), neighbours near each other.
        stages: number of stages.
        recompute: whether stages keep only their inputs.
        make: the plan of an assignment; Infeasible if it fits no memory.

    Returns:
        None if no assignment fits the devices' memory.
    """
    for cut in dict.fromkeys([even_layers(model, stages), proportional_cut(model, np.ones(stages))]):
        group_D = assign_devices(model, walk_D, cut, recompute)
        if group_D is None:
            continue
        members = [walk_D[group_D == s] for s in range(stages)]
        try:
            return make(Assignment(model, members, cut, recompute))
        except Infeasible:
            continue
    return None


def _static(found: Assignment) -> Plan:
    rate_D = found.model.tables.devices.rate_flops_per_s_D
    micro_batches = found.model.tables.problem.workload.num_micro_batches
    shares = [apportion(micro_batches, rate_D[rows]) for rows in found.members]
    return complete_plan(ragged_plan(found.model, found.members, shares, found.cut, found.recompute), found.model)


def _elastic(found: Assignment) -> ElasticPlan:
    return elastic_plan(found.model, found.members, found.cut, found.recompute)


def assign_devices(model: CostModel, walk_D: IntArray, cut: tuple[int, ...], recompute: bool) -> IntArray | None:
    """Stage of every device on the walk; -1 for one that fits nowhere or is not wanted; None if a stage stays empty."""
    tables, problem = model.tables, model.tables.problem
    rate = tables.devices.rate_flops_per_s_D[walk_D]
    memory = tables.devices.memory_bytes_D[walk_D]
    load = np.diff(tables.flops_O[list(cut)])
    needed = np.array([tables.stage_bytes(a, b, 1, recompute) for a, b in pairwise(cut)])
    fits_DS = needed[None] <= memory[:, None]
    fixed = problem.constraints.replicas
    most = fixed or problem.workload.num_micro_batches
    # Devices that can hold few stages choose first, then the fast ones, which are hardest to place well.
    order = np.lexsort((np.arange(len(rate)), -rate, fits_DS.sum(axis=1)))
    group_D = np.full(len(rate), -1, dtype=np.int64)
    have, count = np.zeros(len(load)), np.zeros(len(load), dtype=np.int64)
    for i in order:
        # An empty stage goes first: without it nothing runs.
        owed = np.where(fits_DS[i] & (count < most), load / load.sum() * rate.sum() - have, -np.inf)
        owed[(count == 0) & np.isfinite(owed)] += rate.sum()
        pick = int(np.argmax(owed))
        if np.isfinite(owed[pick]):
            group_D[i] = pick
            have[pick] += rate[i]
            count[pick] += 1
    if not count.all() or (fixed and (count < fixed).any()):
        return None
    if not fixed:
        _rebalance(group_D, rate, load, fits_DS, most)
    return group_D


def _rebalance(group_D: IntArray, rate_D: FloatArray, load_S: FloatArray, fits_DS: BoolArray, most: int) -> None:
    """Moves a peer of the least to the most loaded stage while the slowest stage gains; the last one never leaves."""
    for _ in range(len(group_D)):
        have = np.bincount(group_D[group_D >= 0], weights=rate_D[group_D >= 0], minlength=len(load_S))
        speed = have / load_S
        idle, busy = int(np.argmax(speed)), int(np.argmin(speed))
        peers = np.flatnonzero((group_D == idle) & fits_DS[:, busy])
        if (group_D == idle).sum() < 2 or not len(peers) or (group_D == busy).sum() >= most:
            return
        peer = int(peers[np.argmin(rate_D[peers])])
        worst = min((have[idle] - rate_D[peer]) / load_S[idle], (have[busy] + rate_D[peer]) / load_S[busy])
        if worst <= speed[busy] * (1 + 1e-9):
            return
        group_D[peer] = busy


def ragged_plan(
    model: CostModel, members: list[IntArray], shares: list[IntArray], cut: tuple[int, ...], recompute: bool
) -> Plan:
    """The plan of stages with any numbers of replicas, in the greatest depth that memory allows; without estimate.

    Args:
        model: the cost model of the problem.
        members: rows of the cluster by stage.
        shares: their micro-batches; every stage has the same sum.
        cut: op boundaries.
        recompute: whether stages keep only their inputs.
    """
    problem, devices = model.tables.problem, model.tables.devices
    ids = problem.cluster.device_ids
    stages = tuple(
        Stage(
            first_op=first,
            end_op=end,
            replicas=tuple((ids[d],) for d in rows),
            in_flight=max(1, greatest_depth(model, first, end, float(devices.memory_bytes_D[rows].min()), recompute)),
            recompute=recompute,
        )
        for (first, end), rows in zip(pairwise(cut), members, strict=True)
    )
    ranks = tuple(ids[d] for rows in members for d in rows)
    reducer = problem.constraints.first_reducer
    return Plan(problem=problem, stages=stages, routes=overlap_routes(shares), reducer=reducer, ranks=ranks)


def overlap_routes(share_SR: list[IntArray]) -> tuple[Route, ...]:
    """Routes that give every replica its share: intervals of the micro-batches that no stage's boundaries divide.

    Args:
        share_SR: micro-batches of each replica (at least 1), by stage; all stages have the same sum.
    """
    ends_SR = [np.cumsum(share) for share in share_SR]
    edges = np.unique(np.concatenate([[0], *ends_SR]))
    return tuple(
        Route(
            replicas=tuple(int(np.searchsorted(ends, first, side="right")) for ends in ends_SR),
            micro_batches=int(end - first),
        )
        for first, end in pairwise(edges)
    )
