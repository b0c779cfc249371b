"""A swarm whose peers are groups of devices beside the static executor on the same groups, and beside single devices.

    python tests/benchmarks/swarms/bench_swarm_groups.py [--steps 12] [--runs 3] [--json]

Two stages of one peer each: groups of two processes on this machine, without emulated speeds or links. Printed for each
way to divide: median seconds of a step of both, the ratio static / swarm (above 1: the swarm is faster) with the least
and the greatest of a run, and how far the losses of both are from one another.
"""

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.spec import spec_of
from hetplanner.workload.presets import preset
from hetplanner.workload.tensor_degrees import Sharding
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan
from tests.support.plans.grouped import in_groups
from tests.support.swarms.swarm_runs import events_of, losses_of
from tests.support.training.real_ranks import train

WAYS: tuple[tuple[int, Sharding], ...] = ((1, "tensor"), (2, "tensor"), (2, "zero3"))
WORKLOAD = preset("tiny-gpt", global_batch=32, micro_batch=4)
WARM = 2
"""Steps that count nowhere."""


def swarm_seconds(degree: int, sharding: Sharding, config: TrainConfig, folder: Path) -> tuple[float, list[float]]:
    """Median seconds of a step, and all losses."""
    plan = swarm_plan([1, 1], [WORKLOAD.boundaries[2]], cluster=small_cluster(2), workload=WORKLOAD)
    plan = in_groups(plan, [degree, degree], sharding)
    with Rehearsal(spec_of(plan, config), folder) as rehearsal:
        rehearsal.start_coordinator()
        for peer in plan.peers:
            rehearsal.start_peer(peer, degree=degree, sharding=sharding)
        rehearsal.start_trainer("trainer-0", 4)
        rehearsal.wait(600)
    times = [commit["time_s"] for commit in events_of(folder, "commit")]
    return statistics.median(b - a for a, b in list(pairwise(times))[WARM:]), losses_of(folder)


def static_seconds(degree: int, sharding: Sharding, config: TrainConfig, folder: Path) -> tuple[float, list[float]]:
    """The same of the static executor."""
    count = WORKLOAD.num_micro_batches
    plan = chain_plan([count], [WORKLOAD.boundaries[2]], cluster=small_cluster(2), workload=WORKLOAD)
    train(in_groups(plan, [degree, degree], sharding), config, folder)
    run = Run(folder).read_all()
    return statistics.median(run.step_times_s()[WARM:]), [loss for _, loss in run.losses()]


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    config, found = TrainConfig(steps=given.steps), []
    for degree, sharding in WAYS:
        pairs = []
        for _ in range(given.runs):
            folder = Path(tempfile.mkdtemp(prefix="swarm-groups-"))
            swarm = swarm_seconds(degree, sharding, config, folder / "swarm")
            static = static_seconds(degree, sharding, config, folder / "static")
            pairs.append((swarm, static))
        ratios = [static[0] / swarm[0] for swarm, static in pairs]
        apart = max(abs(a - b) / b for (_, one), (_, two) in pairs for a, b in zip(one, two, strict=True))
        row = {
            "devices": degree,
            "sharding": sharding,
            "swarm_s": statistics.median(swarm[0] for swarm, _ in pairs),
            "static_s": statistics.median(static[0] for _, static in pairs),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
            "losses_apart": apart,
        }
        found.append(row)
        if not given.json:
            print(
                f"{degree} by {sharding}: swarm {row['swarm_s']:.3f} s, static {row['static_s']:.3f} s,"
                f" {row['ratio']:.2f} x ({row['least']:.2f} to {row['greatest']:.2f}), losses {apart:.1e} apart",
                flush=True,
            )
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
