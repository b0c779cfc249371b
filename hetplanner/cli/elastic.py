"""hetplanner plan --mode elastic: the plan of a swarm, for people and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hetplanner.cli.output import console, print_json, table
from hetplanner.cli.planning import price_text, print_terms, result_data
from hetplanner.errors import InvalidInput
from hetplanner.plan.rebalancing import REBALANCER_NAMES, Rebalancing
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.elastic import ElasticPlan
    from hetplanner.planners.interface import SearchResult

SHOWN_PEERS = 12
"""Of a stage, in the table."""


def check_mode(mode: str, planner: str | None, rebalancing: str | None, *, delayed_updates: bool) -> None:
    """Refuses what no planner can do. Raises InvalidInput."""
    if mode not in ("static", "elastic"):
        raise InvalidInput(f"--mode: must be static or elastic, got {mode!r:.60}")
    if mode == "elastic" and planner not in (None, "swarm"):
        raise InvalidInput(f"--mode elastic: only planner swarm makes elastic plans, got {planner!r:.60}")
    if mode == "static" and rebalancing is not None:
        raise InvalidInput("--rebalancing: static plans have fixed routes; add --mode elastic")
    if mode == "static" and delayed_updates:
        raise InvalidInput("--delayed-updates: is an option of swarms; add --mode elastic")
    if rebalancing is not None and rebalancing not in REBALANCER_NAMES:
        raise InvalidInput(f"--rebalancing: must be one of {', '.join(REBALANCER_NAMES)}, got {rebalancing!r:.60}")


def finish_elastic(
    result: SearchResult, rebalancing: str | None, out: Path | None, as_json: bool, *, delayed_updates: bool
) -> None:
    """Writes and prints the elastic plan of a search, with what the user chose besides."""
    from hetplanner.plan.files import plan_to_data, save_plan

    assert result.elastic is not None
    plan = result.elastic.replace(delayed_updates=delayed_updates)
    if rebalancing is not None:
        plan = plan.replace(rebalancing=Rebalancing.model_validate({"policy": rebalancing}))
    if out is not None:
        save_plan(plan, out)
    if as_json:
        print_json(result_data(result, out) | {"mode": "elastic"} | ({} if out else {"plan": plan_to_data(plan)}))
        return
    print_elastic(plan)
    if out is not None:
        console.print(f"plan written to {out}; try it over preemptions: hetplanner simulate {out} --lifetime 6h")


def print_elastic(plan: ElasticPlan) -> None:
    """An elastic plan and what a calm step of it costs."""
    estimate, workload = plan.estimate, plan.problem.workload
    assert estimate is not None
    console.print(
        f"[bold]{workload.name}[/bold] on [bold]{plan.problem.cluster.name}[/bold]: elastic,"
        f" {'+'.join(str(len(stage.peers)) for stage in plan.stages)} peers, rebalancing {plan.rebalancing.policy},"
        f" {plan.wiring.trainers * plan.wiring.slots} micro-batches under way"
        f"{', updates delayed by a step' if plan.delayed_updates else ''}"
    )
    rows = table("Stages at the start", "stage", "ops", "peers", right=("stage",))
    for s, stage in enumerate(plan.stages):
        ops, more = plan.ops_of(s), len(stage.peers) - SHOWN_PEERS
        names = " ".join(stage.peers[:SHOWN_PEERS]) + (f" and {more} more" if more > 0 else "")
        rows.add_row(str(s), f"{ops[0].name} … {ops[-1].name}", names)
    console.print(rows)
    print_terms(estimate)
    console.print(f"calm step {short_seconds(estimate.step_s)}, {estimate.tokens_per_s:,.0f} tokens/s")
    console.print(price_text(estimate))
    console.print(f"bottleneck: {estimate.bottleneck.text}")
    codecs = (("activations", plan.activation_codec), ("gradients", plan.gradient_codec))
    lossy = [f"{codec} for {what}" for what, codec in (*codecs, ("averaging", plan.averaging_codec)) if codec.is_lossy]
    lossy += ["delayed updates"] if plan.delayed_updates else []
    if lossy:
        console.print(f"quality not modelled: {', '.join(lossy)}; the steps that this may cost are not in the estimate")
