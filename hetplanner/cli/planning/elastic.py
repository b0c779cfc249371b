"""hetplanner plan --mode elastic: the plan of a swarm, for people and scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetplanner.cli.output import bold, console, print_json, table
from hetplanner.cli.planning.plan_output import price_text, print_terms, result_data, say_report, write_report
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import REBALANCER_NAMES, Rebalancing
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.planners.interface import SearchResult

SHOWN_PEERS = 12
"""Of a stage, in the table."""


@dataclass(frozen=True)
class SwarmChoices:
    """What the user chooses of an elastic plan, besides the search.

    Attributes:
        rebalancing: name of a policy; None: the usual one.
        delayed_updates, local_steps: see `ElasticPlan`; local steps come with the usual outer optimizer.
    """

    rebalancing: str | None = None
    delayed_updates: bool = False
    local_steps: int = 1

    def apply_to(self, plan: ElasticPlan) -> ElasticPlan:
        """The plan as chosen, with an estimate of its own.

        Raises:
            InvalidInput: choices do not go together, or with the model.
            Infeasible: a device cannot hold its stage under them.
        """
        from hetplanner.cost.elastic.swarm_rules import checked_swarm
        from hetplanner.plan.model import OuterOptimizer

        chosen: dict[str, Any] = {"delayed_updates": self.delayed_updates}
        if self.rebalancing is not None:
            chosen["rebalancing"] = Rebalancing.model_validate({"policy": self.rebalancing})
        if self.local_steps > 1:
            chosen |= {"local_steps": self.local_steps, "outer": OuterOptimizer()}
        return checked_swarm(plan.replace(**chosen, estimate=None))


def check_mode(mode: str, planner: str | None, choices: SwarmChoices) -> None:
    """Refuses what no planner can do. Raises InvalidInput."""
    if mode not in ("static", "elastic"):
        raise InvalidInput(f"--mode: must be static or elastic, got {mode!r:.60}")
    if mode == "elastic" and planner not in (None, "swarm"):
        raise InvalidInput(f"--mode elastic: only planner swarm makes elastic plans, got {planner!r:.60}")
    rebalancing = choices.rebalancing
    if mode == "static" and rebalancing is not None:
        raise InvalidInput("--rebalancing: static plans have fixed routes; add --mode elastic")
    if mode == "static" and choices.delayed_updates:
        raise InvalidInput("--delayed-updates: is an option of swarms; add --mode elastic")
    if mode == "static" and choices.local_steps > 1:
        raise InvalidInput("--local-steps: is an option of swarms; add --mode elastic, or take --max-local-steps")
    if choices.delayed_updates and choices.local_steps > 1:
        raise InvalidInput("--delayed-updates: does not go with --local-steps; take one of them")
    if rebalancing is not None and rebalancing not in REBALANCER_NAMES:
        raise InvalidInput(f"--rebalancing: must be one of {', '.join(REBALANCER_NAMES)}, got {rebalancing!r:.60}")


def finish_elastic(
    result: SearchResult, choices: SwarmChoices, out: Path | None, report: Path | None, as_json: bool
) -> None:
    """Writes and prints the elastic plan of a search; the report is of a steady-state step of it."""
    from hetplanner.cost.elastic.steady_state import steady_state_plan
    from hetplanner.plan.files.plan_files import save_plan

    assert result.elastic is not None
    plan = choices.apply_to(result.elastic)
    if out is not None:
        save_plan(plan, out)
    if report is not None:
        write_report(replace(result, plan=steady_state_plan(plan)), report)
    if as_json:
        print_json(swarm_data(result, plan, out) | {"report": str(report) if report else None})
        return
    print_elastic(plan)
    if out is not None:
        console.print(f"plan written to {out}; try it over preemptions: hetplanner simulate {out} --lifetime 6h")
    say_report(report)


def swarm_data(result: SearchResult, plan: ElasticPlan, out: Path | None) -> dict[str, Any]:
    """What `--json` prints of a plan that a search found, as it is under the rules that it has now."""
    from hetplanner.cost.elastic.steady_state import steady_state_plan
    from hetplanner.plan.files.plan_files import plan_to_data

    steady = steady_state_plan(plan)
    estimate = steady.estimate
    assert estimate is not None
    per_mtoken = estimate.usd_per_mtoken if steady.problem.objective == "cost" else None
    value = estimate.step_s if per_mtoken is None else per_mtoken
    data = result_data(replace(result, plan=steady, value=value), out) | {"mode": "elastic"}
    if plan.is_local:  # the search's bound is of steps that all agree
        data |= {"lower_bound": None, "gap": None}
    return data if out is not None else data | {"plan": plan_to_data(plan)}


def print_elastic(plan: ElasticPlan) -> None:
    """An elastic plan and what a steady-state step of it costs."""
    estimate, workload = plan.estimate, plan.problem.workload
    assert estimate is not None
    console.print(
        bold(workload.name),
        "on",
        bold(f"{plan.problem.cluster.name}:"),
        f"elastic, {'+'.join(str(len(stage.peers)) for stage in plan.stages)} peers,"
        f" rebalancing {plan.rebalancing.policy},"
        f" {plan.wiring.trainers * plan.wiring.slots} micro-batches under way"
        f"{', updates delayed by a step' if plan.delayed_updates else ''}"
        f"{f', rounds of {plan.local_steps} local steps' if plan.is_local else ''}",
    )
    rows = table("Stages at the start", "stage", "ops", "peers", right=("stage",))
    for s, stage in enumerate(plan.stages):
        ops, more = plan.ops_of(s), len(stage.peers) - SHOWN_PEERS
        names = " ".join(map(plan.problem.worker_name, stage.peers[:SHOWN_PEERS])) + (
            f" and {more} more" if more > 0 else ""
        )
        rows.add_row(str(s), f"{ops[0].name} … {ops[-1].name}", names)
    console.print(rows)
    print_terms(estimate)
    console.print(
        f"steady-state step {short_seconds(estimate.step_s)}, {estimate.tokens_per_s:,.0f} {workload.token_word}/s"
    )
    console.print(price_text(estimate, workload.token_word))
    console.print(f"bottleneck: {estimate.bottleneck.text}")
    for note in estimate.notes:
        console.print(note)
