"""What planners share behind their search: the plan of a placement, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.capacity import Capacity
from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.dtfm import bound_dtfm, pair_costs
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan, Provenance
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import Progress, SearchResult
from hetplanner.planners.layout import (
    Layout,
    apportion,
    deepest_layout,
    package_version,
    plan_of,
    proportional_cut,
    value_of,
)
from hetplanner.planners.network.coarsen import LARGE
from hetplanner.planners.pins import pin_placement
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_time.space import StepSpaces, even_layers, even_shares
from hetplanner.planners.step_time.species import StepSpecies


def fit_plan(placement_SR: IntArray, model: CostModel) -> Plan:
    """The best plan of a given placement: cut, shares, depths and codecs by the closed form.

    Args:
        placement_SR: device index of the cluster by stage and pipeline.
        model: the cost model of the problem.

    Raises:
        Infeasible: if no cut fits the devices' memory in this placement.
    """
    best: Plan | None = None
    for shape, recompute in feasible_shapes(model, [placement_SR.shape]):
        if placement_SR.size >= LARGE:
            plan = _proportional_plan(placement_SR, recompute, model)
            if plan is not None:
                return plan
        species = StepSpecies(model, shape, 0, "structured", recompute=recompute)
        plan = try_plan(species.layout(species.fitted(placement_SR)), model)
        if plan is not None and (best is None or step_seconds(plan) < step_seconds(best)):
            best = plan
    if best is None:
        raise explain_infeasible(model.tables.problem, model.tables, *placement_SR.shape)
    return best


def fitted_plan(placement_SR: IntArray, model: CostModel, spaces: StepSpaces, recompute: bool) -> Plan | None:
    """The plan of a placement with the least busy cut that fits, None if none does.

    Where a search of very many devices is pressed, with another placement of the shape that fits, if there is one.
    """
    stages, replicas = placement_SR.shape
    if model.is_hurried(placement_SR.size) and not model.tables.problem.constraints.pinned:
        return fitting_plan(stages, replicas, model)
    space = spaces.of(recompute=recompute)
    species = StepSpecies(model, (stages, replicas), 0, "structured", recompute=recompute, space=space)
    return try_plan(species.layout(species.fitted(placement_SR)), model)


def best_of_shapes(
    problem: Problem,
    model: CostModel,
    progress: Progress,
    plans_of: Callable[[tuple[int, int], bool], Iterable[Plan | None]],
) -> Plan:
    """The best plan of a baseline that searches nothing beyond the shape, reported as its only event.

    Args:
        problem, model, progress: as of `BasePlanner.search`.
        plans_of: plans of a shape (stages, replicas), with or without recomputation; None where one does not fit.

    Raises:
        Infeasible: no shape has a plan that fits.
    """
    shapes = [fixed_shape(problem)] if problem.objective == "dtfm" else free_shapes(problem, model.tables)
    best: Plan | None = None
    for shape, recompute in feasible_shapes(model, shapes):
        for plan in plans_of(shape, recompute):
            progress.evaluations += 1
            if plan is not None and (best is None or value_of(plan) < value_of(best)):
                best = plan
            if best is not None and progress.is_pressed():
                break
        if best is not None and progress.is_over():
            break
    if best is None:
        raise explain_infeasible(problem, model.tables, *shapes[-1])
    placement = tuple(tuple(r[0] for r in stage.replicas) for stage in best.stages)
    progress.report(value_of(best), None, placement, "done")
    return best


def fitting_plan(stages: int, replicas: int, model: CostModel) -> Plan | None:
    """A plan of a shape for memory alone, the last resort of a search: None only if no layout of the shape fits."""
    capacity = Capacity(model.tables)
    fit = capacity.fit(stages, replicas)
    if fit is None:
        return None
    groups = capacity.devices_D[: stages * replicas].reshape(stages, replicas)
    cut = tuple(int(k) for k in capacity.edges_K[list(fit.edge_S)])
    shares = even_shares(model.tables.problem.workload.num_micro_batches, replicas)
    return try_plan(deepest_layout(groups[list(fit.group_S)], cut, shares, True, model), model)


def _proportional_plan(placement_SR: IntArray, recompute: bool, model: CostModel) -> Plan | None:
    """Stages in proportion to their slowest device, pipelines likewise: for placements whose pairs are too many.

    Equal layers and shares if the devices are equal. None if it does not fit.
    """
    rate_SR = model.tables.devices.rate_flops_per_s_D[placement_SR]
    cut = proportional_cut(model, rate_SR.min(axis=1))
    micro_batches = model.tables.problem.workload.num_micro_batches
    share = apportion(micro_batches, (rate_SR / rate_SR.min(axis=1)[:, None]).min(axis=0))
    return try_plan(deepest_layout(placement_SR, cut, share, recompute, model), model)


def order_devices(problem: Problem, shape: tuple[int, int]) -> IntArray:
    """Device index by stage and replica: usable devices by site in file order, S after S for each pipeline."""
    stages, replicas = shape
    cluster = problem.cluster
    rows = [cluster.device_index(d) for d in problem.usable_devices]
    rows.sort(key=lambda d: int(cluster.site_index_D[d]))
    return np.array(rows[: stages * replicas], dtype=np.int64).reshape(replicas, stages).T


def equal_plan(placement_SR: IntArray, model: CostModel, recompute: bool = False, cut: str = "layers") -> Plan | None:
    """The plan of a placement with equal stages and shares, None if it does not fit; needs no compiled kernels."""
    stages, replicas = placement_SR.shape
    edges = even_layers(model, stages) if cut == "layers" else proportional_cut(model, np.ones(stages))
    share = even_shares(model.tables.problem.workload.num_micro_batches, replicas)
    return try_plan(deepest_layout(placement_SR, edges, share, recompute, model), model)


def plan_without_kernels(model: CostModel, progress: Progress) -> Plan:
    """A plan for a search that was cancelled before its kernels were compiled: its best placement, with equal stages.

    Raises:
        KeyboardInterrupt: if neither that nor devices in their order fit the memory like this.
    """
    problem = model.tables.problem
    shapes = [fixed_shape(problem)] if problem.objective == "dtfm" else free_shapes(problem, model.tables)
    places = [pin_placement(order_devices(problem, shape), problem) for shape in shapes]
    if progress.events:
        index = problem.cluster.device_index
        best = [[index(d) for d in stage] for stage in progress.events[-1].placement]
        places = [np.array(best, dtype=np.int64)] * (len({len(stage) for stage in best}) == 1) + places
    for place_SR in places:
        for recompute in [True] if problem.workload.recompute else [False, True]:
            plan = equal_plan(place_SR, model, recompute)
            if plan is not None:
                return plan
    for shape in shapes if not problem.constraints.pinned else []:
        plan = fitting_plan(*shape, model)
        if plan is not None:
            return plan
    raise KeyboardInterrupt


def try_plan(layout: Layout, model: CostModel) -> Plan | None:
    """The plan of a layout, or None if a device cannot hold its share."""
    if not _holds(layout, model):
        return None
    try:
        return plan_of(layout, model, Provenance())
    except Infeasible:
        return None


def _holds(layout: Layout, model: CostModel) -> bool:
    """Whether every device holds its share with dense messages and one micro-batch in flight: soon told."""
    tables = model.tables
    return all(
        tables.bytes_with_reduction(a, b, 1, layout.recompute, len(row)) <= tables.devices.memory_bytes_D[row].min()
        for (a, b), row in zip(pairwise(layout.op_cut_S), layout.placement_SR, strict=True)
    )


def step_seconds(plan: Plan) -> float:
    """Estimated seconds of a finished plan's step."""
    assert plan.estimate is not None
    return plan.estimate.step_s


