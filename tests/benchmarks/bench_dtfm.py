"""Speed and quality of the search on DT-FM's objective: the five published networks and three harder ones.

    python tests/benchmarks/bench_dtfm.py [--seconds 1] [--seeds 3] [--starts structured] [--cases r10j jit]

The harder ones come from `hetplanner.cluster.generators`. Prints per case the best, median and worst value, when the
best was first met, and plans/s.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

from hetplanner.cluster.files import load_cluster
from hetplanner.cluster.generators import GENERATORS
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.planners.dtfm_search import DtfmSpecies
from hetplanner.planners.interface import Budget, Progress
from hetplanner.planners.population import Evolution, EvolutionSettings, evolve

SAMPLES = Path(__file__).parents[2] / "sample_clusters"
PUBLISHED = ["dtfm_1_datacenter", "dtfm_2_spot", "dtfm_3_universities", "dtfm_4_regional", "dtfm_5_worldwide"]
SHAPE = (8, 8)


def network(name, seed):
    """Delays in ms and Gbit/s of a case; published ones are shuffled by the seed."""
    cluster = GENERATORS[name](seed) if name in GENERATORS else load_cluster(SAMPLES / f"{name}.json")
    order = np.arange(64) if name in GENERATORS else np.random.default_rng(seed).permutation(64)
    grid = np.ix_(order, order)
    return cluster.published_delay_ms_DD[grid], cluster.published_bandwidth_gbps_DD[grid]


def run(name, args):
    """One line of the table."""
    values, first_met, rates = [], [], []
    delay, bandwidth = network(name, args.network_seed)
    for seed in range(args.seeds):
        progress = Progress(Budget(seconds=args.seconds), None, None)
        ids = tuple(f"d{i}" for i in range(64))
        species = DtfmSpecies(delay, bandwidth, ids, SHAPE, seed, args.starts)
        settings = EvolutionSettings(starts=args.starts)
        winner = evolve([Evolution(species, settings, progress, np.random.default_rng([seed, 0]))], progress)
        value = score_dtfm(species.placement_SR(winner.best), delay, bandwidth).total_s
        values.append(value)
        first_met.append(next(e.seconds for e in progress.events if e.best <= value * (1 + 1e-9)))
        rates.append(progress.evaluations / progress.seconds)
    bound = bound_dtfm(*pair_costs(delay, bandwidth, SHAPE[1]), *SHAPE)
    print(
        f"{name:20} {min(values):9.5f} {statistics.median(values):9.5f} {max(values):9.5f}"
        f" {statistics.median(first_met):8.2f} {statistics.median(rates) / 1e3:9.0f}k {bound:9.3f}",
        flush=True,
    )


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--network-seed", type=int, default=2022)
    parser.add_argument("--starts", choices=["structured", "random"], default="structured")
    parser.add_argument("--cases", nargs="+", default=[*PUBLISHED, "r10", "r10j", "jit"])
    args = parser.parse_args()
    print(f"{'case':20} {'best':>9} {'median':>9} {'worst':>9} {'met at s':>8} {'plans/s':>10} {'bound':>9}")
    for name in args.cases:
        run(name, args)


if __name__ == "__main__":
    main()
