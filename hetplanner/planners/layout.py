"""From a layout (who serves what) to a Plan: codecs, in-flight depth, estimate, provenance.

Legend of array suffixes: S stages, R replicas, P routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan, Provenance, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.planners.choices.codec import choose_codecs, rough_objective
from hetplanner.planners.choices.depth import replace_depth
from hetplanner.planners.choices.local_steps import choose_local_steps
from hetplanner.planners.choices.recompute import keep_activations
from hetplanner.planners.choices.reducer import choose_reducer

# A first guess that does not fit ranks behind everything that does.
UNFIT_FACTOR = 1e3


@dataclass(frozen=True)
class Layout:
    """Which device serves what: device index by stage and replica, op boundaries of the stages, shares, depths."""

    placement_SR: IntArray
    op_cut_S: tuple[int, ...]
    share_R: tuple[int, ...]
    depth_S: tuple[int, ...]
    recompute: bool


def plan_of(layout: Layout, model: CostModel, provenance: Provenance) -> Plan:
    """Makes the best plan of a layout: codecs on the links where they shorten the step, no needless depth.

    Args:
        layout: the layout; its depths are the most that memory allows.
        model: the cost model of the problem.
        provenance: where the layout comes from.

    Returns:
        The plan with its estimate.

    Raises:
        Infeasible: if a device cannot hold its share.
    """
    return complete_plan(dense_plan(layout, model.tables.problem, provenance), model)


def complete_plan(plan: Plan, model: CostModel) -> Plan:
    """Gives a plan codecs, reducer, local steps and estimate, no needless depth or recomputation. Raises Infeasible.

    A hurried plan of very many devices keeps what it has: dense messages, the first allowed reducer.
    """
    if not model.is_hurried(len(plan.ranks)):
        plan = _with_choices(plan, model)
    check_plan(plan, model.tables)
    return plan.replace(estimate=estimate_plan(plan, model=model))


def _with_choices(plan: Plan, model: CostModel) -> Plan:
    # Codecs first: on faster links less of a round trip hides behind the slowest message, so more must be in flight.
    plan = choose_reducer(replace_depth(choose_codecs(plan, model), model), model)
    # Recomputation last: reducers and local steps need memory, too, and gain more.
    return keep_activations(choose_local_steps(plan, model), model)


def greatest_depth(
    model: CostModel, first_op: int, end_op: int, memory_bytes: float, recompute: bool, replicas: int = 1
) -> int:
    """Micro-batches of a stage of so many replicas that so much memory can hold at once; 0 if not even one."""
    most = model.tables.problem.workload.num_micro_batches
    return int(min(most, model.tables.depth_within(first_op, end_op, memory_bytes, recompute, replicas)))


def deepest_layout(
    placement_SR: IntArray, op_cut_S: tuple[int, ...], share_R: IntArray, recompute: bool, model: CostModel
) -> Layout:
    """A layout of given placement, cut and shares, with the greatest depths that memory allows (at least 1)."""
    memory_D = model.tables.devices.memory_bytes_D
    depth = [
        greatest_depth(model, a, b, float(memory_D[row].min()), recompute, len(row))
        for (a, b), row in zip(pairwise(op_cut_S), placement_SR, strict=True)
    ]
    return Layout(
        placement_SR=placement_SR,
        op_cut_S=op_cut_S,
        share_R=tuple(int(n) for n in share_R),
        depth_S=tuple(max(1, d) for d in depth),
        recompute=recompute,
    )


def rough_value(layout: Layout, model: CostModel) -> float:
    """The objective's value of a layout as it stands, large if it does not fit; needs no compiled kernels."""
    plan = dense_plan(layout, model.tables.problem, Provenance())
    value = rough_objective(plan, model)
    if plan.problem.objective == "cost":
        value *= 1e6 / plan.problem.workload.tokens_per_step
    try:
        check_plan(plan, model.tables)
    except Infeasible:
        value *= UNFIT_FACTOR
    return value


def value_of(plan: Plan) -> float:
    """What the problem's objective gives a plan with an estimate.

    Raises:
        InvalidInput: for objective `cost` if a device's price is unknown.
    """
    assert plan.estimate is not None
    objective = plan.problem.objective
    if objective == "step-time":
        return plan.estimate.step_s
    if objective == "dtfm":
        assert plan.estimate.dtfm is not None
        return plan.estimate.dtfm.total_s
    require_prices(plan.problem)
    assert plan.estimate.usd_per_mtoken is not None
    return plan.estimate.usd_per_mtoken


