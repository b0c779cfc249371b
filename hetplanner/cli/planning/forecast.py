"""hetplanner simulate PLAN --preemptions: what an elastic plan trains while peers come and go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetplanner.cli.output import bold, console, print_json, progress_line, table
from hetplanner.cli.problem import listed
from hetplanner.units import parse_seconds, short_seconds

if TYPE_CHECKING:
    from hetplanner.elastic.forecast.forecast import Forecast, TraceOfSeed
    from hetplanner.elastic.forecast.preemptions import PreemptionTrace
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.plan.elastic.rebalancing import Rebalancing
    from hetplanner.plan.elastic.swarm_costs import SwarmCosts

PUBLISHED_TRACES = ("bamboo_g4dn", "bamboo_g4dn_us_east_1c", "bamboo_g4dn_us_east_1d", "bamboo_p2")
"""As in `hetplanner.elastic.forecast.preemptions`, which the command line loads only where it is needed."""


@dataclass(frozen=True)
class PreemptionOptions:
    """The options as they were typed."""

    preemptions: str | None
    lifetime: str | None
    duration: str
    seeds: int
    first_seed: int
    policies: str
    download: str | None
    notice: str


def forecast_file(file: Path, options: PreemptionOptions, as_json: bool) -> None:
    """Simulates an elastic plan over preemptions, by every policy, and prints them. Raises InvalidInput."""
    from hetplanner.cost.elastic.swarm_costs import cost_swarm
    from hetplanner.elastic.forecast.forecast import traces_for
    from hetplanner.plan.files.plan_files import load_elastic_plan

    plan = load_elastic_plan(file)
    lifetime_s = None if options.lifetime is None else parse_seconds(options.lifetime)
    trace_of = traces_for(plan, options.preemptions, lifetime_s=lifetime_s, duration_s=parse_seconds(options.duration))
    costs = cost_swarm(plan)
    found = _forecasts(plan, costs, trace_of, options)
    if as_json:
        name = options.preemptions or f"life {options.lifetime}"
        print_json(
            {
                "preemptions": name,
                "seeds": options.seeds,
                "steady_tokens_per_s": costs.steady_tokens_per_s,
                "download_s": _download_s(options, costs),
                "policies": {name: forecast_data(each) for name, each in found.items()},
            }
        )
        return
    _print(plan, costs, found, options)


def forecast_data(found: Forecast) -> dict[str, Any]:
    """What `--json` prints of one policy."""
    spread = found.tokens_per_s
    return {
        "tokens_per_s": spread.mean,
        "p05": spread.p05,
        "p95": spread.p95,
        "share_of_steady_state": found.share_of_steady_state,
        "share_of_optimal": found.share_of_optimal,
        "share_of_late": found.share_of_late,
        "shares_of_optimal": list(spread.shares),
        "stalled": found.stalled,
        "moves_per_hour": found.moves_per_hour,
    }


def _download_s(options: PreemptionOptions, costs: SwarmCosts) -> float:
    return costs.download_s if options.download is None else parse_seconds(options.download)


def _forecasts(
    plan: ElasticPlan, costs: SwarmCosts, trace_of: PreemptionTrace | TraceOfSeed, options: PreemptionOptions
) -> dict[str, Forecast]:
    """A forecast by policy, under a progress line."""
    from hetplanner.elastic.forecast.forecast import forecast_plan

    ways = _policies(plan, options.policies)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found: dict[str, Forecast] = {}
    with progress_line("simulating preemptions", len(ways)) as (show_line, stopped):
        for name, settings in ways.items():
            show_line(completed=len(found), description=f"{name}, {options.seeds} seeds")
            found[name] = forecast_plan(
                plan, costs, trace_of, seeds, rebalancing=settings,
                download_s=_download_s(options, costs), notice_s=parse_seconds(options.notice),
            )  # fmt: skip
            if stopped():
                break
    return found


def _policies(plan: ElasticPlan, names: str) -> dict[str, Rebalancing]:
    from hetplanner.errors import InvalidInput
    from hetplanner.plan.elastic.rebalancing import REBALANCER_NAMES

    wanted = listed(names) or (plan.rebalancing.policy,)
    for name in wanted:
        if name not in REBALANCER_NAMES:
            raise InvalidInput(f"--policies: must be among {', '.join(REBALANCER_NAMES)}, got {name!r:.60}")
    return {name: plan.rebalancing.replace(policy=name) for name in wanted}


def _print(plan: ElasticPlan, costs: SwarmCosts, found: dict[str, Forecast], options: PreemptionOptions) -> None:
    peers = "+".join(str(len(stage.peers)) for stage in plan.stages)
    what = options.preemptions or f"preemptions drawn, life {options.lifetime}"
    console.print(
        bold(plan.problem.workload.name),
        "on",
        bold(f"{plan.problem.cluster.name}:"),
        f"a swarm of {peers} peers over {what}, {options.seeds} seeds,"
        f" download {short_seconds(_download_s(options, costs))}",
    )
    word = plan.problem.workload.token_word
    right = (f"{word}/s", "5 % to 95 %", "of an undisturbed swarm", "of the optimal", "of late", "stalled", "moves/h")
    rows = table("Expected throughput", "rebalancing", *right, right=right)
    for name, each in found.items():
        spread = each.tokens_per_s
        rows.add_row(
            name, f"{spread.mean:,.0f}", f"{spread.p05:,.0f} to {spread.p95:,.0f}", f"{each.share_of_steady_state:.1%}",
            f"{each.share_of_optimal:.1%}", f"{each.share_of_late:.1%}", f"{each.stalled:.1%}",
            f"{each.moves_per_hour:.1f}",
        )  # fmt: skip
    console.print(rows)
    console.print(
        f"undisturbed: {costs.steady_tokens_per_s:,.0f} {word}/s; optimal: a bound on the peers that are there, moves"
        " and downloads free (loose for few peers); late: the best placement of a download ago, less who died since",
        style="dim",
    )
