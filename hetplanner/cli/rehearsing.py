"""hetplanner rehearse: a large plan made small enough for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json
from hetplanner.cli.planning import PlanFile, print_plan, result_data, solve


def rehearse(
    file: PlanFile,
    stages: Annotated[int, typer.Option(help="Pipeline stages of the rehearsal.", min=1)] = 2,
    replicas: Annotated[int, typer.Option(help="Replicas of every stage.", min=1)] = 2,
    model: Annotated[str, typer.Option(help="A model that trains on CPUs.")] = "tiny-gpt",
    budget: Annotated[str, typer.Option(help="Time to search.")] = "2s",
    seed: Annotated[int, typer.Option(help="Of every random choice.", min=0)] = 0,
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the rehearsal's plan here.")] = Path("rehearsal.json"),
    as_json: AsJson = False,
) -> None:
    """Plan a rehearsal: the same sites and links, fewer devices, a tiny model, to train on this machine."""
    from hetplanner.plan.files import load_plan, save_plan
    from hetplanner.plan.rehearsal import rehearsal_problem
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.registry import make_planner
    from hetplanner.schema import check_writable
    from hetplanner.workload.load import load_workload

    check_writable(out)
    problem = rehearsal_problem(load_plan(file).problem, load_workload(model), stages=stages, replicas=replicas)
    result = solve(make_planner("evolution"), problem, seed, Budget.parse(budget))
    save_plan(result.plan, out)
    if as_json:
        print_json(result_data(result, out))
        return
    console.print(f"rehearsal of {problem.rehearsal_of}")
    print_plan(result.plan, result)
    console.print(f"plan written to {out}; run it with: hetplanner train {out} --emulate-links")
