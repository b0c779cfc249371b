"""Throughput of a swarm over hosts when a cloud announces that it takes one of them; as root on Linux.

    python tests/benchmarks/swarms/bench_notice.py [--peers 2 2] [--seconds 30]

Peers work at emulated speeds. Printed are micro-batches a second before the notice, from the notice until the peer has
left, and in so many seconds afterwards; what was done twice; and the share of its stage that the peer was.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.swarm_history import WAYS_TO_GO
from tests.support.hosts.host_bed import HostBed, HostSpec
from tests.support.hosts.launches.swarm_lab import SwarmLab
from tests.support.plans.factories import slow_swarm

MICRO_BATCHES, SPEED = 8, 8.0


def rate(lab: SwarmLab, start_s: float, end_s: float) -> float:
    """Micro-batches a second of the steps that were committed between two moments (unix time)."""
    commits = [c for c in lab.history.commits if start_s <= c.time_s <= end_s]
    return MICRO_BATCHES * (len(commits) - 1) / (commits[-1].time_s - commits[0].time_s) if len(commits) > 1 else 0.0


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 2], help="of each stage")
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    plan = slow_swarm(args.peers, peaks=(2e9,), micro_batches=MICRO_BATCHES)
    with HostBed([HostSpec(name) for name in "abcdefghij"[: 1 + sum(args.peers)]]) as bed:
        lab = SwarmLab(bed, plan, TrainConfig(steps=1_000_000), SPEED)
        lab.commit(8)
        began_s = time.time()
        time.sleep(args.seconds)
        told_s = time.time()
        lab.give_notice("d0")
        lab.peers["d0"].wait()
        left_s = time.time()
        time.sleep(args.seconds)
        ended_s = time.time()
        history = lab.history.read_all()
    before = rate(lab, began_s, told_s)
    print(f"before the notice          {before:6.2f} micro-batches/s")
    print(f"until it has left          {rate(lab, told_s, left_s):6.2f}  ({left_s - told_s:.1f} s)")
    print(f"{args.seconds:g} s from the notice        {rate(lab, told_s, told_s + args.seconds):6.2f}")
    after = rate(lab, left_s, ended_s)
    print(f"after it has left          {after:6.2f}  ({100 * (after / before - 1):+.0f} %)")
    print(f"its share of its stage     {100 / args.peers[0]:.0f} %")
    done = [sum(p.micro_batches for p in step.peers if p.stage == 0) for step in history.steps]
    print(f"done twice                 {sum(done) - MICRO_BATCHES * len(done)} of {sum(done)}")
    print(f"peers that went            {[(m.peer, m.kind) for m in history.marks if m.kind in WAYS_TO_GO]}")
    print(f"calls that failed          {dict(history.failures)}")


if __name__ == "__main__":
    main()
