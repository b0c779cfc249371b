"""What commands about plans print: a plan and its estimate, as text and as data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetplanner.cli.output import bar, bold, console, table
from hetplanner.planners.interface import OBJECTIVE_UNITS
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.estimate import Estimate
    from hetplanner.plan.model import Plan
    from hetplanner.planners.interface import SearchResult
    from hetplanner.planners.variants.attribution import Gain, GainPart

BASELINES = ("rank order", "random")
MOST_IDLE = 12
MOST_PAID = 5
"""Receivers of dollars that are named."""


def write_report(result: SearchResult, path: Path) -> None:
    """The plan's report with the film of its search, against rank order and a random placement."""
    from hetplanner.errors import HetplannerError
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.registry import make_planner
    from hetplanner.plots.plan_report_page import plan_report_page
    from hetplanner.schema import write_text

    baselines: dict[str, Estimate] = {}
    for label in BASELINES:
        planner = make_planner(label.replace(" ", "-"))
        with suppress(HetplannerError):  # what does not fit the devices' memory is no baseline
            found = planner.solve(result.plan.problem, seed=result.seed, budget=Budget(evaluations=1)).plan.estimate
            baselines |= {label: found} if found is not None else {}
    write_text(path, plan_report_page(result.plan, result.moments, result.tried, baselines))


def say_report(path: Path | None) -> None:
    """Where the report is, if one was asked for."""
    if path is not None:
        console.print(f"report written to {path}; open it in any browser")


def result_data(result: SearchResult, out: Path | None) -> dict[str, Any]:
    """What `plan --json` prints."""
    from hetplanner.cluster.egress import egress_rows
    from hetplanner.cost.advice.reductions import advise_reductions
    from hetplanner.cost.compute.sources import compute_sources
    from hetplanner.plan.files.plan_files import plan_to_data

    estimate = result.plan.estimate
    assert estimate is not None
    data = {
        "step_s": estimate.step_s,
        "simulated_step_s": result.plan.provenance.simulated_step_s,
        "tokens_per_s": estimate.tokens_per_s,
        "usd_per_mtoken": estimate.usd_per_mtoken,
        "tokens_per_usd": estimate.tokens_per_usd,
        "device_usd": estimate.device_usd,
        "egress_usd": estimate.egress_usd,
        "unpriced_egress_bytes": estimate.unpriced_egress_bytes,
        "egress_prices": egress_rows(result.plan.problem.cluster),
        "dollars": dict(_dollars(result.plan)),
        "terms": estimate.terms,
        "bottleneck": estimate.bottleneck.model_dump(),
        "compute_sources": [asdict(source) for source in compute_sources(result.plan.problem)],
        "notes": estimate.notes,
        "advice": advise_reductions(result.plan),
        "objective": result.plan.problem.objective,
        "value": result.value,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "lower_bound": result.lower_bound,
        "gap": result.gap,
        "cancelled": result.cancelled,
        "plan": str(out) if out is not None else plan_to_data(result.plan),
    }
    if estimate.dtfm is not None:
        data["dtfm"] = estimate.dtfm.model_dump()
    return data


def print_plan(plan: Plan, result: SearchResult) -> None:
    """A plan and its estimate for a person."""
    from hetplanner.cost.advice.reductions import advise_reductions
    from hetplanner.cost.compute.sources import compute_sources

    estimate = plan.estimate
    assert estimate is not None
    workload = plan.problem.workload
    console.print(
        bold(workload.name),
        "on",
        bold(f"{plan.problem.cluster.name}:"),
        f"{_shape_text(plan)}, {plan.schedule}, {plan.reduction_text}"
        + (f", {_counted(plan.local_steps, 'local step')}" if plan.is_local else "")
        + (f", {plan.fragments} fragments" if plan.fragments > 1 else ""),
    )
    _print_stages(plan)
    print_terms(estimate)
    console.print(f"step {short_seconds(estimate.step_s)}, {estimate.tokens_per_s:,.0f} {workload.token_word}/s")
    console.print(price_text(estimate, workload.token_word))
    objective = plan.problem.objective
    if objective == "cost":
        console.print(dollars_text(plan))
    if objective == "dtfm" and estimate.dtfm is not None:
        cost = estimate.dtfm
        console.print(
            f"DT-FM objective {cost.total_s:.5f}"
            f" (data parallel {cost.data_parallel_s:.5f}, pipeline {cost.pipeline_s:.5f})"
        )
    console.print(f"bottleneck: {estimate.bottleneck.text}")
    console.print(f"compute seconds from {'; '.join(map(str, compute_sources(plan.problem)))}")
    advice = advise_reductions(plan)
    for note in (*estimate.notes, *([advice] if advice else [])):
        console.print(note)
    console.print(
        f"{result.evaluations:,} plans scored in {result.seconds:.2f} s, seed {result.seed};"
        f" lower bound {result.lower_bound:.5g} {OBJECTIVE_UNITS[objective]}, gap {result.gap:.1%}"
        + (" (search was cancelled)" if result.cancelled else ""),
        style="dim",
    )


