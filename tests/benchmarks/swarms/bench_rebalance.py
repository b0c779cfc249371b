"""Rebalancing policies over preemption traces: 32 equal stages, 120 s of download, share of the optimal throughput.

The optimum is a bound: the best placement of the peers that are alive, moves and downloads free. `of late`: our share
of what the best placement of a download ago would hold, less who died since (`hetplanner.elastic.forecast.delayed`).
Observed traces are of a dozen instances; a row of them is a fleet of so many zones, each from another moment on. The
paper's column is the best of its four variants (period 300 or 60 s, joiners anywhere or at the neediest stage), chosen
for each trace.
`notice`: ours, if a peer is told 120 s before its preemption; `noise`: ours, on speeds measured 5 % off.

python tests/benchmarks/swarms/bench_rebalance.py [seeds] [hours of the generated traces]
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.elastic.forecast.delayed import delayed_throughput
from hetplanner.elastic.forecast.fluid import simulate_swarm
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions, make_fleet
from hetplanner.elastic.forecast.preemptions import PreemptionTrace, load_preemptions
from hetplanner.elastic.forecast.swarm_run import SwarmRun
from hetplanner.plan.elastic.rebalancing import Placement, Rebalancing

STAGES, DOWNLOAD_S, BAR, AIM = 32, 120.0, 0.95, 0.97
EQUAL, MIXED = (1.0,), (1.0, 2.0, 4.0)
JOINERS: tuple[Placement, ...] = ("neediest", "random")
OURS, STILL = Rebalancing(), Rebalancing(policy="none")
PAPER = [Rebalancing(policy="queue", period=t, joiners=where) for t, where in itertools.product((300.0, 60.0), JOINERS)]
ZONES = {"bamboo_p2": 12, "bamboo_g4dn": 16, "bamboo_g4dn_us_east_1c": 24, "bamboo_g4dn_us_east_1d": 80}
"""So many that about 200 peers are alive in the mean."""


def traces(hours: float) -> dict[str, Callable[[int], PreemptionTrace]]:
    """A trace by seed, by the name of its row."""
    rows: dict[str, Callable[[int], PreemptionTrace]] = {}
    for peers, life_h, speeds in (
        (128, 128, EQUAL), (256, 300, EQUAL), (192, 128, MIXED), (192, 64, MIXED), (192, 32, MIXED), (192, 12, MIXED),
    ):  # fmt: skip
        name = f"{peers} peers, life {life_h} h, {'mixed' if speeds == MIXED else 'equal'}"
        rows[name] = partial(
            generate_preemptions, peers=peers, lifetime_s=3600.0 * life_h, duration_s=3600.0 * hours, speeds=speeds
        )
    for zone, copies in ZONES.items():
        for speeds in (EQUAL, MIXED):
            name = f"{zone} × {copies}, {'mixed' if speeds == MIXED else 'equal'}"
            rows[name] = partial(make_fleet, load_preemptions(zone), copies, speeds=speeds)
    return rows


def run(trace: PreemptionTrace, settings: Rebalancing, seed: int, **options: float) -> SwarmRun:
    """One simulation of the bar's swarm."""
    return simulate_swarm(trace, [1.0] * STAGES, settings, download_s=DOWNLOAD_S, seed=seed, **options)


def main() -> None:
    """Prints a row per trace: means over seeds."""
    seeds, hours = (float(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((1, 3), (2, 32)))
    columns = (
        "none",
        "paper",
        "ours",
        "(worst)",
        "of late",
        "loaded",
        "notice",
        "noise",
        "moves/h",
        "peers",
        "deaths/120 s",
        "s",
    )
    print(f"{'':>36}" + "".join(f"{name:>9}" if len(name) < 9 else f"{name:>14}" for name in columns) + "  verdict")
    for name, make in traces(hours).items():
        began = time.perf_counter()
        drawn = [make(seed) for seed in range(int(seeds))]
        ours, still, told, noisy = (
            [run(trace, settings, seed, **options) for seed, trace in enumerate(drawn)]
            for settings, options in (
                (OURS, {}), (STILL, {}), (OURS, {"notice_s": 120.0}), (OURS, {"speed_noise": 0.05}),
            )
        )  # fmt: skip
        paper = max(mean([run(t, settings, seed) for seed, t in enumerate(drawn)]) for settings in PAPER)
        late = [delayed_throughput(trace, np.ones(STAGES), DOWNLOAD_S) for trace in drawn]
        of_late = statistics.mean(r.mean_throughput / best for r, best in zip(ours, late, strict=True))
        share, long_s = mean(ours), drawn[0].duration
        deaths = statistics.mean(sum(life.end < t.duration for life in t.lives) for t in drawn) * DOWNLOAD_S / long_s
        verdict = ("aim" if share >= AIM else "bar" if share >= BAR else "MISSED") + (
            ", ahead" if share > paper else ", BEHIND"
        )
        print(
            f"{name:>36}{mean(still):9.1%}{paper:9.1%}{share:9.1%}{min(r.share_of_optimal for r in ours):9.1%}"
            f"{of_late:9.1%}{statistics.mean(r.share_of_loaded for r in ours):9.1%}{mean(told):9.1%}{mean(noisy):9.1%}"
            f"{statistics.mean(len(r.moves) for r in ours) / long_s * 3600:9.1f}"
            f"{statistics.mean(mean_peers(r) for r in ours):9.1f}{deaths:14.2f}"
            f"{time.perf_counter() - began:9.1f}  {verdict}",
            flush=True,
        )


def mean_peers(found: SwarmRun) -> float:
    """Live peers, over time."""
    return float(np.average(found.peers_E[:-1], weights=np.diff(found.time_s_E)))


def mean(runs: list[SwarmRun]) -> float:
    """Mean share of the optimum."""
    return statistics.mean(r.share_of_optimal for r in runs)


if __name__ == "__main__":
    main()
