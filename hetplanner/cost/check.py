"""The full check of a plan: does every device hold its share? The structure is checked by the Plan itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log

from hetplanner.codecs.spec import least_topk_bytes
from hetplanner.cost.advice.feasibility import advise, allowed_shapes, fitting_shape
from hetplanner.cost.capacity import Capacity, Shortage
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan, Stage
from hetplanner.plan.problem import Problem
from hetplanner.plan.reach import find_gap
from hetplanner.plan.reducers.groups import reduction_groups, sharded_elements
from hetplanner.units import short_bytes

# How many kinds of short devices a message names, and how many devices of each.
NAMED_GROUPS = 4
NAMED_DEVICES = 3


def fits_memory(plan: Plan, tables: CostTables) -> bool:
    """Whether every device holds its share of the plan."""
    return all(n <= limit for n, limit in zip(peak_bytes(plan, tables), memory_limits(plan, tables), strict=True))


def check_plan(plan: Plan, tables: CostTables | None = None) -> None:
    """Refuses a plan that its devices cannot hold, its cluster's links do not carry or its constraints forbid.

    That every op is computed once and shares add up, the Plan itself checks.

    Raises:
        InvalidInput: if a codec, a reducer or a number of local steps is used that the constraints do not allow, or a
            pinned device is elsewhere.
        Infeasible: naming the devices that are short, by how much, and the change that would help; or the devices
            without a link between them that would have to talk.
    """
    tables = tables or CostTables(plan.problem)
    _check_codecs(plan)
    _check_pins(plan)
    _check_reducer(plan)
    _check_local_steps(plan)
    gap = find_gap(plan)
    if gap is not None:
        raise Infeasible(f"the plan has {gap}; use another placement or add the link to the cluster")
    check_memory(plan, tables)


def check_memory(plan: Plan, tables: CostTables | None = None) -> None:
    """Refuses a plan that its devices cannot hold.

    Raises:
        Infeasible: naming the devices that are short, by how much, and the change that would help.
    """
    tables = tables or CostTables(plan.problem)
    limits = memory_limits(plan, tables)
    rows = zip(plan.ranks, peak_bytes(plan, tables), limits, strict=True)
    short = [Shortage(device, needed, limit) for device, needed, limit in rows if needed > limit]
    if short:
        short.sort(key=lambda each: -each.missing_bytes)
        raise Infeasible(f"the plan does not fit: {_short_text(short, plan.problem)}; {_remedy(plan, tables)}")


def peak_bytes(
    plan: Plan, tables: CostTables, *, held_S: Sequence[int] | None = None, recompute: bool = False
) -> list[float]:
    """Bytes that each rank needs at its peak, all the stages that it serves together.

    Args:
        plan: the plan.
        tables: tables of its problem.
        held_S: micro-batches that each stage holds, if other than the plan's.
        recompute: as if all stages did.
    """
    stage_bytes = [
        tables.bytes_with_reduction(
            stage.first_op,
            stage.end_op,
            held,
            recompute or stage.recompute,
            len(stage.replicas),
            sharded_bytes(plan, s, tables),
        )
        + outer_bytes(plan, stage) * tables.stage_trained(stage.first_op, stage.end_op)
        + kept_error_bytes(plan, s, tables)
        for s, (stage, held) in enumerate(zip(plan.stages, held_S or plan.held_S, strict=True))
    ]
    return [sum(stage_bytes[s] for s, _ in places) for places in plan.places_of_rank]


def sharded_bytes(plan: Plan, s: int, tables: CostTables) -> float:
    """Bytes of a stage's optimizer states that are not in the largest shard of its ranks: none without ZeRO."""
    return tables.sharded_bytes_per_trained * sharded_elements(plan)[s]


def outer_bytes(plan: Plan, stage: Stage) -> float:
    """Bytes per trained weight of the outer optimizer, in float32: as it was when replicas were equal, momentum."""
    if not plan.is_local or len(stage.replicas) < 2:
        return 0.0
    return 8.0 if plan.outer is not None else 4.0


def kept_error_bytes(plan: Plan, s: int, tables: CostTables) -> float:
    """Bytes of what reductions' codecs have lost: one float32 a trained weight, of exchanges and of their sums two.

    A stage without a second replica reduces nothing but the weights that it shares with other stages.
    """
    stage = plan.stages[s]
    is_kept = stage.reduce_codec.name == "powersgd" or (stage.error_feedback and stage.reduce_codec.is_lossy)
    if not is_kept:
        return 0.0
    if len(stage.replicas) > 1:
        elements = tables.stage_trained(stage.first_op, stage.end_op)
    else:
        groups = [group for group in reduction_groups(plan) if group.tied and group.part != "all-gather"]
        elements = sum(group.num_elements for group in groups if s in group.stages)
    return elements * (8.0 if plan.reducer == "hierarchical" and stage.reduce_codec.name != "powersgd" else 4.0)


