"""Speed of the search on step time: annealing moves per second, and how soon a fresh process has its first plan.

    python tests/benchmarks/search/bench_step.py [--moves 300000] [--runs 5]

A move is a change of placement, cut or shares, scored by the full closed form (memory, depths, links, reductions, tied
weights, optimizer, with and without shared NICs); rates are per CPU second of this process, kernels warm. First plans
are timed from the start of the process, with an empty kernel cache and a warm one, wall clock and CPU.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.problem import Problem
from hetplanner.planners.step_time.ragged import RaggedSpecies
from hetplanner.planners.step_time.space import StepSpaces
from hetplanner.planners.step_time.species import StepSpecies
from hetplanner.workload.presets import preset

CLUSTER = Path(__file__).parents[3] / "sample_clusters" / "dtfm_5_worldwide.json"
SHAPE = (8, 8)
FIRST_EVENT = """
import os, sys
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.plan.problem import Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
problem = Problem(cluster=load_cluster(sys.argv[1]), workload=preset("gpt3-xl"))
make_planner("evolution").solve(problem, budget="1 s", on_event=lambda event: os._exit(0))
"""


def print_rates(moves, runs):
    """Moves per CPU second at 8 x 8, 24 layers."""
    for label, cluster in (("no NICs", load_cluster(CLUSTER)), ("NICs, unlike GPUs", mixed_gpus(1, num_devices=64))):
        problem = Problem(cluster=cluster, workload=preset("gpt3-xl"))
        model = CostModel.of(problem)
        space = StepSpaces(model).of(recompute=True)
        equal = StepSpecies(model, SHAPE, 0, "structured", recompute=True, space=space)
        ragged = RaggedSpecies(model, SHAPE[0], 0, recompute=True, space=space)
        start = equal.random()
        for name, species, candidate in (("equal", equal, start), ("ragged", ragged, ragged.of_equal(start))):
            species.anneal(candidate, 100, 0.02)
            rates = []
            for _ in range(runs):
                began = time.process_time()
                species.anneal(candidate, moves, 0.02)
                rates.append(moves / (time.process_time() - began))
            print(
                f"{label:18} {name:7} {statistics.median(rates) / 1e3:8.0f} k moves/s (worst {min(rates) / 1e3:.0f} k)"
            )


def time_process(command, cache):
    """Wall and CPU seconds of a fresh process with a kernel cache of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=os.environ | {"NUMBA_CACHE_DIR": cache}, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_first_plans(runs):
    """Cold means an empty cache before every run."""
    commands = {
        "plan --budget 0": [sys.executable, "-m", "hetplanner.cli", "plan", str(CLUSTER), "gpt3-xl", "--budget", "0"],
        "first event": [sys.executable, "-c", FIRST_EVENT, str(CLUSTER)],
    }
    for label, command in commands.items():
        for state in ("cold", "warm"):
            with tempfile.TemporaryDirectory() as kept:
                times = []
                for _ in range(runs):
                    with tempfile.TemporaryDirectory() as fresh:
                        times.append(time_process(command, fresh if state == "cold" else kept))
            walls, cpus = zip(*times, strict=True)
            print(
                f"{label:18} {state:7} {statistics.median(walls):6.2f} s (worst {max(walls):.2f}), CPU"
                f" {statistics.median(cpus):.2f} s"
            )


def main():
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print_rates(args.moves, args.runs)
    print_first_plans(args.runs)


if __name__ == "__main__":
    main()
