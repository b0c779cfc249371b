"""A plan's report as one HTML file: the film of its search, what its choices bring, its stages and devices."""

from collections.abc import Mapping, Sequence
from functools import partial

from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.errors import HetplannerError
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.planners.layout import value_of
from hetplanner.planners.search.moments import Moment, plan_moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.planners.variants.attribution import CHOICE_WORDS, divide_gain
from hetplanner.plots.data.curves import tried_columns, value_text
from hetplanner.plots.data.maps.maps import listed
from hetplanner.plots.data.search.grid import ops_text
from hetplanner.plots.film import film_html
from hetplanner.plots.html_page import html_page, html_table
from hetplanner.plots.report_parts import Fact, head, note
from hetplanner.units import short_bytes, short_seconds


def plan_report_page(
    plan: Plan,
    moments: Sequence[Moment] = (),
    tried: Sequence[TriedShape] = (),
    baselines: Mapping[str, Estimate] | None = None,
    *,
    offset_s: float = 0.0,
) -> str:
    """The whole page as text.

    Args:
        plan: what is reported; without an estimate it gets one.
        moments: of the search that found it; none: it is drawn as it is.
        tried: shapes that the search tried, the best first.
        baselines: what its step is held against, by label.
        offset_s: seconds of search before the moments, where it was resumed.
    """
    model = CostModel.of(plan.problem)
    estimate = plan.estimate or estimate_plan(plan, model=model)
    plan = plan.replace(estimate=estimate)
    said = partial(value_text, objective=plan.problem.objective)
    shown = moments or [plan_moment(plan, _value(plan), 0.0, plan.provenance.evaluations)]
    name = f"{plan.problem.workload.name} on {plan.problem.cluster.name}"
    parts = [
        head(f"Plan of {name}", f"Bottleneck: {estimate.bottleneck.text}", _facts(plan, estimate), failed=False),
        f"<h2>{'The search, improvement by improvement' if len(shown) > 1 else 'Who does what'}</h2>",
        film_html(shown, plan.problem.cluster, baselines or {}, said, offset_s=offset_s),
        *_gain(plan, model),
        *_tried(tried, plan),
        "<h2>Stages</h2>",
        _stages_table(plan, model.tables),
        "<h2>Devices, the fullest first</h2>",
        _devices_table(plan, estimate),
        *map(note, estimate.notes),
    ]
    return html_page(f"{name} · hetplanner plan report", parts)


def _value(plan: Plan) -> float:
    """The objective's; of a plan whose price is unknown its step."""
    try:
        return value_of(plan)
    except HetplannerError:
        assert plan.estimate is not None
        return plan.estimate.step_s


def _facts(plan: Plan, estimate: Estimate) -> list[Fact]:
    origin, objective, word = plan.provenance, plan.problem.objective, plan.problem.workload.token_word
    counts = sorted({len(stage.replicas) for stage in plan.stages})
    replicas = "–".join(map(str, counts if len(counts) < 2 else (counts[0], counts[-1])))
    simulated = "" if origin.simulated_step_s is None else f", simulated {short_seconds(origin.simulated_step_s)}"
    shape = f"{_counted(len(plan.stages), 'stage')} × {replicas} replica{'' if counts == [1] else 's'}"
    shape += f" on {_counted(len(plan.ranks), 'device')}"
    facts = [
        ("Step", f"{short_seconds(estimate.step_s)}{simulated}; {estimate.tokens_per_s:,.0f} {word}/s"),
        ("Plan", f"{shape}, {plan.schedule}, {plan.reduction_text} (plan {plan.digest()[:8]})"),
    ]
    if estimate.usd_per_mtoken is not None:
        left_out = f", {estimate.left_out_text}" if estimate.left_out_text else ""
        facts.append(("Price", f"${estimate.usd_per_mtoken:.3g} per million {word}{left_out}"))
    bound = "" if origin.lower_bound is None else f"; no plan is below {value_text(origin.lower_bound, objective)}"
    seed = "" if origin.seed is None else f", seed {origin.seed}"
    tried = f", {origin.evaluations:,} placements in {short_seconds(origin.seconds)}" if origin.evaluations else ""
    derived = f" {origin.derived}" if origin.derived else ""
    return [*facts, ("Found by", f"{origin.planner}{derived} for {objective}{seed}{tried}{bound}")]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _gain(plan: Plan, model: CostModel) -> list[str]:
    """Of interleaved plans nothing is said: a launcher has none to compare with."""
    gain = None if plan.is_interleaved else divide_gain(plan, model=model)
    if gain is None or not gain.parts:
        return []
    objective = plan.problem.objective
    rows = [["as a launcher places them", value_text(gain.baseline, objective), ""]]
    rows += [
        [
            " + ".join(CHOICE_WORDS[name] for name in part.name.split(" + ")),
            value_text(part.value, objective),
            "" if part.share is None else f"{100 * part.share:.0f} %",
        ]
        for part in gain.parts
    ]
    lead = (
        "The same stages and replicas with devices in file order, equal layers and usual depth; then choice by choice."
    )
    return [
        "<h2>Which choices brought the gain</h2>",
        note(lead),
        html_table(["choice", "value with it", "share"], rows, 2),
    ]


def _tried(tried: Sequence[TriedShape], plan: Plan) -> list[str]:
    if not tried:
        return []
    columns, left_out = tried_columns(tried, "s" if plan.problem.objective != "cost" else "$ per million tokens")
    rows = [list(row) for row in zip(columns["shape"], columns["text"], strict=True)]
    more = [note(f"{left_out:,} more are far slower or do not fit.")] if left_out else []
    return ["<h2>Shapes tried</h2>", html_table(["stages × replicas", "best plan"], rows, 0), *more]


def _stages_table(plan: Plan, tables: CostTables) -> str:
    rows = [
        [
            str(s),
            ops_text(plan, s),
            listed([device for replica in stage.replicas for device in replica]),
            f"{tables.stage_params(stage.first_op, stage.end_op) / 1e6:,.1f} M",
            str(stage.in_flight),
        ]
        for s, stage in enumerate(plan.stages)
    ]
    return html_table(["stage", "operators", "devices", "parameters", "in flight"], rows, 2)


def _devices_table(plan: Plan, estimate: Estimate) -> str:
    cluster = plan.problem.cluster
    rows = [
        [
            e.device,
            cluster.devices[cluster.device_index(e.device)].kind,
            cluster.site_of(e.device).name,
            short_seconds(e.busy_s),
            f"{short_bytes(e.peak_bytes)} of {short_bytes(e.limit_bytes)}",
        ]
        for e in sorted(estimate.devices, key=lambda e: -e.peak_bytes / max(e.limit_bytes, 1))
    ]
    return html_table(["device", "kind", "site", "computes a step", "memory"], rows, 2)
