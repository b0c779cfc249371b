"""The planned placement against random ones, measured over hosts of unlike links that the kernel limits; as root.

    python tests/benchmarks/prediction/bench_host_placement.py [--others 10] [--steps 12] [--repeat 1] [--undisturbed]
        [--json]

The search plans two stages of two replicas for hosts of a bed (`bench_hosts`). The others are the same plan with its
devices shuffled. Every placement is run; `predicted` is by the cluster file, before anything runs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from itertools import permutations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
from tests.benchmarks.prediction.bench_hosts import Outcome, Setting, run, small

BEDS = (
    Setting(2, 2, (200, 100, 200, 100), site_mbits=30),
    Setting(2, 2, (20, 50, 100, 200)),
)


def shuffled(plan: Plan, devices: tuple[str, ...]) -> Plan:
    """The plan with its ranks on these devices, in this order."""
    new = dict(zip(plan.ranks, devices, strict=True))
    stages = tuple(
        stage.replace(replicas=tuple(tuple(new[device] for device in replica) for replica in stage.replicas))
        for stage in plan.stages
    )
    return plan.replace(stages=stages, ranks=devices, estimate=None)


def placements(plan: Plan, count: int, seed: int) -> list[Plan]:
    """The plan, then so many others of its shape, drawn at random."""
    others = [order for order in permutations(plan.ranks) if order != plan.ranks]
    return [plan, *(shuffled(plan, order) for order in random.Random(seed).sample(others, count))]


def text(plan: Plan) -> str:
    """Stages from first to last, with the hosts of their replicas."""
    return " → ".join("+".join(r[0].rpartition("-")[0] for r in stage.replicas) for stage in plan.stages)


def bench(setting: Setting, args: argparse.Namespace) -> list[tuple[str, Outcome]]:
    """The planned placement and the others, each with the medians of its runs."""
    problem = Problem(
        cluster=setting.cluster(),
        workload=small(preset(args.preset), args.layers),
        constraints=Constraints(stages=2, replicas=2),
    )
    planned = make_planner("evolution").solve(problem, seed=args.seed, budget="20000 evaluations").plan
    rows = []
    for number, plan in enumerate(placements(planned, args.others, args.seed)):
        name = f"{'planned' if number == 0 else number:>8} {text(plan)}"
        outcomes = []
        for _ in range(args.repeat):
            with setting.bed() as bed:
                outcomes.append(run(setting, bed, plan, args))
        rows.append((name, sorted(outcomes, key=lambda one: one.measured_s)[args.repeat // 2]))
        outcome = rows[-1][1]
        if not args.json:
            print(f"{name:24} {1e3 * outcome.by_file_s:9.1f}ms {1e3 * outcome.measured_s:9.1f}ms", flush=True)
    return rows


def main() -> None:
    """Prints a table for each bed, and how the planned placement stands; or a JSON line for each bed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="runs of every placement, of which the median counts")
    parser.add_argument("--preset", default="tiny-gpt")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--undisturbed", action="store_true", help="other programs wait while ranks compute")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else ranks of high priority would stay
    for setting in BEDS:
        if not args.json:
            print(f"\n{setting.label}\n{'':24} {'predicted':>11} {'measured':>11}", flush=True)
        rows = bench(setting, args)
        seconds = [outcome.measured_s for _, outcome in rows]
        over_best = seconds[0] / min(seconds) - 1.0
        place = sorted(seconds).index(seconds[0]) + 1
        if args.json:
            print(json.dumps({"bed": setting.label, "place": place, "over_best": over_best, "measured_s": seconds}))
        else:
            print(f"planned: place {place} of {len(seconds)}, {100 * over_best:.1f} % over the best")


if __name__ == "__main__":
    main()
