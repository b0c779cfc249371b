"""Runs whose disk fills up and is freed later; a program, as it needs a mount namespace of its own.

    unshare -rm python -m tests.support.training.full_disk_story static|swarm FOLDER BYTES

It mounts a file system of so many bytes (0: none) at FOLDER, trains there, fills it, frees it, and prints what came of
it as JSON.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hetplanner.atomic_files import DRAFT_PATTERNS
from hetplanner.elastic.coordinator.decisions import Committed, decode_decisions
from hetplanner.plan.files.checkpoints import checkpoint_steps, file_digest
from hetplanner.plan.train import TrainConfig
from hetplanner.swarm.event_log import parse_events
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.swarms.swarm_runs import small_spec, start_swarm
from tests.support.training.real_ranks import start_ranks

FULL_S = 4.0
"""How long the disk stays full: some steps, and a try to save the model."""
STEPS = 12
CONFIG = TrainConfig(steps=STEPS, checkpoint_every=3)


def static_plan():
    return chain_plan([2], [4], workload=tiny_workload(global_batch=4))


def fill(folder: Path) -> Path:
    """Takes what is left, to the last byte."""
    balloon = folder / "balloon"
    size = 2**20 if folder.is_mount() else 0  # never somebody's own disk
    with balloon.open("wb", buffering=0) as file:
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return balloon


def fill_between_checkpoints(folder: Path, pids: list[int], run_dir: Path) -> Path:
    """Fills the disk while no checkpoint is half written: one that fails would free enough for the model."""
    while True:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until_stopped(pids)
        is_between = not list((run_dir / "checkpoints").glob("*.part"))
        balloon = fill(folder) if is_between else None
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        if balloon:
            return balloon
        time.sleep(0.001)


def until_stopped(pids: list[int]) -> None:
    """Returns once all processes are stopped or at their end: a signal takes its time to arrive."""
    while any(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ" for pid in pids):
        time.sleep(0.001)


def whole_lines(path: Path) -> bool:
    data = path.read_bytes()
    return data.endswith(b"\n") and all(json.loads(line) for line in data.splitlines())


def static(folder: Path) -> dict[str, object]:
    run_dir = folder / "run"
    ranks = start_ranks(static_plan(), CONFIG, run_dir)
    ranks.wait_for_step(3)
    balloon = fill_between_checkpoints(folder, [process.pid for process in ranks.processes], run_dir)
    time.sleep(FULL_S)
    part_folders = len(list((run_dir / "checkpoints").glob("*.part")))
    balloon.unlink()
    codes = ranks.wait()
    lines = [line for rank in range(len(codes)) for line in ranks.lines(rank, "step")]
    return {
        "codes": codes,
        "parts": part_folders,
        "steps": sorted(line["step"] for line in lines),
        "checkpoints": checkpoint_steps(run_dir),
        "whole lines": all(whole_lines(path) for path in run_dir.glob("rank-*.jsonl")),
        "drafts": [path.name for pattern in DRAFT_PATTERNS for path in run_dir.rglob(pattern)],
        "digest": file_digest(run_dir / "model.safetensors"),
        "logs": ranks.logs(),
    }


def swarm(folder: Path) -> dict[str, object]:
    run_dir = folder / "run"
    spec = small_spec(steps=STEPS, stages=2)
    with start_swarm(spec, run_dir, peers=2) as rehearsal:
        until = time.monotonic() + 120
        while not (run_dir / "events.jsonl").exists() or b'"commit"' not in (run_dir / "events.jsonl").read_bytes():
            assert time.monotonic() < until
            time.sleep(0.05)
        balloon = fill(folder)
        time.sleep(FULL_S)
        balloon.unlink()
        rehearsal.wait(180)
    decisions = decode_decisions((run_dir / "decisions.log").read_bytes())
    events = parse_events((run_dir / "events.jsonl").read_bytes())
    return {
        "commits": [d.version.step for d in decisions if isinstance(d, Committed)],
        "told": [event["version"][1] for event in events if event["kind"] == "commit"],
        "whole lines": all(whole_lines(path) for path in run_dir.glob("*.jsonl")),
        "model": (run_dir / "model.safetensors").exists(),
        "parts": [path.name for path in run_dir.glob("model-stage-*")],
        "drafts": [path.name for pattern in DRAFT_PATTERNS for path in run_dir.rglob(pattern)],
    }


if __name__ == "__main__":
    kind, folder, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if size:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    print(json.dumps({"static": static, "swarm": swarm}[kind](folder)))
