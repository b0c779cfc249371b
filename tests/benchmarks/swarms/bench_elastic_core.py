"""Committed steps of simulated swarms under every fault at once, and what of them broke an invariant.

    python tests/benchmarks/swarms/bench_elastic_core.py [--steps 100000] [--steps-per-seed 500] [--first-seed 0]
                                                  [--ablation-seeds 10] [--seconds 900]

Every seed draws a shape (stages, peers, trainers, micro-batches) and one of the storms. Prints what unlike
speeds and single faults cost, how many stage-steps each wrong behaviour spoils, then totals and faults by kind. Seconds
of faults are simulated: latencies of 1 to 11 ms, and the time limits of `ElasticSettings`.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation.simulation import NO_FAULTS, Faults, Simulation
from hetplanner.plan.elastic.settings import WIRING_RULES
from tests.support.swarms.elastic_ablations import ABLATIONS

MEAN_JITTER = 1.05
"""Of the simulated compute times."""

STORMS = {
    "everything": Faults(),
    "losses": replace(Faults(), kill_s=30.0, lost=0.01, late=0.01, doubled=0.05, reduce=0.05),
    "coordinator": replace(Faults(), kill_s=30.0, phase_kill=0.04),
    "links": replace(Faults(), kill_s=30.0, link_s=3.0),
}


def make(seed, **wrong):
    """The swarm of a seed, and its storm's name."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(2, 5))
    settings = ElasticSettings(
        stages=stages, micro_batches=int(rng.integers(3, 9)), checkpoint_steps=int(rng.integers(1, 6))
    )
    storm = sorted(STORMS)[seed % len(STORMS)]
    peers, trainers = stages * int(rng.integers(2, 5)), int(rng.integers(1, 4))
    return Simulation(settings, STORMS[storm], seed, peers, trainers, **wrong), storm


def run_storms(args):
    totals, faults, seed, began = Counter(), Counter(), args.first_seed, time.perf_counter()
    while totals["steps"] < args.steps and time.perf_counter() - began < args.seconds:
        world, storm = make(seed)
        world.run(args.steps_per_seed)
        totals["steps"] += world.checks.commits
        totals[f"steps, {storm}"] += world.checks.commits
        totals["violations"] += len(world.checks.violations)
        totals["stuck"] += world.stuck
        totals["all copies lost before a checkpoint"] += world.lost
        totals["peer steps compared"] += world.checks.peer_steps
        totals["simulated hours"] += world.now_s / 3600
        faults += world.happened
        for line in [*world.checks.violations[:3], *(["stuck"] if world.stuck else [])]:
            print(f"seed {seed} ({storm}): {line}", flush=True)
        seed += 1
    seconds = time.perf_counter() - began
    print(f"{seed - args.first_seed} seeds, {seconds:.0f} s, {1e3 * seconds / max(1, totals['steps']):.1f} ms a step")
    print("\n".join(f"{name:40} {value:12,.0f}" for name, value in totals.items()))
    print("\n".join(f"{name:40} {value:12,d}" for name, value in sorted(faults.items())))


def run_ablations(args):
    for name, wrong in ABLATIONS.items():
        kinds, stage_steps, wrong_steps, seeds = Counter(), 0, 0, 0
        for seed in range(args.ablation_seeds):
            world, _ = make(seed, **wrong)
            world.run(100)
            kinds += Counter(line[:2] for line in world.checks.violations)
            stage_steps += world.checks.stage_steps
            wrong_steps += world.checks.wrong_stage_steps
            seeds += bool(world.checks.violations)
        found = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        spoilt = f"{wrong_steps} of {stage_steps} stage-steps"
        print(f"{name}: seen in {seeds} of {args.ablation_seeds} seeds; {spoilt}; {found}")


def run_unlike_speeds():
    """Throughput without faults, 3 stages with speeds 9, 4.5 and 3 each, against the sum of speeds."""
    speeds = (9.0, 9.0, 9.0, 4.5, 4.5, 4.5, 3.0, 3.0, 3.0)
    for rule, (micro_batches, slots) in product(WIRING_RULES, ((16, 3), (64, 6), (64, 12), (256, 12), (1024, 12))):
        swarm = ElasticSettings(stages=3, micro_batches=micro_batches, wiring=rule)
        world = Simulation(swarm, NO_FAULTS, 0, peers=9, trainers=2, slots=slots, speeds=speeds)
        world.run(10)
        began_s = world.now_s
        world.run(40)
        share = 30 * micro_batches / (world.now_s - began_s) / (sum(speeds) / 3 / MEAN_JITTER)
        what = f"{rule}, {micro_batches} micro-batches a step, {2 * slots} in flight"
        print(f"unlike speeds, {what}: {share:.2f} of their sum")


def run_single_faults(seeds=30):
    """Simulated seconds that one fault adds to the step it falls in and the one after, over steady-state steps."""
    swarm = ElasticSettings(stages=3, micro_batches=16)
    for name in ("kill", "hang", "cut", "link", "coordinator"):
        added = []
        for seed in range(seeds):
            world = Simulation(swarm, NO_FAULTS, seed, peers=9, trainers=2, slots=6, speeds=(9.0,))
            world.run(4)
            began_s = world.now_s
            world.run(12)
            step_s = (world.now_s - began_s) / 8
            began_s = world.now_s
            world.later(world.rng.uniform(0, step_s), None, partial(strike, world, name))
            world.run(14)
            added.append(world.now_s - began_s - 2 * step_s)
        print(
            f"{name}: steady-state step {step_s:.2f} s; adds median {np.median(added):.2f} s, most {max(added):.2f} s"
        )


def strike(world, name):
    """One fault, now; who is stopped or cut off stays so. A link is cut between two peers of a stage."""
    host = world._pick()
    if name == "kill":
        world._end(host)
    elif name == "link":
        mate = next(m for m in world._living() if m is not host and m.machine.stage == host.machine.stage)
        world.links.cut(host.address, mate.address, world.now_s + 60.0)
    elif name == "coordinator":
        world.kill_coordinator("at any time")
    else:
        setattr(host, "hung_until_s" if name == "hang" else "cut_until_s", world.now_s + 60.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--steps-per-seed", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ablation-seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no other seed after so long")
    arguments = parser.parse_args()
    run_unlike_speeds()
    run_single_faults()
    run_ablations(arguments)
    run_storms(arguments)
