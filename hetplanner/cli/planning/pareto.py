"""hetplanner pareto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.output import AsJson, console, print_json, progress_line, table
from hetplanner.cli.problem import Loader, budget_of, takes_problem
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.problem import Problem
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.step_time.pareto import ParetoEvent, ParetoFront

COLUMNS = ("step", "{}/s", "$/M{}", "{}/$", "egress", "stages", "pipelines", "devices")
"""The gaps take what the throughput counts: tokens or samples."""


@takes_problem("objective", "pin")
def pareto(
    load: Loader,
    budget: Annotated[str, typer.Option(help="Time of all searches together, such as 10s.")] = "10s",
    evaluations: Annotated[int | None, typer.Option(help="Plans to score instead of a time.", min=0)] = None,
    seed: Annotated[int, typer.Option(help="Of every random choice.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the plans into this folder: plan-00.json is the fastest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for plans of which none is both faster and cheaper than another; Ctrl-C keeps those found."""
    if out is not None:
        _check_folder(out)
    problem = load()
    limit = budget_of(budget, evaluations)
    front = _search(problem, seed, limit)
    files = _write(front, out) if out is not None else []
    if as_json:
        print_json(_data(front, files))
        return
    _print(front)
    if out is not None:
        console.print(f"{len(files)} plans written to {out}; train one with: hetplanner train {files[0]}")


def _check_folder(out: Path) -> None:
    """Refuses a folder that could not be written after long work, or that holds plans of another front."""
    from hetplanner.errors import InvalidInput
    from hetplanner.schema import check_writable

    if not out.exists():
        check_writable(out)
    elif not out.is_dir():
        raise InvalidInput(f"{out}: cannot be written: it is no folder")
    elif any(out.glob("plan-*.json")):
        raise InvalidInput(f"{out}: holds plans already; give another folder or remove them")


def _search(problem: Problem, seed: int, budget: Budget) -> ParetoFront:
    """Runs the search under a progress line; Ctrl-C ends it, not the program."""
    from hetplanner.planners.step_time.fronts import search_front

    total = budget.evaluations if budget.evaluations is not None else budget.seconds
    with progress_line("searching", total) as (show_line, stopped):

        def show(event: ParetoEvent) -> None:
            done = event.evaluations if budget.evaluations is not None else event.seconds
            text = f"{event.phase}: {len(event.points)} on the front, {event.evaluations:,} plans"
            show_line(completed=done, description=text)

        return search_front(problem, seed=seed, budget=budget, on_event=show, should_stop=stopped)


def _write(front: ParetoFront, folder: Path) -> list[Path]:
    from hetplanner.plan.files.plan_files import save_plan

    folder.mkdir(exist_ok=True)
    files = [folder / f"plan-{i:02d}.json" for i in range(len(front.plans))]
    for file, plan in zip(files, front.plans, strict=True):
        save_plan(plan, file)
    return files


def _data(front: ParetoFront, files: list[Path]) -> dict[str, Any]:
    """What `pareto --json` prints: the plans themselves unless they were written."""
    from hetplanner.plan.files.plan_files import plan_to_data

    data = front.to_data()
    plans: list[Any] = [str(file) for file in files] or [plan_to_data(plan) for plan in front.plans]
    for point, plan in zip(data["points"], plans, strict=True):
        point["plan"] = plan
    return data


def _print(front: ParetoFront) -> None:
    """The table for a person: the fastest first, the cheapest last."""
    from hetplanner.plan.estimate import left_out_text

    problem = front.problem
    word = problem.workload.token_word
    heads = ("plan", *(name.format(word) for name in COLUMNS))
    rows = table(f"{problem.workload.name} on {problem.cluster.name}", *heads, right=heads)
    for i, row in enumerate(front.to_rows()):
        usd = row["device_usd"] + row["egress_usd"]
        rows.add_row(
            f"{i:02d}",
            short_seconds(row["step_s"]),
            f"{row['tokens_per_s']:,.0f}",
            f"{row['usd_per_mtoken']:.3g}",
            f"{row['tokens_per_usd']:,.0f}" if row["tokens_per_usd"] else "–",
            _egress_text(row["egress_usd"] / usd if usd else None, row["unpriced_egress_bytes"]),
            str(row["stages"]),
            str(row["pipelines"]),
            str(row["devices"]),
        )
    console.print(rows)
    if front.unpriced_egress_bytes:
        console.print(f"dollars are {left_out_text(front.unpriced_egress_bytes)}")
    console.print(
        f"{front.evaluations:,} plans scored in {front.seconds:.2f} s, seed {front.seed}; no plan takes less than"
        f" {short_seconds(front.least_step_s)} a step or {front.least_usd_per_mtoken:.3g} $ per million {word}"
        + (" (search was cancelled)" if front.cancelled else ""),
        style="dim",
    )


def _egress_text(share: float | None, unpriced: dict[str, float]) -> str:
    """Share of the dollars, '?' where bytes have no price."""
    known = "–" if share is None or (unpriced and not share) else f"{share:.0%}"
    return known if not unpriced else "?" if known == "–" else f"{known} + ?"
