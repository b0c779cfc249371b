"""The static executor under scripted kills: any rank's death ends the run, which goes on from its last checkpoint.

Devices are as slow as a swarm's: every micro-batch of a stage takes at least 1/speed seconds, by the swarm's own rule.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.files.checkpoints import checkpoint_steps
from hetplanner.swarm.peer.engine import FORWARD_SHARE
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import start_ranks

POLL_S = 0.02


@dataclass(frozen=True)
class Outcome:
    """Seconds from the first step's end to the last one's, steps that had to be done again, restarts, last loss."""

    seconds: float
    steps_lost: int
    restarts: int
    loss: float


def pace(speed: float, rank: int) -> None:
    """Slows the stages of a rank down to so many micro-batches per second."""
    from hetplanner.runtime.model.stage import StageRunner

    def slowed(compute, share):
        def run(*arguments):
            began_s = time.monotonic()
            found = compute(*arguments)
            time.sleep(max(0.0, began_s + share / speed - time.monotonic()))
            return found

        return run

    StageRunner.forward = slowed(StageRunner.forward, FORWARD_SHARE)
    StageRunner.backward = slowed(StageRunner.backward, 1 - FORWARD_SHARE)


def _steps(run_dir: Path) -> list[dict]:
    """The steps that rank 8, of the last stage, has reported so far."""
    path = run_dir / "rank-8.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:  # it is being written
            continue
        if data.get("type") == "step":
            found.append(data)
    return found


def run_static(
    spec, speed: float, kills: Sequence[int], folder: Path, after_s: float, back_s: float, checkpoint_every: int
) -> Outcome:
    """Three stages of three replicas until all steps are done.

    Args:
        spec: of the swarm to compare with: workload, cuts and settings.
        kills: after so many steps, and `after_s` seconds, one rank is killed.
        folder: for the attempts.
        back_s: so long after a kill its device is there again.
        checkpoint_every: steps.
    """
    shares = (spec.settings.micro_batches // 3,) * 3
    plan = chain_plan(shares, spec.first_ops[1:], workload=spec.workload, cluster=small_cluster(9))
    rng, left, before = random.Random(1), list(kills), None
    began_s, lost, restarts, steps = None, 0, 0, spec.train.steps
    while True:
        run_dir = folder / f"attempt-{restarts}"
        config = spec.train.replace(checkpoint_every=checkpoint_every, resume=None if before is None else str(before))
        ranks = start_ranks(plan, config, run_dir, fault=partial(pace, speed))
        done, hit_s = 0, None
        while any(p.is_alive() for p in ranks.processes):
            if found := _steps(run_dir):
                done = found[-1]["step"] + 1
                began_s = began_s or time.monotonic()
            if done == steps:
                ended_s = time.monotonic()
                break
            if left and hit_s is None and done >= left[0]:
                time.sleep(after_s)
                rng.choice(ranks.processes).kill()
                hit_s = time.monotonic()
            time.sleep(POLL_S)
        ranks.wait()
        if done == steps:
            last = [line for rank in (6, 7, 8) for line in ranks.lines(rank, "step") if line["step"] == steps - 1]
            loss = sum(line["loss_sum"] for line in last) / sum(line["num_tokens"] for line in last)
            return Outcome(ended_s - began_s, lost, restarts, loss)
        if hit_s is None:
            raise SystemExit(f"static: ended by itself\n{ranks.logs()}")
        left.pop(0)
        restarts += 1
        saved = checkpoint_steps(run_dir)
        if saved:
            before = run_dir
        elif before is not None:
            saved = checkpoint_steps(before)
        lost += done - (saved[0] if saved else 0)
        time.sleep(max(0.0, hit_s + back_s - time.monotonic()))
        for old in folder.iterdir():
            if old not in (run_dir, before):
                shutil.rmtree(old)
