"""hetplanner simulate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.output import AsJson, console, notices, print_json, table
from hetplanner.cli.planning.forecast import PUBLISHED_TRACES, PreemptionOptions, forecast_file
from hetplanner.cli.planning.plan import PlanFile
from hetplanner.units import short_bytes, short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.model import Plan
    from hetplanner.plan.trace import Trace
    from hetplanner.simulator.jitter import Jitter
    from hetplanner.simulator.simulation import Summary
    from hetplanner.simulator.timing import Spread

TraceOption = Annotated[Path | None, typer.Option(help="Write a Perfetto / Chrome trace here.")]
Schedule = Annotated[str | None, typer.Option(help="Another schedule: gpipe, 1f1b or interleaved.")]
Chunks = Annotated[int, typer.Option(help="Stages of every device when interleaved.", min=2)]
InFlight = Annotated[int | None, typer.Option(help="Another in-flight depth for all stages.", min=1)]
JitterOption = Annotated[float, typer.Option(help="Relative spread of compute and transfer times.")]
NetworkJitter = Annotated[float | None, typer.Option(help="Relative spread of transfers, if another.")]
Seed = Annotated[int, typer.Option(help="Of the jitter.", min=0)]
Runs = Annotated[int, typer.Option(help="Simulations with jitter, seeds counting up.", min=1)]
Preemptions = Annotated[
    str | None,
    typer.Option(help=f"Elastic plans: a trace file, or {', '.join(PUBLISHED_TRACES)} (as fleets)."),
]
Lifetime = Annotated[
    str | None, typer.Option(help="Elastic plans: draw preemptions; peers live so long in the mean, such as 6h.")
]
Duration = Annotated[str, typer.Option(help="Length of drawn preemptions.")]
Seeds = Annotated[int, typer.Option(help="Preemptions simulated, seeds counting up.", min=1)]
Policies = Annotated[str, typer.Option(help="Rebalancing to compare: throughput,queue,none; the plan's if not given.")]
Download = Annotated[str | None, typer.Option(help="Until a peer has its stage's state; by the links.")]
Notice = Annotated[str, typer.Option(help="How long before its preemption a peer is told.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Write the plan of another schedule here.")]


def simulate(
    file: PlanFile,
    trace: TraceOption = None,
    schedule: Schedule = None,
    chunks: Chunks = 2,
    in_flight: InFlight = None,
    jitter: JitterOption = 0.0,
    network_jitter: NetworkJitter = None,
    seed: Seed = 0,
    runs: Runs = 1,
    preemptions: Preemptions = None,
    lifetime: Lifetime = None,
    duration: Duration = "24h",
    seeds: Seeds = 10,
    policies: Policies = "",
    download: Download = None,
    notice: Notice = "0s",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Perform a plan's schedule on its links, event by event, and report where the time goes.

    Of an elastic plan: a steady-state step, or with --preemptions or --lifetime what it trains while peers come and go.
    """
    from hetplanner.plan.files.plan_files import save_plan
    from hetplanner.schema import check_writable, write_text
    from hetplanner.simulator.jitter import Jitter
    from hetplanner.simulator.simulation import simulate as run_simulation
    from hetplanner.simulator.simulation import summarise_plan

    for path in (trace, out):
        if path is not None:
            check_writable(path)
    if preemptions is not None or lifetime is not None:
        options = PreemptionOptions(preemptions, lifetime, duration, seeds, seed, policies, download, notice)
        forecast_file(file, options, as_json)
        return
    _refuse_without_preemptions({"--policies": policies, "--download": download})
    plan = _rescheduled(_plan_of(file, schedule or in_flight), schedule, chunks, in_flight)
    varied = Jitter(jitter, jitter if network_jitter is None else network_jitter)
    spans = run_simulation(plan, jitter=varied, seed=seed)
    summary = summarise_plan(plan, jitter=varied, seed=seed, trace=spans)
    spread = _spread(plan, varied, seed, runs)
    if trace is not None:
        write_text(trace, json.dumps(spans.to_perfetto()))
    if out is not None:
        save_plan(plan, out)
    if as_json:
        data: dict[str, Any] = summary.to_dict() | ({"trace": str(trace)} if trace else {})
        data |= {"plan": str(out)} if out else {}
        print_json(data | ({"jitter": spread.to_dict()} if spread else {}))
        return
    _print_summary(plan, spans, summary)
    if spread is not None:
        _print_spread(spread, runs, seed)
    if trace is not None:
        console.print(f"trace written to {trace}; open it at ui.perfetto.dev or in chrome://tracing")
    if out is not None:
        console.print(f"plan written to {out}")


