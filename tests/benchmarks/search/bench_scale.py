"""A whole `solve` on thousands of devices, objective dtfm: seconds, memory, and against random plans and flat search.

    python tests/benchmarks/search/bench_scale.py [--devices 4096 --stages 32 --replicas 128] [--networks 10]
        [--budget 2]

Devices are scattered over ten AWS regions as by `hetplanner.cluster.generators.r10`, every pair of devices has
lognormal(0.3) factors of its own on delay and bandwidth. Each network is solved in a process of its own: seconds are
those of `solve` (cost model, orders, search, plan, estimate, bound), wall and CPU; loading the kernels is apart; peak
memory is that of the process, tables included. Then come the mean of 20 random plans (pipelines matched) and flat
annealing from a random plan for as many CPU seconds as `solve` took, once with matchings computed anew after every
move (`dtfm_kernels.anneal`) and once with repaired ones (`anneal_large`).
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from hetplanner.cluster.generators import JITTER, r10
from hetplanner.cost.dtfm import pair_costs, score_dtfm
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset

BLOCK = 256
RANDOM_PLANS = 20


def jittered(num_devices, seed):
    """A cluster whose published tables carry factors for every pair, in single precision."""
    cluster = r10(seed, num_devices=num_devices)
    rng = np.random.default_rng([seed, 1])
    links = cluster.links
    delays = [link.published.delay_ms for link in links]
    rates = [link.published.bandwidth_gbps for link in links]
    for name, values, diagonal in (
        ("published_bandwidth_gbps_DD", rates, np.inf),
        ("published_delay_ms_DD", delays, 0.0),
    ):
        rule = np.array([*values, diagonal, diagonal], dtype=np.float32)
        table = np.empty((num_devices, num_devices), dtype=np.float32)
        starts = range(0, num_devices, BLOCK)
        for a in starts:
            for b in range(a, num_devices, BLOCK):
                one, two = slice(a, a + BLOCK), slice(b, b + BLOCK)
                here = cluster.link_index_DD[one, two]
                factor = np.exp(JITTER * rng.standard_normal(here.shape, dtype=np.float32))
                if a == b:
                    factor = np.triu(factor, 1) + np.triu(factor, 1).T + np.eye(len(factor), dtype=np.float32)
                table[one, two] = rule[here] * factor
                table[two, one] = rule[cluster.link_index_DD[two, one]] * factor.T
        # The place where the cluster itself would keep the table.
        cluster.__dict__[name] = table
    return cluster


def problem_of(cluster, stages, replicas):
    """The planning task; the model does not matter to the objective."""
    return Problem(
        cluster=cluster,
        workload=preset("gpt2-xl", global_batch=8 * replicas, micro_batch=1, layers=max(48, stages)),
        objective="dtfm",
        constraints=Constraints(stages=stages, replicas=replicas),
    )


def measure(args, seed):
    """All numbers of one network; runs in a process of its own."""
    warm = r10(0, num_devices=1024)
    start = time.perf_counter()
    make_planner("evolution").solve(problem_of(warm, 8, 128), budget=0.1)
    loaded_s = time.perf_counter() - start
    cluster = jittered(args.devices, seed)
    tables_mb = peak_mb()
    problem = problem_of(cluster, args.stages, args.replicas)
    wall, cpu = time.perf_counter(), time.process_time()
    result = make_planner("evolution").solve(problem, seed=seed, budget=args.budget)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    index = cluster.device_index
    placement = [[index(replica[0]) for replica in stage.replicas] for stage in result.plan.stages]
    again = score_dtfm(placement, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)
    assert again.total_s == result.value == result.plan.estimate.dtfm.total_s
    row = {"seed": seed, "value": result.value, "bound": result.lower_bound, "wall_s": wall, "cpu_s": cpu}
    row |= {"load_s": loaded_s, "tables_mb": tables_mb, "peak_mb": peak_mb(), "evaluations": result.evaluations}
    tables = cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD
    costs = pair_costs(*tables, args.replicas, dtype=np.float32)
    row["random"] = random_mean(costs, args)
    row["flat"], row["repaired"] = flat_annealing(costs, args, cpu)
    return row


def random_mean(costs, args):
    """Mean cost of random plans with their pipelines matched."""
    from hetplanner.planners.dtfm.large_kernels import score_in_order

    rng = np.random.default_rng(0)
    layouts = np.array([rng.permutation(args.devices) for _ in range(RANDOM_PLANS)])
    values = np.empty(RANDOM_PLANS)
    score_in_order(*costs, layouts, values, args.stages, args.replicas)
    return float(values.mean())


def flat_annealing(costs, args, seconds):
    """Best cost of annealing from a random plan in so many CPU seconds: matchings anew, matchings repaired."""
    from hetplanner.planners.dtfm import kernels as dtfm_kernels
    from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels

    layout, order = np.random.default_rng(1).permutation(args.devices), np.arange(args.stages)

    def anew(moves, heat):
        state, best = np.array([12345], dtype=np.uint64), layout.copy()
        tail = (args.replicas, moves, heat, 1e-4, 0.1, state, best, order.copy())
        return dtfm_kernels.anneal(*costs, layout.copy(), order.copy(), *tail)

    def repaired(moves, heat):
        state, best = np.array([12345], dtype=np.uint64), layout.copy()
        tail = (args.stages, args.replicas, moves, heat, heat / 10, 0.1, state, best)
        return dtfm_large_kernels.anneal_large(*costs, layout.copy(), *tail)

    found = []
    for chain, trial in ((anew, 500), (repaired, 5000)):
        chain(1, 0.02)
        start = time.process_time()
        chain(trial, 0.02)
        moves = int(trial * seconds / (time.process_time() - start))
        found.append(min(chain(moves // 2, heat) for heat in (0.02, 0.002)))
    return found


def peak_mb():
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def summary(name, values, met, unit=""):
    """One line: median, worst and whether the bar is met by the worst."""
    worst = max(values)
    print(f"{name:52} {statistics.median(values):9.3f} {worst:9.3f} {unit:4} bar met: {'yes' if met(worst) else 'no'}")


def main():
    """Prints a line per network, then the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4096)
    parser.add_argument("--stages", type=int, default=32)
    parser.add_argument("--replicas", type=int, default=128)
    parser.add_argument("--networks", type=int, default=10)
    parser.add_argument("--budget", type=float, default=2.0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args, args.one)))
        return
    rows = []
    print(f"{'seed':>4} {'cost':>8} {'bound':>8} {'random':>8} {'flat':>8} {'repaired':>8} {'wall s':>7} {'CPU s':>7}"
          f" {'load s':>7} {'tables MB':>9} {'peak MB':>8} {'scored':>8}")  # fmt: skip
    for seed in range(args.networks):
        call = [sys.executable, __file__, *sys.argv[1:], "--one", str(seed)]
        rows.append(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))
        r = rows[-1]
        print(f"{r['seed']:4} {r['value']:8.2f} {r['bound']:8.2f} {r['random']:8.2f} {r['flat']:8.2f}"
              f" {r['repaired']:8.2f} {r['wall_s']:7.2f} {r['cpu_s']:7.2f} {r['load_s']:7.2f} {r['tables_mb']:9.0f}"
              f" {r['peak_mb']:8.0f} {r['evaluations']:8}", flush=True)  # fmt: skip
    print(f"\n{'bar':52} {'median':>9} {'worst':>9}")
    summary("solve, CPU seconds (bar 15, aim 5)", [r["cpu_s"] for r in rows], lambda v: v <= 15, "s")
    summary("peak memory (bar 1200 MB, aim 400)", [r["peak_mb"] for r in rows], lambda v: v <= 1200, "MB")
    summary("cost over mean of random plans (bar 0.70)", [r["value"] / r["random"] for r in rows], lambda v: v <= 0.7)
    summary("cost over flat annealing (bar 0.90)", [r["value"] / r["flat"] for r in rows], lambda v: v <= 0.9)
    summary(
        "cost over flat annealing, repaired matchings", [r["value"] / r["repaired"] for r in rows], lambda v: v <= 0.9
    )


if __name__ == "__main__":
    main()
