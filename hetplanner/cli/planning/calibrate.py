"""hetplanner calibrate: fit a cluster to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.output import AsJson, bold, console, print_json, table
from hetplanner.cli.problem import listed
from hetplanner.errors import InvalidInput
from hetplanner.units import short_rate, short_seconds

if TYPE_CHECKING:
    from hetplanner.calibration.dtfm_rows import PublishedFit
    from hetplanner.calibration.model import Calibration
    from hetplanner.calibration.table_fit import MeasuredStep
    from hetplanner.cluster.model import Cluster
    from hetplanner.plan.model import Plan


def calibrate(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|TRACE|PLANS]", help="A run, a trace file, or with --table plan files."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan that a trace file is of.")] = None,
    table_file: Annotated[
        Path | None, typer.Option("--table", help="Measured steps: CSV or JSON with the columns plan and seconds.")
    ] = None,
    fit: Annotated[
        str,
        typer.Option(
            help="Of a table: efficiency, message, overlap, step, launch, latency, bandwidth, comma-separated."
        ),
    ] = "efficiency",
    published: Annotated[str | None, typer.Option(help="Predict published runs instead: dtfm.")] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="The cluster file to calibrate; the plan's cluster if not given.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the calibrated cluster here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the calibration itself here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit device efficiencies, links and message costs to a run, a trace or a table of measured steps."""
    from hetplanner.calibration.model import apply_calibration, calibration_to_data, save_calibration
    from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
    from hetplanner.schema import check_writable

    if published is not None:
        _show_published(published, [*(sources or []), *filter(None, (plan, table_file, cluster, out, save))], as_json)
        return
    for path in (out, save):
        if path is not None:
            check_writable(path)
    given = load_cluster(cluster) if cluster is not None else None
    if table_file is not None:
        found, clusters = _from_table(table_file, sources or [], fit)
    else:
        found, clusters = _from_trace(sources or [], plan)
    if out is not None and given is None and len(clusters) > 1:
        raise InvalidInput(f"--out: the table is of {len(clusters)} clusters; give the one to write with --cluster")
    fitted = apply_calibration(found, given or clusters[0])
    if save is not None:
        save_calibration(found, save)
    if out is not None:
        save_cluster(fitted, out)
    if as_json:
        print_json(calibration_to_data(found) | {"mean_error": _errors(found), "out": str(out) if out else None})
        return
    _print(found, fitted)
    for path, what in ((save, "calibration"), (out, "calibrated cluster")):
        if path is not None:
            console.print(f"{what} written to {path}")


def _from_trace(sources: list[str], plan_file: Path | None) -> tuple[Calibration, list[Cluster]]:
    """From a run directory or a trace file."""
    from hetplanner.calibration.trace_fit import calibrate_trace
    from hetplanner.plan.files.plan_files import load_plan
    from hetplanner.plan.files.trace_files import load_trace
    from hetplanner.runs.reports.report import TRACED_STEPS
    from hetplanner.runs.run import open_run

    if len(sources) != 1:
        raise InvalidInput(f"calibrate: give one run or trace file, or --table FILE with plans; got {len(sources)}")
    if Path(sources[0]).is_file():
        if plan_file is None:
            raise InvalidInput(f"{sources[0]}: a trace file does not hold its plan; give it with --plan PLAN.json")
        plan, trace = load_plan(plan_file), load_trace(sources[0])
    else:
        run = open_run(sources[0])
        plan = load_plan(plan_file) if plan_file is not None else run.plan
        trace = run.trace(TRACED_STEPS)
    return calibrate_trace(trace, plan), [plan.problem.cluster]


def _from_table(file: Path, plan_files: list[str], fit: str) -> tuple[Calibration, list[Cluster]]:
    """From measured steps of plans, of one cluster or several."""
    from hetplanner.calibration.table_fit import calibrate_table, match_plans, read_table
    from hetplanner.plan.files.plan_files import load_plan

    rows = read_table(file)
    plans: dict[str, Plan] = {}
    for path in plan_files:
        name = Path(path).name
        if name in plans:
            raise InvalidInput(f"{path}: another plan file is called {name} too; rename one")
        plans[name] = load_plan(path)
    steps: list[MeasuredStep] = match_plans(rows, plans)
    clusters = {step.plan.problem.cluster.name: step.plan.problem.cluster for step in steps}
    return calibrate_table(steps, fit=listed(fit)), list(clusters.values())


def _errors(found: Calibration) -> dict[str, float]:
    return {"before": found.mean_error("before"), "after": found.mean_error("after")}


def _print(found: Calibration, fitted: Cluster) -> None:
    """Fitted values with their uncertainty, then predictions against measurements."""
    console.print(bold(found.description))
    print_fit(found, fitted)
    _print_checks(found)


