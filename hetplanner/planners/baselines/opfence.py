"""OP-Fence (FusionLLM): communities of the network, a walk through them on fast links, the OP-DAG cut along the walk.

Three definitions are ours, since the source leaves them open: communities come from
`hetplanner.planners.network.communities`; with several replicas the walk is dealt both ways, as pipelines one after the
other (gradients cross the slow links) and as stages one after the other (activations do), and the better one stays; the
cut gives every stage FLOPs in proportion to its group's rate, or, where that does not fit the memory, the least busy
cut that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.finish import best_of_shapes, fitted_plan, try_plan, usable_rows
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.layout import apportion, deepest_layout, proportional_cut
from hetplanner.planners.network.communities import find_communities
from hetplanner.planners.step_time.space import StepSpaces

# Starts of a tour times the square of the communities: all of 32 communities, ever fewer of more.
TOUR_WORK = 2**15


class OpFencePlanner(BasePlanner[PlannerSettings]):
    """Bandwidth communities, ordering, proportional cut; nothing is searched beyond a free shape."""

    name: ClassVar[str] = "opfence"
    summary: ClassVar[str] = (
        "OP-Fence: communities of fast links, a walk through them, ops cut in proportion to compute"
    )

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`."""
        walk, spaces = walk_network(problem, model), StepSpaces(model)

        def plans_of(shape: tuple[int, int], recompute: bool) -> Iterator[Plan | None]:
            return (_plan(placement, model, spaces, recompute) for placement in deal_walk(walk, shape))

        return best_of_shapes(problem, model, progress, plans_of)


def walk_network(problem: Problem, model: CostModel) -> IntArray:
    """Usable devices (rows of the cluster) in an order in which neighbours have fast links, community by community.

    Where a search of very many devices is pressed, by site in file order.
    """
    rows = usable_rows(problem)
    if model.is_hurried(len(rows)):
        return rows[np.argsort(problem.cluster.site_index_D[rows], kind="stable")]
    seconds = message_seconds(model)[np.ix_(rows, rows)]
    rate = model.tables.devices.rate_flops_per_s_D[rows]
    community = find_communities(seconds)
    count = int(community.max()) + 1
    member = np.zeros((count, len(rows)))
    member[community, np.arange(len(rows))] = 1.0
    size = member.sum(axis=1)
    between = member @ seconds @ member.T / np.outer(size, size)
    walk: list[int] = []
    for c in _shortest_tour(between):
        members = np.flatnonzero(community == c)
        walk += _walk_members(seconds, rate, [int(d) for d in members], walk[-1] if walk else None)
    return rows[walk]


def message_seconds(model: CostModel) -> FloatArray:
    """Seconds of the largest message between two stages, there and back, between any two devices."""
    size = float(model.tables.boundary_bytes_O.max()) or 1.0
    hop = model.links.latency_s_DD + size * model.links.seconds_per_byte_DD
    seconds = hop + hop.T
    np.fill_diagonal(seconds, 0.0)
    return np.asarray(seconds)


def deal_walk(walk_D: IntArray, shape: tuple[int, int]) -> list[IntArray]:
    """Device index by stage and replica: the walk cut into pipelines, and into stages."""
    stages, replicas = shape
    used = walk_D[: stages * replicas]
    by_pipeline = used.reshape(replicas, stages).T.copy()
    if stages == 1 or replicas == 1:
        return [by_pipeline]
    return [by_pipeline, used.reshape(stages, replicas).copy()]


def fence_cut(placement_SR: IntArray, model: CostModel) -> tuple[tuple[int, ...], IntArray]:
    """Op boundaries by the rate of a stage's slowest replica, micro-batch shares by a pipeline's slowest part."""
    rate_SR = model.tables.devices.rate_flops_per_s_D[placement_SR]
    cut = proportional_cut(model, rate_SR.min(axis=1))
    flops = np.diff(model.tables.flops_O[list(cut)])
    return cut, apportion(model.tables.problem.workload.num_micro_batches, (rate_SR / flops[:, None]).min(axis=0))


def _plan(placement_SR: IntArray, model: CostModel, spaces: StepSpaces, recompute: bool) -> Plan | None:
    """The plan of a placement; where the proportional cut does not fit the memory, with the least busy that does."""
    cut, share = fence_cut(placement_SR, model)
    plan = try_plan(deepest_layout(placement_SR, cut, share, recompute, model), model)
    if plan is not None:
        return plan
    return fitted_plan(placement_SR, model, spaces, recompute)


def _shortest_tour(between_KK: FloatArray) -> list[int]:
    """An open path over the communities: nearest neighbour from many starts, then 2-opt; the shortest of all."""
    count = len(between_KK)
    starts = range(0, count, -(-count // min(count, max(1, TOUR_WORK // count**2))))
    tours = [_two_opt(_nearest_tour(between_KK, start), between_KK) for start in starts]
    return min(tours, key=lambda tour: (round(_length(tour, between_KK), 12), tour))


def _nearest_tour(between_KK: FloatArray, start: int) -> list[int]:
    tour, free = [start], set(range(len(between_KK))) - {start}
    while free:
        tour.append(min(free, key=lambda k: (between_KK[tour[-1], k], k)))
        free.remove(tour[-1])
    return tour


def _two_opt(tour: list[int], between_KK: FloatArray) -> list[int]:
    """Turns stretches round while that shortens the path (distances are symmetric: only its two ends change)."""
    between, last = between_KK.tolist(), len(tour) - 1
    improved = True
    while improved:
        improved = False
        for i in range(last):
            for j in range(i + 1, last + 1):
                gain = 0.0
                if i > 0:
                    gain += between[tour[i - 1]][tour[i]] - between[tour[i - 1]][tour[j]]
                if j < last:
                    gain += between[tour[j]][tour[j + 1]] - between[tour[i]][tour[j + 1]]
                if gain > 1e-12:
                    tour[i : j + 1] = tour[i : j + 1][::-1]
                    improved = True
    return tour


def _length(tour: list[int], between_KK: FloatArray) -> float:
    return float(sum(between_KK[a, b] for a, b in pairwise(tour)))


def _walk_members(seconds_DD: FloatArray, rate_D: FloatArray, members: list[int], before: int | None) -> list[int]:
    """The devices of a community, each next to the nearest one left; enters next to the device walked last.

    Of equally near ones the fastest goes first, so that pipelines of several communities have like devices in a stage.
    """
    walk: list[int] = []
    # Of equals the first: sorted like this it is the one that argmin finds.
    left = np.array(sorted(members, key=lambda d: (-rate_D[d], d)), dtype=np.int64)
    last = before
    while len(left):
        nearest = 0 if last is None else int(np.argmin(seconds_DD[last, left]))
        last = int(left[nearest])
        left = np.delete(left, nearest)
        walk.append(last)
    return walk
