"""What an elastic plan is expected to train while peers come and go: its swarm played over preemption traces.

A trace says when each peer is present, not on which device. One that names the plan's devices is taken as it is. Else
its peers are assigned to devices. Each peer of the start gets another device of the plan, where there are enough, and
the plan's stage. Later peers get any of them, as a market gives instances of the kinds that were asked for.

Legend of array suffixes: E moments at which something changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from hetplanner.elastic.forecast.delayed import delayed_throughput
from hetplanner.elastic.forecast.fluid import simulate_swarm
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions, make_fleet
from hetplanner.elastic.forecast.preemptions import PreemptionTrace, load_preemptions
from hetplanner.elastic.forecast.swarm_run import SwarmRun, ThroughputSpread, spread_over_seeds
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.elastic.swarm_costs import SwarmCosts

TraceOfSeed = Callable[[int], PreemptionTrace]
MOST_SEEDS = 1000


@dataclass(frozen=True, eq=False)
class Forecast:
    """What was simulated for every seed, and tokens over all of them.

    Attributes:
        settings: the rebalancing simulated.
        runs: one a seed; throughput in micro-batches per second, links and averaging left out.
        tokens_per_s: expected, and how far runs lie apart; links and averaging cost every micro-batch as in a steady
            step. Shares are those of the runs.
        tokens_of_runs: tokens per second of every run.
        steady_tokens_per_s: with all peers of the start there all the time.
        stalled: share of the time in which a stage had no serving peer.
        share_of_late: mean share of what the best placement of a download ago would hold, before links; see
            `hetplanner.elastic.forecast.delayed`.
    """

    settings: Rebalancing
    runs: tuple[SwarmRun, ...] = field(repr=False)
    tokens_per_s: ThroughputSpread
    tokens_of_runs: tuple[float, ...]
    steady_tokens_per_s: float
    stalled: float
    share_of_late: float

    @property
    def share_of_steady_state(self) -> float:
        """Expected throughput over an undisturbed swarm's."""
        return self.tokens_per_s.mean / self.steady_tokens_per_s

    @property
    def share_of_optimal(self) -> float:
        """Mean share of a bound on what free moves and downloads would allow, before links; loose for few peers."""
        return float(np.mean([run.share_of_optimal for run in self.runs]))

    @property
    def moves_per_hour(self) -> float:
        """Of peers that changed their stage."""
        hours = sum(float(run.time_s_E[-1]) for run in self.runs) / 3600.0
        return sum(len(run.moves) for run in self.runs) / hours


def forecast_plan(
    plan: ElasticPlan,
    costs: SwarmCosts,
    trace_of: PreemptionTrace | TraceOfSeed,
    seeds: Iterable[int] = range(10),
    *,
    rebalancing: Rebalancing | None = None,
    download_s: float | None = None,
    notice_s: float = 0.0,
) -> Forecast:
    """Expected throughput of an elastic plan over a preemption trace, and its spread.

    Args:
        plan: the plan.
        costs: its speeds and times (`hetplanner.cost.elastic.swarm_costs.cost_swarm`).
        trace_of: an observed trace, of which a fleet of the plan's size is made for every seed, or a trace by seed.
        seeds: of fleets, casts and joiners.
        rebalancing: another policy than the plan's.
        download_s: another download than the cost model's.
        notice_s: seconds before its preemption at which a peer is told.

    Raises:
        InvalidInput: no seed or too many, or a time below 0.
    """
    drawn = list(islice(seeds, MOST_SEEDS + 1))
    if not 1 <= len(drawn) <= MOST_SEEDS:
        raise InvalidInput(f"seeds: must be from 1 to {MOST_SEEDS}, got {'none' if not drawn else 'more'}")
    settings = rebalancing or plan.rebalancing
    runs, late = [], []
    for seed in drawn:
        trace = fleet_of(trace_of, plan, seed) if isinstance(trace_of, PreemptionTrace) else trace_of(seed)
        cast, stages = cast_lives(trace, plan, costs, seed)
        wait_s = costs.download_s if download_s is None else download_s
        runs.append(
            simulate_swarm(
                cast, costs.load_S, settings, download_s=wait_s, notice_s=notice_s, seed=seed, first_stages=stages
            )
        )
        late.append(delayed_throughput(cast, costs.load_S, wait_s))
    trained = [_with_overhead(run, costs) for run in runs]
    spread = replace(spread_over_seeds(trained), shares=tuple(run.share_of_optimal for run in runs))
    rates = tuple(run.mean_throughput for run in trained)
    stalled = [float(np.diff(r.time_s_E)[r.throughput_E[:-1] == 0].sum() / r.time_s_E[-1]) for r in runs]
    of_late = [run.mean_throughput / best if best else 1.0 for run, best in zip(runs, late, strict=True)]
    steady = costs.steady_tokens_per_s
    return Forecast(settings, tuple(runs), spread, rates, steady, float(np.mean(stalled)), float(np.mean(of_late)))


