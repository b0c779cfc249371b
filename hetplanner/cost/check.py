"""The full check of a plan: does every device hold its share? The structure is checked by the Plan itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hetplanner.codecs.spec import least_topk_bytes
from hetplanner.cost.tables import STATE_BYTES_PER_PARAM, CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.units import short_bytes

# How many short devices a message names.
NAMED_DEVICES = 3


def check_plan(plan: Plan, tables: CostTables | None = None) -> None:
    """Refuses a plan that its devices cannot hold or its constraints forbid.

    Raises:
        InvalidInput: if a codec or a reducer is used that the constraints do not allow.
        Infeasible: naming the devices that are short, by how much, and the change that would help.
    """
    tables = tables or CostTables(plan.problem)
    _check_codecs(plan)
    _check_reducer(plan)
    limits = memory_limits(plan, tables)
    rows = zip(plan.ranks, peak_bytes(plan, tables), limits, strict=True)
    short = [(device, needed, limit) for device, needed, limit in rows if needed > limit]
    if short:
        raise Infeasible(_short_text(short) + _remedy(plan, tables))


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
        tables.stage_bytes(stage.first_op, stage.end_op, held, recompute or stage.recompute)
        for stage, held in zip(plan.stages, held_S or plan.held_S, strict=True)
    ]
    return [sum(stage_bytes[s] for s, _ in places) for places in plan.places_of_rank]


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
    layers, usable = problem.workload.graph.num_layers, len(problem.usable_devices)
    if stages > layers:
        raise InvalidInput(
            f"constraints.stages: must be at most the model's {layers} layers, got {stages}; use fewer stages"
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
    """The error for a problem whose best layout still does not fit: by how much, and what would help."""
    memory = sorted((float(m), d) for m, d in _usable_memory(problem, tables))
    total = tables.stage_params(0, tables.num_ops) * STATE_BYTES_PER_PARAM * replicas
    have = sum(m for m, _ in memory)
    limit, device = memory[-1]
    edges = [0, *tables.cuts.tolist(), tables.num_ops]
    least = max(tables.stage_bytes(a, b, 1, True) for a, b in pairwise(edges))
    if least > limit:
        return Infeasible(
            f"{problem.workload.name} fits nowhere: its largest layer needs {short_bytes(least)} for weights,"
            f" gradients, optimizer and one micro-batch, the largest device ({device}) has {short_bytes(limit)}, short"
            f" by {short_bytes(least - limit)}; tensor parallelism or optimizer sharding would help (not supported),"
            " else a larger device"
        )
    needed = max(total, least * stages * replicas)
    advice = _advice(problem, tables, stages)
    lacking = f"short by {short_bytes(total - have)}" if total > have else "but no cut fits every device"
    return Infeasible(
        f"{problem.workload.name} does not fit in {stages} stages x {replicas} replicas: weights, gradients and"
        f" optimizer need {short_bytes(total)} (with activations up to {short_bytes(needed)}), the {len(memory)} usable"
        f" devices have {short_bytes(have)}, {lacking}; {advice}"
    )


def _usable_memory(problem: Problem, tables: CostTables) -> list[tuple[float, str]]:
    cluster = problem.cluster
    return [(float(tables.devices.memory_bytes_D[cluster.device_index(d)]), d) for d in problem.usable_devices]


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


def _check_reducer(plan: Plan) -> None:
    allowed = plan.problem.constraints.reducers
    # Without replicas nothing is reduced but weights tied across stages.
    if plan.reducer not in allowed and reduction_groups(plan):
        raise InvalidInput(
            f"reducer: {plan.reducer!r} is not among constraints.reducers ({', '.join(allowed)}); allow it or use"
            " another"
        )


def _short_text(short: list[tuple[str, float, float]]) -> str:
    named = ", ".join(
        f"{device} by {short_bytes(needed - limit)} (needs {short_bytes(needed)}, has {short_bytes(limit)})"
        for device, needed, limit in short[:NAMED_DEVICES]
    )
    more = f" and {len(short) - NAMED_DEVICES} more" if len(short) > NAMED_DEVICES else ""
    return f"the plan does not fit: short are {named}{more}; "


def _remedy(plan: Plan, tables: CostTables) -> str:
    limits = memory_limits(plan, tables)

    def fits(needed: list[float]) -> bool:
        return all(of_rank <= limit for of_rank, limit in zip(needed, limits, strict=True))

    if not all(stage.recompute for stage in plan.stages) and fits(peak_bytes(plan, tables, recompute=True)):
        return "recomputing activations would fit"
    if max(plan.held_S) > 1 and fits(peak_bytes(plan, tables, held_S=[1] * len(plan.stages))):
        return "fewer micro-batches in flight would fit"
    return _advice(plan.problem, tables, len(plan.stages))


def _advice(problem: Problem, tables: CostTables, stages: int) -> str:
    """Which single change would let every stage fit the median device, cheapest to try first."""
    sizes = sorted(m for m, _ in _usable_memory(problem, tables))
    median = sizes[len(sizes) // 2]
    layers = problem.workload.graph.num_layers
    edges = [0, *tables.cuts.tolist(), tables.num_ops]

    def smallest_peak(parts: int, recompute: bool) -> float:
        spans = [edges[round(i * (len(edges) - 1) / parts)] for i in range(parts + 1)]
        pairs = [(a, b) for a, b in pairwise(spans) if b > a]
        return max(tables.stage_bytes(a, b, 1, recompute) for a, b in pairs)

    if not problem.workload.recompute and smallest_peak(stages, True) <= median:
        return "recomputing activations (recompute) would help"
    for more in range(stages + 1, layers + 1):
        if smallest_peak(more, True) <= median:
            lacking = "" if more <= len(sizes) else f"; that takes {more - len(sizes)} more devices"
            return f"more stages would help ({more} of them, with recompute{lacking})"
    micro_batch = problem.workload.micro_batch
    state = max(tables.stage_params(a, b) for a, b in pairwise(edges)) * STATE_BYTES_PER_PARAM
    if micro_batch > 1 and state + (smallest_peak(layers, True) - state) / micro_batch <= median:
        return "a smaller micro_batch would help"
    return "tensor parallelism or optimizer sharding would help (not supported), else larger devices"