def _refuse_without_preemptions(given: Mapping[str, str | None]) -> None:
    from hetplanner.errors import InvalidInput

    for name, value in given.items():
        if value:
            raise InvalidInput(f"{name}: is for preemptions; add --lifetime 6h or --preemptions, or remove it")


def _plan_of(file: Path, changed: object) -> Plan:
    """The plan, of an elastic one a steady-state step; another schedule has only a static plan. Raises InvalidInput."""
    from hetplanner.cost.elastic.steady_state import steady_state_plan
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.plan.files.plan_files import load_any_plan, load_plan

    plan = load_plan(file) if changed else load_any_plan(file)
    if not isinstance(plan, ElasticPlan):
        return plan
    notices.print(f"{file.name} is elastic: a steady-state step, with all peers of the start; try --lifetime 6h")
    return steady_state_plan(plan)


def _rescheduled(plan: Plan, schedule: str | None, chunks: int, in_flight: int | None) -> Plan:
    """The plan, or one derived from it. Raises InvalidInput, Infeasible."""
    from typing import get_args

    from hetplanner.errors import InvalidInput
    from hetplanner.plan.model import ScheduleName
    from hetplanner.planners.variants.schedules import reschedule

    if schedule is None and in_flight is None:
        return plan
    names = get_args(ScheduleName)
    if schedule is not None and schedule not in names:
        raise InvalidInput(f"--schedule: must be one of {', '.join(names)}, got {schedule!r:.60}")
    return reschedule(plan, schedule or plan.schedule, chunks=chunks, in_flight=in_flight)  # type: ignore[arg-type]


def _spread(plan: Plan, jitter: Jitter, seed: int, runs: int) -> Spread | None:
    from hetplanner.simulator.jitter import STILL
    from hetplanner.simulator.timing import simulate_spread

    if runs == 1 and jitter == STILL:
        return None
    return simulate_spread(plan, jitter, runs=runs, seed=seed)


def _print_spread(spread: Spread, runs: int, seed: int) -> None:
    console.print(
        f"{runs} {'run' if runs == 1 else 'runs'} with jitter, seed {seed}: median"
        f" {short_seconds(spread.median_s)}, 5 % to 95 % {short_seconds(spread.p05_s)} to"
        f" {short_seconds(spread.p95_s)}; without jitter {short_seconds(spread.still_s)}"
    )


_HEADS = {"wait": "waiting for messages", "reduce": "reduction", "idle": "rest"}
"""As in the figure that compares a simulated with a measured step."""


def _print_summary(plan: Plan, spans: Trace, summary: Summary) -> None:
    names = list(summary.terms)
    title = "One step, per rank" if plan.local_steps == 1 else f"Mean of {plan.local_steps} steps, per rank"
    heads = [_HEADS.get(name, name) for name in names]
    rows = table(title, "rank", "device", *heads, right=("rank", *heads))
    for row in summary.per_rank:
        rows.add_row(str(row["rank"]), row["device"], *(short_seconds(row[name]) for name in names))
    console.print(rows)
    estimated = short_seconds(plan.estimate.step_s) if plan.estimate else "not"
    sent = sum(s.bytes for s in spans.spans if s.kind == "send")
    console.print(
        f"step {short_seconds(summary.step_s)} simulated, {estimated} estimated;"
        f" idle {100 * summary.idle:.1f} % of the devices' time, {short_bytes(sent)} between stages"
    )
