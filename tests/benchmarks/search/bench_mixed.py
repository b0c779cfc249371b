"""The search against all baselines on random clusters of unlike GPUs (T4, V100, A100), shapes free.

    python tests/benchmarks/search/bench_mixed.py [--clusters 20] [--seconds 2]

Prints per cluster the step of the search's plan, how many times longer the best baseline's, rank order's with the file
shuffled (as generated) and with the file sorted by site and kind take, by the final closed form and by the event
simulator; then median and worst.
"""

import argparse
import statistics

from hetplanner.cluster.generators import mixed_gpus
from hetplanner.errors import Infeasible
from hetplanner.plan.problem import Problem
from hetplanner.planners.registry import make_planner
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset

SIZES = (10, 12, 16, 20, 24, 32, 40, 48, 56, 64)
PRESETS = ("tiny-gpt", "gpt2", "gpt2-xl", "gpt3-xl", "llama-1b")
BASELINES = {
    "rank-order": ("rank-order", {}),
    "equal compute": ("rank-order", {"cut": "compute"}),
    "pipeline-per-site": ("pipeline-per-site", {}),
    "opfence": ("opfence", {}),
    "swarm": ("swarm", {}),
    "random": ("random", {}),
}


def instance(number):
    """One problem of the twenty."""
    size = SIZES[number % len(SIZES)]
    cluster = mixed_gpus(number, num_devices=size, num_sites=2 + number % 4, gpus_per_host=1 + number % 3)
    return Problem(cluster=cluster, workload=preset(PRESETS[number % len(PRESETS)], global_batch=256))


def by_site(problem):
    """The same problem with the devices in the order of their sites and kinds."""
    cluster = problem.cluster
    devices = sorted(cluster.devices, key=lambda d: (cluster.site_of(d.id).name, d.kind, d.id))
    return problem.replace(cluster=cluster.replace(devices=tuple(devices)))


def seconds_of(problem, name, options, budget="1 s"):
    """Closed form and simulation of a planner's plan, None if it finds none."""
    try:
        plan = make_planner(name, options).solve(problem, budget=budget).plan
    except Infeasible:
        return None
    return plan.estimate.step_s, simulate(plan).end_s, plan


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    make_planner("evolution").solve(instance(0), budget="0.1 s")
    print(
        f"{'':2} {'devices':>7} {'model':9} {'step s':>9} {'shape':>9} | {'best baseline':>26} {'rank':>6}"
        f" {'by site':>7} | simulated: {'best':>6} {'rank':>6} {'by site':>7}"
    )
    rows = []
    for number in range(args.first, args.first + args.clusters):
        problem = instance(number)
        step_s, simulated_s, plan = seconds_of(problem, "evolution", None, f"{args.seconds} s")
        others = {label: seconds_of(problem, *what) for label, what in BASELINES.items()}
        others = {label: found for label, found in others.items() if found}
        sorted_by_site = seconds_of(by_site(problem), "rank-order", {})
        best = min(others, key=lambda label: others[label][0])
        best_simulated = min(found[1] for found in others.values())
        rank = others.get("rank-order")
        row = [others[best][0] / step_s, *ratios(rank, sorted_by_site, 0, step_s)]
        row += [best_simulated / simulated_s, *ratios(rank, sorted_by_site, 1, simulated_s)]
        rows.append(row)
        replicas = sorted({len(stage.replicas) for stage in plan.stages})
        shape = f"{len(plan.stages)}x{'-'.join(str(n) for n in replicas)}"
        cells = [f"{x:6.2f}" if x else "     -" for x in row]
        print(
            f"{number:2} {len(problem.cluster.devices):7} {problem.workload.name:9} {step_s:9.4g} {shape:>9} |"
            f" {best:>19} {cells[0]} {cells[1]} {cells[2]:>7} |            {cells[3]} {cells[4]} {cells[5]:>7}",
            flush=True,
        )
    for label, pick in (("median", statistics.median), ("worst", min)):
        print(f"{label:40} | {'':19} " + " ".join(f"{pick([r[k] for r in rows if r[k]]):6.2f}" for k in range(6)))


def ratios(rank, sorted_by_site, which, value):
    """How many times longer rank order takes, file as it is and sorted by site; None where it does not fit."""
    return [other[which] / value if other else None for other in (rank, sorted_by_site)]


if __name__ == "__main__":
    main()