def usable_rows(problem: Problem) -> IntArray:
    """Rows of the usable devices in the cluster's matrices."""
    return np.array([problem.cluster.device_index(d) for d in problem.usable_devices], dtype=np.int64)


def lower_bound(problem: Problem, model: CostModel, shape: tuple[int, int]) -> float:
    """A bound below the objective of every plan of a problem (for `dtfm`: of this shape)."""
    if problem.objective == "step-time":
        return bound_step(model.tables, model.links)
    if problem.objective == "cost":
        return bound_cost(model.tables, model.links)
    cluster, usable = problem.cluster, len(problem.usable_devices)
    rows = None if usable == len(cluster.devices) else usable_rows(problem)
    tables = cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD
    if usable < LARGE:
        return bound_dtfm(*pair_costs(*tables, shape[1], rows=rows), *shape)
    # Single precision for thousands of devices: what that may add is taken off again.
    return bound_dtfm(*pair_costs(*tables, shape[1], rows=rows, dtype=np.float32), *shape) * (1.0 - 1e-6)


def finish(plan: Plan, progress: Progress, seed: int, planner: str, model: CostModel) -> SearchResult:
    """The result of a search: value and bound, with everything written into the plan's provenance."""
    value = value_of(plan)
    shape = (len(plan.stages), len(plan.stages[0].replicas))
    # A proof rounds differently from the score: at the optimum the two may part in the last digit.
    cheap = 0.0 if progress.is_proven(value) else lower_bound(plan.problem, model, shape)
    bound = min(max(cheap, progress.lower_bound), value)
    seconds = progress.seconds
    provenance = Provenance(
        planner=planner,
        seed=seed,
        budget=progress.budget.text(),
        evaluations=progress.evaluations,
        seconds=seconds,
        lower_bound=bound,
        simulated_step_s=plan.provenance.simulated_step_s,
        version=package_version(),
    )
    return SearchResult(
        plan=plan.replace(provenance=provenance),
        value=value,
        lower_bound=bound,
        evaluations=progress.evaluations,
        seconds=seconds,
        seed=seed,
        events=tuple(progress.events),
        cancelled=progress.cancelled,
        tried=progress.tried,
        ancestry=progress.ancestry,
    )
