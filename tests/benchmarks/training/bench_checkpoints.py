"""What do checkpoints cost, and how long is a run without a step after a rank was killed?

    python tests/benchmarks/training/bench_checkpoints.py [--gigabytes 1.0] [--repeat 3] [--json]
    python tests/benchmarks/training/bench_checkpoints.py --cost [--gigabytes 0.34] [--ranks 1] [--repeat 3] [--json]

The cost: ranks train a GPT-2 in as many stages, without checkpoints, with one every 20 steps, and with one every 20
steps beside the steps. Of an interval the share is told in which the ranks stand still for its checkpoint. The first
half of an interval, in which the checkpoint is written, is also compared with the second one: what it takes longer is a
share that includes what the writing slows down. Without checkpoints that share is what the machine does.

The restart: one rank trains a GPT-2 whose checkpoint has the size, and is killed after its first checkpoint. From the
kill to the beginning of the first step afterwards is measured, and beside it the time to read the same file, which the
system has dropped from memory before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.liveness.heartbeat import read_heartbeats
from hetplanner.plan.files.checkpoints import checkpoint_folder, checkpoint_steps
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.client import AgentClient
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan

BYTES_PER_WEIGHT = 12
"""Of a checkpoint: the weight and AdamW's two moments, float32."""
PATIENCE_S, POLL_S = 300.0, 0.02
EVERY, INTERVALS = 20, 3
"""Steps between two checkpoints, and how many intervals are counted after the first."""
KINDS = {"none": {}, "sync": {"checkpoint_every": EVERY}}
KINDS["async"] = KINDS["sync"] | {"checkpoints_async": True}


def workload_of(size: float, *, micro_batches: int = 1, sequences: int = 1, seq_len: int = 32) -> Workload:
    """A GPT-2 of bytes whose checkpoint has so many bytes."""
    hidden = 768
    layers = max(1, round(size / BYTES_PER_WEIGHT / (12 * hidden**2)))
    model = TransformerConfig(
        vocab=256, max_seq_len=seq_len, hidden=hidden, layers=layers, heads=12, ffn=4 * hidden, tie_embeddings=True
    )
    return Workload(
        name="large", transformer=model, global_batch=micro_batches * sequences, micro_batch=sequences,
        seq_len=seq_len, dtype="float32",
    )  # fmt: skip


def costs(size: float, num_ranks: int, home: Path) -> dict[str, float]:
    """A step's time, bytes of a checkpoint, and by kind how much longer steps take on the mean, as a share."""
    workload = workload_of(size, micro_batches=2 * num_ranks, sequences=2, seq_len=128)
    layers = len(workload.boundaries)
    cuts = [workload.boundaries[layers * k // num_ranks] for k in range(1, num_ranks)]
    plan, client, found = chain_plan([2 * num_ranks], cuts, workload=workload), AgentClient(home), {}
    try:
        for kind, settings in KINDS.items():
            run = client.start(plan, TrainConfig(steps=EVERY * (INTERVALS + 1), **settings))
            if run.wait(4 * PATIENCE_S).state != "finished":
                raise SystemExit(run.status().message)
            seconds = [step.step_s or 0.0 for step in run.read_all().steps()[EVERY:]]
            found[kind], found["step_s"] = median(shares(seconds)), median(seconds)
            lines = map(json.loads, (run.path / "rank-0.jsonl").read_text().splitlines())
            paused = {line["step"]: line["paused_s"] for line in lines if line["type"] == "checkpoint"}
            starts = range(EVERY, EVERY * (INTERVALS + 1), EVERY)
            still = [paused.get(k, 0.0) / sum(seconds[k - EVERY : k]) for k in starts]
            found[f"{kind}_still"] = median(still)
            if steps := checkpoint_steps(run.path):
                files = checkpoint_folder(run.path, steps[0]).glob("*.safetensors")
                found["bytes"] = sum(path.stat().st_size for path in files)
    finally:
        client.shutdown(stop_runs=True)
    return found


def shares(seconds: list[float]) -> list[float]:
    """By interval: what its first half takes longer than the second one, as a share of twice the second."""
    halves = [sum(seconds[k : k + EVERY // 2]) for k in range(0, len(seconds), EVERY // 2)]
    return [(one - two) / (2 * two) for one, two in zip(halves[::2], halves[1::2], strict=True)]


def seconds_to_read(path: Path) -> float:
    """Of a file that is not in memory."""
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began_s = time.monotonic()
        while file.read(2**24):
            pass
    return time.monotonic() - began_s


def measured(size: float, home: Path) -> dict[str, float]:
    """One run: bytes of the checkpoint, seconds without a step, seconds to read it."""
    client = AgentClient(home)
    plan = chain_plan([1], [], workload=workload_of(size))
    try:
        run = client.start(plan, TrainConfig(steps=1000, checkpoint_every=2, max_restarts=1))
        deadline_s = time.monotonic() + PATIENCE_S
        while not checkpoint_steps(run.path):
            if time.monotonic() > deadline_s or run.status().is_over:
                raise SystemExit(f"no checkpoint: {run.status().message}")
            time.sleep(POLL_S)
        step = checkpoint_steps(run.path)[0]
        path = checkpoint_folder(run.path, step) / "rank-0.safetensors"
        rank = read_heartbeats(Path(str(run.status().heartbeats)))[0]
        os.posix_fadvise(fd := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        killed_s = time.monotonic()
        os.kill(rank.pid, signal.SIGKILL)
        while True:
            run.read_all()
            steps, resumed = run.ranks[0].steps, run.resumed()
            if run.status().restarts and resumed and resumed[0] in steps and steps[resumed[0]].attempt:
                break
            if time.monotonic() > deadline_s + PATIENCE_S or run.status().is_over:
                raise SystemExit(f"it did not go on: {run.status().message}")
            time.sleep(POLL_S)
        first = steps[resumed[0]]
        down_s = time.monotonic() - killed_s - (first.end_s - first.start_s)
        return {"bytes": path.stat().st_size, "down_s": down_s, "read_s": seconds_to_read(path)}
    finally:
        client.shutdown(stop_runs=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", action="store_true", help="of a checkpoint every 20 steps")
    parser.add_argument("--ranks", type=int, default=1, help="of --cost")
    parser.add_argument("--gigabytes", type=float, help="of a checkpoint (1; 0.34 with --cost)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory() as home:
            os.environ["HETPLANNER_HOME"] = home
            if args.cost:
                rows.append(row := costs((args.gigabytes or 0.34) * 1e9, args.ranks, Path(home)))
            else:
                rows.append(row := measured((args.gigabytes or 1.0) * 1e9, Path(home)))
        if args.cost and not args.json:
            print(
                f"{row['bytes'] / 1e6:.0f} MB every {EVERY} steps of {row['step_s']:.2f} s on {args.ranks} rank(s):"
                f" still {row['sync_still']:.2%} of step time, {row['async_still']:.2%} beside the steps; with what is"
                f" slowed down {row['sync']:+.2%} and {row['async']:+.2%}, machine {row['none']:+.2%}",
                flush=True,
            )
        elif not args.json:
            above = row["down_s"] - row["read_s"]
            size = f"{row['bytes'] / 1e9:.2f} GB"
            print(f"{size}: {row['down_s']:.1f} s without a step, {above:.1f} s above {row['read_s']:.1f} s of reading")
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