def require_prices(problem: Problem) -> None:
    """Refuses objective `cost` where a usable device has no price. Raises InvalidInput."""
    from hetplanner.cluster.catalog import resolve_device

    for device_id in problem.usable_devices:
        device = problem.cluster.devices[problem.cluster.device_index(device_id)]
        if resolve_device(device).price_usd_per_hour is None:
            raise InvalidInput(
                f"objective cost needs every device's price; {device_id!r:.60} ({device.kind}) has none: set"
                " price_usd_per_hour"
            )


def package_version() -> str:
    """Version of this package, for provenance."""
    try:
        return version("hetplanner")
    except PackageNotFoundError:
        return "unknown"


def even_cut(cuts: IntArray, num_ops: int, layers_before: IntArray, stages: int) -> tuple[int, ...]:
    """Op boundaries that give every stage the same number of layers, as nearly as possible.

    Args:
        cuts: boundaries where a stage may end.
        num_ops: ops of the model.
        layers_before: number of layers before each of `cuts`.
        stages: number of stages.
    """
    total = int(layers_before[-1])
    chosen = [0]
    for s in range(1, stages):
        wanted = s * total / stages
        # Each stage needs a boundary behind the last one, and one must be left for every later stage.
        first = 0 if s == 1 else int(np.searchsorted(cuts, chosen[-1], side="right"))
        last = len(cuts) - (stages - 1 - s)
        options = cuts[first:last]
        chosen.append(int(options[np.argmin(np.abs(layers_before[first:last] - wanted))]))
    return (*chosen, num_ops)


def proportional_cut(model: CostModel, part_S: FloatArray) -> tuple[int, ...]:
    """Op boundaries that give every stage its part of the model's FLOPs, as nearly as cuts between layers allow.

    Args:
        model: the cost model of the problem.
        part_S: what each stage should get, in any unit.
    """
    tables = model.tables
    cuts, flops = tables.cuts, tables.flops_O[tables.cuts]
    wanted = np.cumsum(part_S)[:-1] / np.sum(part_S) * tables.flops_O[-1]
    chosen: list[int] = []
    for s, target in enumerate(wanted):
        # Each stage needs a boundary behind the last one, and one must be left for every later stage.
        first, last = (chosen[-1] + 1 if chosen else 0), len(cuts) - (len(wanted) - 1 - s)
        chosen.append(first + int(np.argmin(np.abs(flops[first:last] - target))))
    return (0, *(int(cuts[k]) for k in chosen), tables.num_ops)


def apportion(total: int, weight_R: FloatArray) -> IntArray:
    """Splits a whole number in proportion to weights by largest remainders; each gets at least one."""
    if total < len(weight_R):
        raise InvalidInput(f"{total} micro-batches cannot be shared by {len(weight_R)}: use fewer replicas")
    exact = weight_R / weight_R.sum() * total
    share = np.maximum(np.floor(exact).astype(np.int64), 1)
    while share.sum() < total:
        share[int(np.argmax(exact - share))] += 1
    while share.sum() > total:
        share[int(np.argmin(np.where(share > 1, exact - share, np.inf)))] -= 1
    return share


def dense_plan(layout: Layout, problem: Problem, provenance: Provenance) -> Plan:
    """The plan of a layout as it stands: dense, with the first allowed reducer; fitting memory is not checked."""
    ids = problem.cluster.device_ids
    stages = tuple(
        Stage(
            first_op=layout.op_cut_S[s],
            end_op=layout.op_cut_S[s + 1],
            replicas=tuple((ids[d],) for d in row),
            in_flight=max(1, min(layout.depth_S[s], max(layout.share_R))),
            recompute=layout.recompute,
        )
        for s, row in enumerate(layout.placement_SR)
    )
    routes = tuple(
        Route(replicas=(r,) * len(stages), micro_batches=int(share)) for r, share in enumerate(layout.share_R)
    )
    ranks = tuple(ids[d] for d in layout.placement_SR.reshape(-1))
    return Plan(
        problem=problem,
        stages=stages,
        routes=routes,
        reducer=problem.constraints.first_reducer,
        ranks=ranks,
        provenance=provenance,
    )