def memory_limits(plan: Plan, tables: CostTables) -> list[float]:
    """Bytes that each rank's device can hold."""
    index = plan.problem.cluster.device_index
    return [float(tables.devices.memory_bytes_D[index(device)]) for device in plan.ranks]


def check_problem(problem: Problem, stages: int, replicas: int) -> None:
    """Refuses a shape that no placement can fill, before any search.

    Raises:
        InvalidInput: if there are too few devices, layers or micro-batches for the shape.
        Infeasible: if the model's state alone exceeds the memory of the devices.
    """
    workload, usable = problem.workload, len(problem.usable_devices)
    if stages > workload.most_stages:
        raise InvalidInput(
            f"constraints.stages: must be at most {workload.most_stages_text}, got {stages}; use fewer stages"
        )
    if stages * replicas > usable:
        raise InvalidInput(
            f"constraints: {stages} stages x {replicas} replicas need {stages * replicas} devices, but"
            f" {usable} are usable; use fewer stages or replicas"
        )
    if replicas > problem.workload.num_micro_batches:
        raise InvalidInput(
            f"constraints.replicas: {replicas} replicas need at least as many micro-batches a step, but global_batch"
            f" / micro_batch is {problem.workload.num_micro_batches}; use fewer replicas or a larger global batch"
        )


def explain_infeasible(problem: Problem, tables: CostTables, stages: int, replicas: int) -> Infeasible:
    """The error for a search that found no plan: which device is short by how much, and what one change would help.

    Args:
        problem: what was to be planned.
        tables: its cost tables.
        stages: of the last shape that was tried.
        replicas: likewise; a shape that the constraints leave free is replaced by the one that lacks least.
    """
    capacity = Capacity(tables)
    shape = fitting_shape(capacity, problem)
    name = problem.workload.name
    if shape is not None and problem.cluster.has_gaps:
        gaps = int((~problem.cluster.joined_DD).sum()) // 2
        blind = "; objective dtfm knows no tied weights, step-time does" if problem.objective == "dtfm" else ""
        return Infeasible(
            f"{name}: no placement was found whose devices hold their share and are linked where they must talk: the"
            f" cluster is short by {gaps} links between devices; fewer replicas, fewer stages or more links would help"
            f"{blind}"
        )
    if shape is not None:
        return Infeasible(
            f"{name} does not fit in the placements that were tried: the search is short by one that gives every device"
            f" what it holds; there is one of {shape[0]} stages x {shape[1]} replicas, which planner evolution finds"
        )
    shapes = [shape for shape in allowed_shapes(problem) if shape[0] < len(capacity.edges_K)] or [(stages, replicas)]
    tried = [(_worst(found), shape, found) for shape in shapes if (found := capacity.shortages(*shape))]
    if not tried:
        return Infeasible(f"{name} does not fit in {stages} stages x {replicas} replicas; {advise(tables).text}")
    _, (stages, replicas), short = min(tried, key=lambda row: row[0])
    plural = "stage" if stages == 1 else "stages"
    return Infeasible(
        f"{name} does not fit in {stages} {plural} x {replicas} replica{'s' if replicas > 1 else ''}, even with"
        f" recomputation and one micro-batch in flight: {_short_text(short, problem)}; {advise(tables).text}"
    )


def _check_codecs(plan: Plan) -> None:
    wanted = plan.problem.constraints
    allowed = {"topk" if name == "adatopk" else name for name in wanted.codecs} | {"none"}
    used = [(f"link_codecs[{i}].codec", rule.codec) for i, rule in enumerate(plan.link_codecs)]
    used += [(f"stages[{s}].reduce_codec", stage.reduce_codec) for s, stage in enumerate(plan.stages)]
    for place, codec in used:
        if codec.name not in allowed:
            raise InvalidInput(
                f"{place}: {codec.name!r} is not among constraints.codecs ({', '.join(sorted(allowed))}); allow it or"
                " use another"
            )
    if "topk" in allowed:
        _check_ratios(plan)
        _check_reduce_ratios(plan)


def _check_reduce_ratios(plan: Plan) -> None:
    limit = plan.problem.constraints.max_ratio
    for s, stage in enumerate(plan.stages):
        if stage.reduce_codec.name == "topk" and stage.reduce_codec.ratio > limit:
            raise InvalidInput(
                f"stages[{s}].reduce_codec: topk keeps one gradient in {stage.reduce_codec.ratio:g}, beyond"
                f" constraints.max_ratio {limit:g}; use a smaller ratio or raise it"
            )


