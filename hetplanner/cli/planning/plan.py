"""hetplanner plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.output import AsJson, console, print_json, progress_line
from hetplanner.cli.planning.elastic import SwarmChoices, check_mode, finish_elastic
from hetplanner.cli.planning.plan_output import gain_text, print_plan, result_data, say_report, write_report
from hetplanner.cli.problem import Loader, budget_of, takes_problem
from hetplanner.planners.registry import planner_names

if TYPE_CHECKING:
    from hetplanner.plan.model import Plan
    from hetplanner.plan.problem import Problem
    from hetplanner.planners.interface import SearchEvent, SearchResult

PlanFile = Annotated[Path, typer.Argument(help="A plan file (JSON).")]

Planner = Annotated[
    str | None,
    typer.Option(help=f"One of {', '.join(planner_names())}; evolution if not given, swarm for mode elastic."),
]
Mode = Annotated[
    str, typer.Option(help="static: fixed routes; elastic: a swarm whose peers come and go (planner swarm).")
]
Rebalancing = Annotated[
    str | None, typer.Option(help="How peers of mode elastic change stages: throughput, queue or none.")
]
DelayedUpdates = Annotated[
    bool, typer.Option("--delayed-updates", help="Mode elastic: the optimizer's update overlaps with the next step.")
]
LocalSteps = Annotated[
    int, typer.Option(help="Mode elastic: steps that peers take by themselves before they average.", min=1)
]
StartFrom = Annotated[Path | None, typer.Option(help="A plan file of the same cluster to begin with.")]
Starts = Annotated[str | None, typer.Option(help="structured or random (evolution).")]
Islands = Annotated[int | None, typer.Option(help="Searches apart that exchange their best (evolution).")]
Processes = Annotated[int | None, typer.Option(help="Processes for the islands; the result is the same.")]
Budget = Annotated[str | None, typer.Option(help="Time to search, such as 10s.")]
Evaluations = Annotated[int | None, typer.Option(help="Plans to score instead of a time.", min=0)]
Seed = Annotated[int, typer.Option(help="Of every random choice.", min=0)]
TighterBound = Annotated[
    float | None,
    typer.Option(help="Seconds for a tighter lower bound, computed in a second process (objective dtfm)."),
]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Write the plan file here.")]
Report = Annotated[
    Path | None,
    typer.Option(help="Write a report with a film of the search here, as one HTML file that needs no network."),
]


@takes_problem()
def plan(
    load: Loader,
    planner: Planner = None,
    mode: Mode = "static",
    rebalancing: Rebalancing = None,
    delayed_updates: DelayedUpdates = False,
    local_steps: LocalSteps = 1,
    start_from: StartFrom = None,
    starts: Starts = None,
    islands: Islands = None,
    processes: Processes = None,
    budget: Budget = None,
    evaluations: Evaluations = None,
    seed: Seed = 0,
    tighter_bound: TighterBound = None,
    out: Out = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Search for the plan that trains MODEL on CLUSTER; Ctrl-C keeps the best so far."""
    from hetplanner.plan.files.plan_files import load_plan
    from hetplanner.planners.registry import make_planner
    from hetplanner.schema import check_writable

    choices = SwarmChoices(rebalancing, delayed_updates, local_steps)
    check_mode(mode, planner, choices)
    for path in (out, report):
        if path is not None:
            check_writable(path)
    problem = load()
    limit = budget_of(budget, evaluations)
    start = load_plan(start_from) if start_from else None
    settings = {"starts": starts, "islands": islands, "processes": processes}
    settings |= {"mode": None if mode == "static" else mode}
    usual = "evolution" if mode == "static" else "swarm"
    chosen = make_planner(planner or usual, {name: value for name, value in settings.items() if value is not None})
    with bound_beside(problem, tighter_bound) as raised:
        result = raised(solve(chosen, problem, seed, limit, start, keep_moments=report is not None))
    if result.elastic is not None:
        finish_elastic(result, choices, out, report, as_json)
        return
    if out is not None:
        from hetplanner.plan.files.plan_files import save_plan

        save_plan(result.plan, out)
    if report is not None:
        write_report(result, report)
    from hetplanner.planners.variants.attribution import attribute_gain

    gain = attribute_gain(result.plan)
    if as_json:
        said = {"gain": gain.to_data() if gain else None, "report": str(report) if report else None}
        print_json(result_data(result, out) | said)
    else:
        print_plan(result.plan, result)
        console.print(gain_text(gain, problem.objective))
        if out is not None:
            console.print(f"plan written to {out}; train it with: hetplanner train {out}")
        say_report(report)


@contextmanager
def bound_beside(problem: Problem, seconds: float | None) -> Iterator[Callable[[SearchResult], SearchResult]]:
    """Works on a tighter bound in a process of its own; what it yields waits for it and puts it into the result.

    Raises:
        InvalidInput: if there is no such bound for the problem.
    """
    if seconds is None:
        yield lambda result: result
        return
    from hetplanner.planners.dtfm.tighter_bound import BoundProcess, with_bound

    process = BoundProcess(problem, seconds)

    def raised(result: SearchResult) -> SearchResult:
        with progress_line("raising the lower bound") as (show_line, stopped):
            bound = process.wait(
                lambda: result.cancelled or stopped(), lambda bound: show_line(description=f"lower bound {bound:.5g}")
            )
        return with_bound(result, bound)

    try:
        yield raised
    finally:
        process.close()


def solve(
    planner: Any,
    problem: Problem,
    seed: int,
    budget: Any,
    start: Plan | None = None,
    *,
    keep_moments: bool = False,
) -> SearchResult:
    """Runs the planner under a progress line; Ctrl-C ends the search, not the program."""
    from hetplanner.planners.search.moments import MomentLog

    log = MomentLog(problem) if keep_moments else None
    total = budget.evaluations if budget.evaluations is not None else budget.seconds
    with progress_line("searching", total) as (show_line, stopped):

        def show(event: SearchEvent) -> None:
            done = event.evaluations if budget.evaluations is not None else event.seconds
            show_line(completed=done, description=f"{event.phase}: best {event.best:.5g}, {event.evaluations:,} plans")
            if log is not None:
                log.take(event)

        result = planner.solve(problem, seed=seed, budget=budget, on_event=show, should_stop=stopped, start=start)
    return result if log is None else log.kept_in(result)