def traces_for(
    plan: ElasticPlan,
    preemptions: str | PreemptionTrace | None = None,
    *,
    lifetime_s: float | None = None,
    duration_s: float = 24 * 3600.0,
) -> PreemptionTrace | TraceOfSeed:
    """The traces of a forecast: an observed one (itself, a published one's name, a file), or drawn ones.

    Args:
        plan: whose start gives the number of peers.
        preemptions: an observed trace.
        lifetime_s: instead, mean of the time to a peer's preemption.
        duration_s: of drawn traces.

    Raises:
        InvalidInput: both or neither, or what reading and drawing refuse.
    """
    if (preemptions is None) == (lifetime_s is None):
        raise InvalidInput("preemptions and lifetime: give a trace, or a mean life to draw one; one of the two")
    if preemptions is not None:
        return preemptions if isinstance(preemptions, PreemptionTrace) else load_preemptions(preemptions)
    assert lifetime_s is not None
    return partial(generate_preemptions, peers=len(plan.peers), lifetime_s=lifetime_s, duration_s=duration_s)


def fleet_of(trace: PreemptionTrace, plan: ElasticPlan, seed: int) -> PreemptionTrace:
    """As many zones with an observed trace's preemptions as give the plan's peers in the mean; else the trace."""
    if {life.peer for life in trace.lives} <= set(plan.peers):
        return trace
    present = sum(life.end - life.start for life in trace.lives) / trace.duration
    return make_fleet(trace, max(1, round(len(plan.peers) / present)), seed)


def cast_lives(
    trace: PreemptionTrace, plan: ElasticPlan, costs: SwarmCosts, seed: int
) -> tuple[PreemptionTrace, dict[str, int]]:
    """A trace whose lives have the speeds of the plan's devices, and the stages of those who are there at the start.

    Lives of a trace that names the plan's devices keep their own factor on the device's speed.
    """
    rng, own = np.random.default_rng([seed, 1]), {life.peer for life in trace.lives} <= set(plan.peers)
    free = [plan.peers[i] for i in rng.permutation(len(plan.peers))]
    lives, stages = [], {}
    for life in trace.lives:
        if own:
            device = life.peer
        elif life.start == 0 and free:
            device = free.pop()
        else:
            device = plan.peers[int(rng.integers(len(plan.peers)))]
        if life.start == 0 and (own or life.peer not in stages):
            stages[life.peer] = plan.stage_of_peer[device]
        speed = costs.speed[device] * (life.speed if own else 1.0)
        lives.append(life.replace(speed=speed))
    return trace.replace(lives=tuple(lives)), stages


def _with_overhead(run: SwarmRun, costs: SwarmCosts) -> SwarmRun:
    """A run in tokens per second: a micro-batch takes the weakest stage's time and a steady step's overhead."""
    seconds_E = np.divide(1.0, run.throughput_E, out=np.full_like(run.throughput_E, np.inf), where=run.throughput_E > 0)
    return replace(run, throughput_E=costs.tokens / (seconds_E + costs.overhead_s))