def _check_ratios(plan: Plan) -> None:
    width, limit = plan.problem.workload.dtype_bytes, plan.problem.constraints.max_ratio
    for route in plan.routes:
        path = [plan.rank_at(s, r) for s, r in enumerate(route.replicas)]
        for boundary, (one, two) in enumerate(pairwise(path)):
            codec = plan.codec_between(one, two, "activation")
            elements = plan.boundary_elements(boundary)
            if codec.name == "topk" and codec.wire_bytes(elements, width) < least_topk_bytes(elements, width, limit):
                raise InvalidInput(
                    f"link_codecs: topk with ratio {codec.ratio:g} from {plan.ranks[one]!r:.60} to"
                    f" {plan.ranks[two]!r:.60} sends less than 1/{limit:g} of the dense bytes; use a smaller ratio or"
                    " raise constraints.max_ratio"
                )


def _check_pins(plan: Plan) -> None:
    place = {d: s for s, stage in enumerate(plan.stages) for replica in stage.replicas for d in replica}
    for device, stage in plan.problem.constraints.pinned.items():
        if place.get(device) != stage:
            where = f"serves stage {place[device]}" if device in place else "is not used"
            raise InvalidInput(
                f"stages: {device!r:.60} is pinned to stage {stage} but {where}; move it or drop the pin"
            )


def _check_reducer(plan: Plan) -> None:
    allowed = plan.problem.constraints.reducers
    # Without replicas nothing is reduced but weights tied across stages.
    if plan.reducer not in allowed and reduction_groups(plan):
        raise InvalidInput(
            f"reducer: {plan.reducer!r} is not among constraints.reducers ({', '.join(allowed)}); allow it or use"
            " another"
        )


def _check_local_steps(plan: Plan) -> None:
    most = plan.problem.constraints.max_local_steps
    if plan.local_steps > most:
        raise InvalidInput(
            f"local_steps: must be at most constraints.max_local_steps {most}, got {plan.local_steps}; use fewer or"
            " raise it"
        )
    own = [group for group in reduction_groups(plan) if not group.tied]
    for s in {group.stages[0] for group in own} if plan.fragments > 1 else ():
        elements = sum(group.num_elements for group in own if group.stages[0] == s)
        if elements < plan.fragments:
            raise InvalidInput(
                f"fragments: stage {s} has {elements} weights of its own, which cannot be cut into {plan.fragments}"
                " fragments; use fewer"
            )


def _worst(shortages: list[Shortage]) -> tuple[int, float]:
    """Orders layouts by their worst-off device, to a per mille, then by what all lack."""
    return round(1e3 * log(shortages[0].missing_bytes)), sum(short.missing_bytes for short in shortages)


def _short_text(shortages: list[Shortage], problem: Problem) -> str:
    """Which devices lack how much memory, by kind of device where several are alike; the worst-off first."""
    alike: dict[tuple[str, float, float], list[str]] = {}
    for short in shortages:
        kind = problem.cluster.devices[problem.cluster.device_index(short.device)].kind
        alike.setdefault((kind, short.needed_bytes, short.limit_bytes), []).append(short.device)
    parts = []
    for (kind, needed, limit), devices in list(alike.items())[:NAMED_GROUPS]:
        verb, each, need, have = ("is", "", "needs", "has") if len(devices) == 1 else ("are", " each", "need", "have")
        size = f"{need} {short_bytes(needed)}, {have} {short_bytes(limit)}"
        parts.append(f"{_names(kind, devices)} {verb} short by {short_bytes(needed - limit)}{each} ({size})")
    left = sum(len(devices) for devices in list(alike.values())[NAMED_GROUPS:])
    return ", ".join(parts) + (f", and {left} more by less" if left else "")


def _names(kind: str, devices: list[str]) -> str:
    if len(devices) == 1:
        return f"{devices[0]} ({kind})"
    more = f" and {len(devices) - NAMED_DEVICES} more" if len(devices) > NAMED_DEVICES else ""
    return f"{len(devices)} x {kind} ({', '.join(devices[:NAMED_DEVICES])}{more})"


def _remedy(plan: Plan, tables: CostTables) -> str:
    """What would make a plan fit: a change of the plan itself if there is one, else of the problem."""
    limits, single = memory_limits(plan, tables), [1] * len(plan.stages)

    def fits(needed: list[float]) -> bool:
        return all(of_rank <= limit for of_rank, limit in zip(needed, limits, strict=True))

    if not all(stage.recompute for stage in plan.stages) and fits(peak_bytes(plan, tables, recompute=True)):
        return "recomputing activations would fit"
    if max(plan.held_S) > 1:
        if fits(peak_bytes(plan, tables, held_S=single)):
            return "fewer micro-batches in flight would fit"
        if fits(peak_bytes(plan, tables, recompute=True, held_S=single)):
            return "recomputing activations with fewer micro-batches in flight would fit"
    shape = fitting_shape(Capacity(tables), plan.problem)
    if shape is not None:
        return f"another cut or placement would fit ({shape[0]} stages x {shape[1]} replicas)"
    return advise(tables).text
