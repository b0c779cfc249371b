"""A plan under another problem: its devices do the same work, estimated anew. Nothing is searched."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan, Provenance, Stage
from hetplanner.plan.problem import Problem
from hetplanner.planners.layout import apportion, proportional_cut
from hetplanner.planners.variants.depths import no_deeper_than_fits

CARRIED = "carried-over"
"""The planner in the provenance of such a plan."""
NAMED = 3
"""Devices that a message names."""


def carry_over(plan: Plan, problem: Problem) -> Plan:
    """The plan as one of another problem: placement, schedule, depths and codecs stay as far as they fit.

    On another model the stages keep their shares of the FLOPs, with another batch the routes their shares of it.
    Activations are recomputed in all stages where memory asks for it.

    Returns:
        The plan of `problem`, checked, with its estimate.

    Raises:
        Infeasible: if the plan cannot be one of `problem`, saying why.
        InvalidInput: if it uses a codec, a reducer or local steps that the constraints do not allow.
    """
    _check_shape(plan, problem)
    model = CostModel.of(problem)
    cut = carried_cut(plan, model)
    if cut is None:
        raise Infeasible(f"{problem.workload.most_stages_text}; the plan has {len(plan.stages)} stages")
    total = problem.workload.num_micro_batches
    if total < len(plan.routes):
        raise Infeasible(f"a step has {total} micro-batches, too few for the plan's {len(plan.routes)} pipelines")
    shares = apportion(total, np.array([float(route.micro_batches) for route in plan.routes]))
    carried = plan.replace(
        problem=problem,
        estimate=None,
        provenance=_provenance(plan),
        stages=tuple(_stage(s, ends, total) for s, ends in zip(plan.stages, pairwise(cut), strict=True)),
        routes=tuple(r.replace(micro_batches=int(n)) for r, n in zip(plan.routes, shares, strict=True)),
    )
    carried = _that_fits(carried, model)
    return carried.replace(estimate=estimate_plan(carried, model=model))


def carried_cut(plan: Plan, model: CostModel) -> tuple[int, ...] | None:
    """The plan's op boundaries on a problem's model; on another model than its own those with the same shares of FLOPs.

    None if that model has too few places to cut.
    """
    edges = (0, *(stage.end_op for stage in plan.stages))
    if plan.problem.workload.graph == model.tables.problem.workload.graph:
        return edges
    if len(plan.stages) > model.tables.most_stages:
        return None
    flops_O = CostModel.of(plan.problem).tables.flops_O
    return proportional_cut(model, np.array([flops_O[b] - flops_O[a] for a, b in pairwise(edges)]))


def _check_shape(plan: Plan, problem: Problem) -> None:
    usable, wanted = set(problem.usable_devices), problem.constraints
    gone = [device for device in plan.ranks if device not in usable]
    if gone:
        named = ", ".join(f"{d:.60}" for d in gone[:NAMED]) + (", …" if len(gone) > NAMED else "")
        raise Infeasible(f"{len(gone)} of its {len(plan.ranks)} devices cannot be used any more ({named})")
    if wanted.stages not in (None, len(plan.stages)):
        raise Infeasible(f"the settings ask for {wanted.stages} stages, the plan has {len(plan.stages)}")
    replicas = {len(stage.replicas) for stage in plan.stages}
    if wanted.replicas is not None and replicas != {wanted.replicas}:
        has = " to ".join(map(str, sorted({min(replicas), max(replicas)})))
        raise Infeasible(f"the settings ask for {wanted.replicas} replicas, the plan has {has}")


def _stage(stage: Stage, ends: tuple[int, int], micro_batches: int) -> Stage:
    return stage.replace(first_op=ends[0], end_op=ends[1], in_flight=min(stage.in_flight, micro_batches))


def _provenance(plan: Plan) -> Provenance:
    old = plan.provenance
    derived = f"from plan {plan.digest()[:12]} ({old.planner}), whose problem was another"
    return Provenance(planner=CARRIED, seed=old.seed, version=old.version, derived=derived)


def _that_fits(plan: Plan, model: CostModel) -> Plan:
    """The plan with no more depth than memory allows, and recomputing where it does not fit otherwise."""
    kept = no_deeper_than_fits(plan)
    try:
        check_plan(kept, model.tables)
    except Infeasible as error:
        recomputing = plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))
        recomputing = no_deeper_than_fits(recomputing)
        try:
            check_plan(recomputing, model.tables)
        except Infeasible:
            raise error from None
        return recomputing
    return kept
