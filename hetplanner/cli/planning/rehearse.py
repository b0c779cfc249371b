"""hetplanner rehearse: a large plan made small enough for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json
from hetplanner.cli.planning.plan import PlanFile, solve
from hetplanner.cli.planning.plan_output import print_plan, result_data


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
    """Plan a rehearsal: the same sites and links, fewer devices, a tiny model, to train on this machine.

    Of an elastic plan: a small swarm under the same rules.
    """
    from hetplanner.cli.planning.elastic import print_elastic, swarm_data
    from hetplanner.cost.elastic.swarm_rules import under_rules_of
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan, save_plan
    from hetplanner.plan.rehearsal import rehearsal_problem
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.registry import make_planner
    from hetplanner.schema import check_writable
    from hetplanner.workload.load import load_workload

    check_writable(out)
    plan = load_any_plan(file)
    problem = rehearsal_problem(plan.problem, load_workload(model), stages=stages, replicas=replicas)
    like = plan if isinstance(plan, ElasticPlan) else None
    planner = make_planner("evolution") if like is None else make_planner("swarm", {"mode": "elastic"})
    result = solve(planner, problem, seed, Budget.parse(budget))
    small: AnyPlan = result.plan
    if result.elastic is not None:
        small = under_rules_of(result.elastic, like)
    save_plan(small, out)
    if as_json:
        print_json(swarm_data(result, small, out) if isinstance(small, ElasticPlan) else result_data(result, out))
        return
    console.print(f"rehearsal of {problem.rehearsal_of}, with the model {problem.workload.name}")
    if isinstance(small, ElasticPlan):
        print_elastic(small)
    else:
        print_plan(small, result)
    console.print(f"plan written to {out}; run it with: hetplanner train {out} --emulate-links")