def print_terms(estimate: Estimate) -> None:
    """Where a step's time goes, as a table."""
    from hetplanner.cost.terms import term_label

    terms = table("One step", "term", "seconds", "share", right=("seconds",))
    for name, value in estimate.terms.items():
        terms.add_row(term_label(name), short_seconds(value), bar(value / estimate.step_s))
    console.print(terms)


def price_text(estimate: Estimate, word: str) -> str:
    """What a million tokens (or another `word`) cost, what that is made of and what it leaves out, in a line."""
    if estimate.usd_per_mtoken is None or estimate.device_usd is None or estimate.egress_usd is None:
        return "price unknown: a device in use has no price_usd_per_hour"
    text = f"{estimate.usd_per_mtoken:.3g} $ per million {word}"
    if estimate.tokens_per_usd:
        egress = estimate.egress_usd / (estimate.device_usd + estimate.egress_usd)
        share = "" if estimate.left_out_text and not egress else f" ({egress:.0%} of it egress)"
        text += f"{share}, {estimate.tokens_per_usd:,.0f} {word} per $"
    return f"{text}; {estimate.left_out_text}" if estimate.left_out_text else text


def _shape_text(plan: Plan) -> str:
    """Stages and pipelines; where stages have unlike numbers of replicas, these."""
    counts = [len(stage.replicas) for stage in plan.stages]
    if len(set(counts)) == 1 and len(plan.routes) == counts[0]:
        return f"{_counted(len(counts), 'stage')} × {_counted(counts[0], 'pipeline')}"
    replicas = "+".join(str(n) for n in counts)
    return f"{_counted(len(counts), 'stage')} of {replicas} replicas, {_counted(len(plan.routes), 'route')}"


def dollars_text(plan: Plan) -> str:
    """What is paid for, in a line: what to leave out, or where to stay, if dollars are to be saved."""
    paid = _dollars(plan)
    total = sum(usd for _, usd in paid)
    parts = [f"{name} {usd / total:.0%}" for name, usd in paid[:MOST_PAID]]
    rest = sum(usd for _, usd in paid[MOST_PAID:])
    return "dollars go to: " + (", ".join(parts + ([f"others {rest / total:.0%}"] if rest else [])) or "none")


def _dollars(plan: Plan) -> list[tuple[str, float]]:
    """What is paid for, and how much, in one step."""
    from hetplanner.cost.dollars import list_dollars
    from hetplanner.cost.estimate import CostModel

    assert plan.estimate is not None
    model = CostModel.of(plan.problem)
    return list_dollars(plan, plan.estimate.step_s, model.tables, model.links)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")


def gain_text(gain: Gain | None, objective: str) -> str:
    """What the choices of a plan bring, in a line."""
    what = {"step-time": "speed", "cost": "tokens per dollar", "dtfm": "DT-FM's objective"}[objective]
    how = "devices in file order, equal layers and shares, usual depth"
    baseline = f"the same stages and pipelines as a launcher places them ({how})"
    if gain is None:
        return f"gain: none to state, {baseline} would not fit the devices' memory or the links there are"
    if not gain.parts:
        return f"gain: none over {baseline}"
    shares = (_share_text(part) for part in gain.parts if part.share is None or abs(part.share) >= 0.005)
    return f"gain in {what}: {gain.ratio:.2f} × over {baseline}; lost without one of them: {', '.join(shares)}"


def _share_text(part: GainPart) -> str:
    beside = f" (and {part.beside})" if part.beside else ""
    return f"{part.name}{beside} " + (f"{part.share:.0%}" if part.share is not None else "would not fit memory")


def _print_stages(plan: Plan) -> None:
    from hetplanner.cost.tables import CostTables

    tables = CostTables(plan.problem)
    columns = ("parameters", *(("trained",) if plan.problem.workload.trained_text else ()))
    rows = table("Stages", "stage", "ops", *columns, "devices (one a pipeline)", right=("stage", *columns))
    for s, stage in enumerate(plan.stages):
        ops = plan.ops_of(s)
        devices = " ".join(plan.problem.worker_name(device) for replica in stage.replicas for device in replica)
        held = (tables.stage_params(stage.first_op, stage.end_op), tables.stage_trained(stage.first_op, stage.end_op))
        counts = [f"{count:,}" for count in held[: len(columns)]]
        rows.add_row(str(s), f"{ops[0].name} … {ops[-1].name}", *counts, devices)
    console.print(rows)
    idle = [device for device in plan.problem.usable_devices if device not in plan.ranks]
    if idle:
        more = f" and {len(idle) - MOST_IDLE} more" if len(idle) > MOST_IDLE else ""
        console.print(f"not used: {', '.join(idle[:MOST_IDLE])}{more}")
