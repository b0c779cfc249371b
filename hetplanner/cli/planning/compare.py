"""hetplanner compare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json, progress_line, table
from hetplanner.cli.problem import Loader, budget_of, listed, takes_problem
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.problem import Problem
    from hetplanner.planners.comparison import Comparison, ComparisonEvent
    from hetplanner.planners.interface import Budget

COLUMNS = ("median", "best", "worst", "gap", "search", "plans", "ratio")


@takes_problem()
def compare(
    load: Loader,
    planners: Annotated[str, typer.Option(help="Comma-separated names; all of them if not given.")] = "",
    seeds: Annotated[int, typer.Option(help="Searches of every planner, with seeds 0, 1, …", min=1)] = 5,
    baseline: Annotated[
        str | None, typer.Option(help="Planner that ratios refer to; the first baseline if not given.")
    ] = None,
    budget: Annotated[str, typer.Option(help="Time of every search, such as 2s.")] = "2s",
    evaluations: Annotated[int | None, typer.Option(help="Plans to score instead of a time.", min=0)] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write every search's numbers here (CSV).")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare planners on one problem over several seeds; Ctrl-C keeps the searches that are done."""
    from hetplanner.schema import check_writable, write_text

    if out is not None:
        check_writable(out)
    names = listed(planners) or None
    problem = load()
    limit = budget_of(budget, evaluations)
    comparison = _run(problem, names, seeds, limit, baseline)
    if not comparison.rows:
        raise KeyboardInterrupt
    if out is not None:
        write_text(out, comparison.to_csv())
    if as_json:
        print_json(comparison.to_data())
        return
    _print(comparison)
    if out is not None:
        console.print(f"{len(comparison.rows)} searches written to {out}")


def _run(
    problem: Problem, names: tuple[str, ...] | None, seeds: int, budget: Budget, baseline: str | None
) -> Comparison:
    """Runs the comparison under a progress line; Ctrl-C ends it, not the program."""
    from hetplanner.planners.comparison import run_comparison

    with progress_line("comparing") as (show_line, stopped):

        def show(news: ComparisonEvent) -> None:
            text = f"{news.done} of {news.total}, {news.planner}, seed {news.seed}: best {news.event.best:.5g}"
            show_line(completed=news.done, total=news.total, description=text)

        return run_comparison(
            problem,
            planners=names,
            seeds=seeds,
            budget=budget,
            baseline=baseline,
            on_event=show,
            should_stop=stopped,
        )


def _print(comparison: Comparison) -> None:
    """The table for a person: the best median first, planners without a plan last."""
    problem = comparison.problem
    title = f"{problem.workload.name} on {problem.cluster.name}: {problem.objective}, {comparison.unit}"
    rows = table(title, "planner", "runs", *COLUMNS, right=("runs", *COLUMNS))
    summaries = sorted(comparison.summaries(), key=lambda s: s.median if s.median is not None else math.inf)
    for s in summaries:
        if s.median is None or s.best is None or s.worst is None or s.gap is None or s.seconds is None:
            rows.add_row(s.planner, "0", *["–"] * len(COLUMNS))
            continue
        values = (f"{value:.5g}" for value in (s.median, s.best, s.worst))
        ratio = f"{s.ratio:.3g} ×" if s.ratio is not None else "–"
        plans = f"{s.evaluations:,.0f}"
        rows.add_row(s.planner, str(s.runs), *values, f"{s.gap:.1%}", short_seconds(s.seconds), plans, ratio)
    console.print(rows)
    for s in summaries:
        if s.error is not None:
            console.print(f"{s.planner}: {s.failed} of {s.runs + s.failed} searches gave no plan: {s.error}")
    if problem.objective == "cost":
        for words in sorted({row["dollars_leave_out"] or "" for row in comparison.to_rows()} - {""}):
            console.print(f"dollars of some plans are {words}")
    bound = f"lower bound {comparison.lower_bound:.5g}; " if comparison.lower_bound is not None else ""
    console.print(
        f"{len(comparison.seeds)} seeds, budget of every search {comparison.budget}; {bound}"
        f"ratio: the median of {comparison.baseline} over the planner's"
        + (f" (stopped after {len(comparison.rows)} searches)" if comparison.cancelled else ""),
        style="dim",
    )
