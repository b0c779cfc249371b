"""Speed and quality of the search on DT-FM's objective: the five published networks and three harder ones.

    python tests/benchmarks/bench_dtfm.py [--seconds 1] [--seeds 3] [--starts structured] [--cases r10j jit]

`r10`: 64 devices drawn over ten cities; `r10j`: the same with symmetric lognormal(0.3) factors on every pair; `jit`:
case 5 with such factors. Prints per case the best, median and worst value, when the best was first met, and plans/s.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

from hetplanner.cluster.files import load_cluster
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.planners.dtfm_search import DtfmSpecies
from hetplanner.planners.interface import Budget, Progress
from hetplanner.planners.population import Evolution, EvolutionSettings, evolve

SAMPLES = Path(__file__).parents[2] / "sample_clusters"
PUBLISHED = ["dtfm_1_datacenter", "dtfm_2_spot", "dtfm_3_universities", "dtfm_4_regional", "dtfm_5_worldwide"]
SHAPE = (8, 8)


def published(name):
    """Literal delays and bandwidths of a sample cluster."""
    cluster = load_cluster(SAMPLES / f"{name}.json")
    return cluster.published_delay_ms_DD.copy(), cluster.published_bandwidth_gbps_DD.copy()


def ten_regions(seed, *, jitter):
    """64 devices drawn uniformly over the ten measured AWS regions."""
    cluster = load_cluster(SAMPLES / "aws_10_regions.json")
    delay, bandwidth = published("aws_10_regions")
    first = [int(np.flatnonzero(cluster.site_index_D == s)[0]) for s in range(10)]
    delay, bandwidth = delay[np.ix_(first, first)], bandwidth[np.ix_(first, first)]
    np.fill_diagonal(delay, 5.0)
    np.fill_diagonal(bandwidth, 2.0)
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 10, 64)
    grid = np.ix_(site, site)
    network = delay[grid], bandwidth[grid]
    return jittered(*network, rng) if jitter else network


def jittered(delay, bandwidth, rng):
    """Every pair times its own lognormal(0.3) factor, separate for bandwidth and delay."""

    def factors():
        upper = np.triu(np.exp(rng.normal(0, 0.3, delay.shape)), 1)
        return upper + upper.T + np.eye(len(delay))

    bandwidth = np.where(np.isfinite(bandwidth), bandwidth, 1.0) * factors()
    return delay * factors(), bandwidth


def network(name, seed):
    """Delays and bandwidths of a case; published ones are shuffled by the seed."""
    if name == "jit":
        return jittered(*published("dtfm_5_worldwide"), np.random.default_rng(seed))
    if name in ("r10", "r10j"):
        return ten_regions(seed, jitter=name == "r10j")
    order = np.random.default_rng(seed).permutation(64)
    return tuple(matrix[np.ix_(order, order)] for matrix in published(name))


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
