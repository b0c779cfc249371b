"""Stands in for torchrun and its workers: writes a run directory as the runtime does, in a few lines without torch.

    python fake_ranks.py MODE RUN_DIR NUM_RANKS

MODE: train (until --steps or the stop file), slow-start (never trains), deaf (trains, ignores stop and SIGTERM,
and so do its grandchildren in sessions of their own), crash (rank 1 fails by itself, the others echo),
killed (rank 1 dies of SIGKILL, as torchrun reports it), killed-once (so it does in the first attempt, after five steps;
later ones resume from step 3), orphans (exits 1 and leaves children), broken (no rank
ever begins).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP_S = 0.02
FOREVER = 1000.0

SUMMARY = """\
============================================================
hetplanner.runtime.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_09:00:00
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 101)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_09:00:00
  host      : here
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 102) {signal}
  error_file: <N/A>
  traceback : {why}
============================================================
"""

DEAF_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


def main(mode: str, run_dir: Path, num_ranks: int) -> int:
    steps = json.loads((run_dir / "run.json").read_text())["steps"]
    if mode == "broken":
        sys.stderr.write("no module named nothing\n")
        return 3
    attempt = int(os.environ.get("HETPLANNER_ATTEMPT", "0"))
    for rank in range(num_ranks):
        (run_dir / f"log-{rank}.txt").write_text(f"rank {rank} of {num_ranks}\nready\n")
        if attempt:
            write(run_dir, rank, {"type": "restart", "attempt": attempt, "time_s": time.time()})
        write(run_dir, rank, phase("importing"))
    if mode == "slow-start":
        time.sleep(FOREVER)
    for rank in range(num_ranks):
        write(run_dir, rank, phase("building"), phase("training"), {"type": "origin", "unix_s": time.time()})
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", DEAF_CHILD], start_new_session=True)
        time.sleep(FOREVER)
    if mode == "orphans":
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", DEAF_CHILD], start_new_session=True)
        return 1
    if mode in ("crash", "killed"):
        return fail(mode, run_dir)
    if mode == "killed-once":
        if not attempt:
            train(run_dir, num_ranks, 5)
            (run_dir / "stop.signalled").touch()
            return fail("killed", run_dir)
        for rank in range(num_ranks):
            write(run_dir, rank, {"type": "resumed", "step": 3, "source": str(run_dir), "skipped": []})
        return train(run_dir, num_ranks, steps, first=3)
    return train(run_dir, num_ranks, steps)


def train(run_dir: Path, num_ranks: int, steps: int, first: int = 0) -> int:
    began = time.monotonic()
    for step in range(first, steps):
        time.sleep(STEP_S)
        for rank in range(num_ranks):
            write(run_dir, rank, step_record(rank, step, num_ranks, time.monotonic() - began))
        if (run_dir / "stop").exists():
            break
    for rank in range(num_ranks):
        write(run_dir, rank, phase("saving"), phase("done"))
    (run_dir / "model.json").write_text(json.dumps({"steps_of_stages": [step + 1] * 2}))
    (run_dir / "model.safetensors").write_bytes(b"weights")
    return 0


def fail(mode: str, run_dir: Path) -> int:
    echo = {"type": "error", "text": "RuntimeError: Connection closed by peer [127.0.0.1]:40000", "traceback": "echo"}
    write(run_dir, 0, echo)
    if mode == "crash":
        text = "ValueError: the data folder has 3 bytes of text"
        write(run_dir, 1, {"type": "error", "text": text, "traceback": "Traceback ...\n  line of the worker"})
        with (run_dir / "log-1.txt").open("a") as log:
            log.write("Traceback ...\n  line of the worker\n" + text + "\n")
        sys.stdout.write(SUMMARY.format(rank=0, code=1, signal="", why="echo first"))
    else:
        text = SUMMARY.format(rank=1, code=-9, signal="(SIGKILL)", why="Signal 9 (SIGKILL) received by PID 102")
        sys.stdout.write(text)
    return 1


def phase(name: str) -> dict:
    return {"type": "phase", "name": name, "time_s": time.time()}


def step_record(rank: int, step: int, num_ranks: int, end_s: float) -> dict:
    is_last = rank >= num_ranks // 2
    return {
        "type": "step",
        "step": step,
        "start_s": max(end_s - STEP_S, 0.0),
        "end_s": end_s,
        "loss_sum": 64.0 * (5.0 - 0.01 * step) if is_last else None,
        "num_tokens": 64,
        "boundary_bytes": 100,
        "reduce_bytes": 10,
        "late": 1,
        "late_s": 0.001,
        "grad_norm": 1.0,
        "memory_bytes": 1000,
    }


def write(run_dir: Path, rank: int, *records: dict) -> None:
    with (run_dir / f"rank-{rank}.jsonl").open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