def print_fit(found: Calibration, fitted: Cluster) -> None:
    """Fitted values with their uncertainty."""
    if found.kinds:
        rows = table("Devices", "kind", "efficiency", "memory bandwidth", "from", right=("efficiency", "from"))
        for kind in found.kinds:
            memory = "–" if kind.memory_bandwidth is None else short_rate(kind.memory_bandwidth)
            rows.add_row(
                kind.kind,
                f"{kind.efficiency:.4g}{_spread(kind.efficiency_error)}",
                memory + ("" if kind.memory_bandwidth is None else _spread(kind.memory_bandwidth_error)),
                str(kind.observations),
            )
        console.print(rows)
    if found.links:
        rows = table("Links", "link", "latency", "bandwidth", "from", right=("latency", "bandwidth", "from"))
        for link in found.links:
            rows.add_row(
                _link_words(link.between, link.from_name, link.to_name),
                short_seconds(link.latency) + _spread(link.latency_error),
                short_rate(link.bandwidth) + _spread(link.bandwidth_error),
                str(link.observations),
            )
        console.print(rows)
    if found.transfer is not None:
        overlap = "" if found.overlap_error is None else f" ± {found.overlap_error:.2g}"
        console.print(
            f"messages: {short_seconds(found.transfer.message)}{_spread(found.message_error)} at either end,"
            f" overlap {found.transfer.overlap:.3g}{overlap}"
        )
        if found.transfer.step:
            console.print(
                f"every step: {short_seconds(found.transfer.step)}{_spread(found.step_error)} beside its plan"
            )
        if found.transfer.launch:
            console.print(
                f"every operator: {short_seconds(found.transfer.launch)}{_spread(found.launch_error)} to launch"
            )
    console.print(
        f"± standard error; ~ not told apart by these measurements, so near what was assumed. Cluster: {fitted.name}",
        style="dim",
    )


def _print_checks(found: Calibration) -> None:
    columns = ("measured", "before", "error before", "after", "error after")
    rows = table("Predicted against measured", "what", *columns, right=columns)
    for c in found.checks:
        rows.add_row(
            c.label,
            short_seconds(c.measured_s),
            short_seconds(c.before_s),
            _error(c.before_s, c.measured_s),
            short_seconds(c.after_s),
            _error(c.after_s, c.measured_s),
        )
    console.print(rows)
    what = "step" if found.source == "trace" else "mean"
    console.print(f"{what} error {found.mean_error('before'):.1%} before, {found.mean_error('after'):.1%} after")


def _link_words(between: str, start: str, end: str) -> str:
    if between == "inside host":
        return f"inside host {start}"
    return f"inside {start}" if start == end else f"{start} → {end}"


def _spread(error: float | None) -> str:
    return " ~" if error is None else f" ± {error:.1%}"


def _error(predicted_s: float, measured_s: float) -> str:
    return f"{predicted_s / measured_s - 1.0:+.1%}" if measured_s > 0 else "–"


def _show_published(name: str, others: list[Any], as_json: bool) -> None:
    from hetplanner.calibration.dtfm_rows import fit_published, published_runs

    if name != "dtfm":
        raise InvalidInput(f"--published: unknown {name!r:.40}; known is dtfm")
    if others:
        raise InvalidInput("--published: takes no runs, traces, tables or files to write; leave them out")
    found = fit_published()
    if as_json:
        print_json(found.to_data())
        return
    _print_published(found)
    console.print(published_runs().provenance, style="dim")


def _print_published(found: PublishedFit) -> None:
    right = ("measured", "predicted", "error")
    rows = table("DT-FM's published seconds per iteration", "row", "use", *right, right=right)
    for row in found.rows:
        use = {"efficiency": "fits the efficiency", "overlap": "fits the overlap"}.get(row.use, row.use)
        rows.add_row(row.label, use, f"{row.measured_s:.2f} s", f"{row.predicted_s:.2f} s", f"{row.error:+.1%}")
    console.print(rows)
    wrong = found.wrong_orders()
    console.print(
        f"efficiency {found.efficiency:.3f}, overlap {found.overlap:.3f}; mean error of the predicted rows"
        f" {found.mean_error:.1%}; placements further apart than 5 % ordered wrongly: {len(wrong) or 'none'}"
    )
    errors = sorted(c.mean_error for c in found.choices)
    told = sorted(c.mean_error for c in found.choices if c.left <= 0.02)
    console.print(
        f"all {len(errors)} choices of the two fitted rows: mean error {sum(errors) / len(errors):.1%}, median"
        f" {errors[len(errors) // 2]:.1%}; of the {len(told)} that can be met: best {told[0]:.1%}, median"
        f" {told[len(told) // 2]:.1%}, worst {told[-1]:.1%}"
    )
