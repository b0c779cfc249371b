"""A plan as a grid of stages and replicas."""

from collections import Counter
from typing import Any

from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Plan
from hetplanner.plots.data.maps.maps import listed
from hetplanner.plots.theme import ink_on, site_colour
from hetplanner.units import short_bytes, short_seconds

Columns = dict[str, list[Any]]


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters; what is left out in the middle is shown as '…' (ends tell ids apart)."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return text[: limit - 1 - tail] + "…" + (text[-tail:] if tail else "") if limit > 1 else "…"


def ops_text(plan: Plan, stage: int) -> str:
    """'layers 0–5', with what stands outside the layers: 'embedding, layers 0–5'; without layers first and last op.

    A layer that the next stage goes on with is '5 in part'.
    """
    ops = plan.ops_of(stage)
    if not _has_layers(plan):
        return ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name} ({len(ops)} ops)"
    layers = sorted({op.layer for op in ops if op.layer is not None})
    first = next((i for i, op in enumerate(ops) if op.layer is not None), len(ops))
    before = list(dict.fromkeys(op.kind for op in ops[:first]))
    after = list(dict.fromkeys(op.kind for op in ops[first:] if op.layer is None))
    middle = [f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}–{layers[-1]}"] if layers else []
    partly = _partial_layers(plan, stage)
    if partly:
        middle[-1] += f" ({' and '.join(map(str, partly))} in part)" if len(layers) > 1 else " in part"
    return ", ".join([*before, *middle, *after])


def layers_text(plan: Plan, stage: int) -> str:
    """Short form for an axis: 'L0–5', 'L6', or the kinds of the ops where a stage holds no layer; without layers the
    numbers of the ops.
    """
    if not _has_layers(plan):
        first, last = plan.stages[stage].first_op, plan.stages[stage].end_op - 1
        return f"op {first}" if first == last else f"ops {first}–{last}"
    layers = sorted({op.layer for op in plan.ops_of(stage) if op.layer is not None})
    if not layers:
        return listed(list(dict.fromkeys(op.kind for op in plan.ops_of(stage))), 2)
    return f"L{layers[0]}" if len(layers) == 1 else f"L{layers[0]}–{layers[-1]}"


def _has_layers(plan: Plan) -> bool:
    return any(op.layer is not None for op in plan.problem.workload.graph.ops)


def _partial_layers(plan: Plan, stage: int) -> list[int]:
    """Of a stage's layers those of which others hold a part, ascending."""
    here = Counter(op.layer for op in plan.ops_of(stage) if op.layer is not None)
    everywhere = Counter(op.layer for op in plan.problem.workload.graph.ops)
    return sorted(layer for layer, count in here.items() if count < everywhere[layer])


def micro_batches_through(plan: Plan) -> dict[tuple[int, int], int]:
    """(stage, replica) -> micro-batches of a step that pass it."""
    through: dict[tuple[int, int], int] = {}
    for route in plan.routes:
        for place in enumerate(route.replicas):
            through[place] = through.get(place, 0) + route.micro_batches
    return through


def grid_columns(plan: Plan, *, id_chars: int = 14) -> Columns:
    """One row for every replica of every stage.

    Columns: stage, replica, device, kind, site, host, rank, colour (of the site), ink, line_1 (id) and line_2
    (kind, of a group with its size), ops, params, micro_batches, share, busy, memory.
    """
    cluster = plan.problem.cluster
    row_of_site = {site.name: i for i, site in enumerate(cluster.sites)}
    through = micro_batches_through(plan)
    total = plan.problem.workload.num_micro_batches
    estimates = {e.device: e for e in plan.estimate.devices} if plan.estimate else {}
    tables = CostTables(plan.problem)
    rows = []
    for s, stage in enumerate(plan.stages):
        params = tables.stage_params(stage.first_op, stage.end_op)
        for r, replica in enumerate(stage.replicas):
            device = cluster.devices[cluster.device_index(replica[0])]
            site, kind = cluster.site_of(device.id).name, kind_text(plan, device.id)
            expected = estimates.get(device.id)
            rows.append(
                {
                    "stage": s,
                    "replica": r,
                    "device": device.id,
                    "kind": kind,
                    "site": site,
                    "host": device.host,
                    "rank": plan.rank_at(s, r),
                    "colour": site_colour(row_of_site[site]),
                    "ink": ink_on(site_colour(row_of_site[site])),
                    "line_1": shortened(device.id, id_chars),
                    "line_2": shortened(kind, id_chars),
                    "ops": ops_text(plan, s),
                    "params": f"{params / 1e6:,.1f} M",
                    "micro_batches": through[s, r],
                    "share": f"{through[s, r]} of {total} micro-batches ({through[s, r] / total:.0%})",
                    "busy": short_seconds(expected.busy_s) if expected else "not estimated",
                    "memory": f"{short_bytes(expected.peak_bytes)} of {short_bytes(expected.limit_bytes)}"
                    if expected
                    else "not estimated",
                }
            )
    return {name: [row[name] for row in rows] for name in rows[0]}


def kind_text(plan: Plan, device: str) -> str:
    """A device's kind; of one that leads a group with how many there are."""
    cluster, degree = plan.problem.cluster, plan.problem.degree_of(device)
    kind = cluster.devices[cluster.device_index(device)].kind
    return kind if degree == 1 else f"{degree} × {kind}"
