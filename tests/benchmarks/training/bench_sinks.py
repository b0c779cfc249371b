"""What sinks cost a run: its step time while all of them follow it, against while their processes are stopped.

    python tests/benchmarks/training/bench_sinks.py [--steps 4000] [--turn 6] [--json]

tiny-gpt on 2 x 2 ranks of this machine, links not emulated, so that nothing hides what a step costs. All sinks follow
one run, W&B offline and MLflow in the run's folder. Once each has sent a step, their processes (and what those started)
are stopped and continued by signals in turns of a few seconds; what waited meanwhile they send in their own turn, so
it counts twice. Reported are the medians of the step times of both kinds of turns, the first half second of a turn left
out, and the CPU time of the sinks' processes: while they start, and in a second of the run after that.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from hetplanner.runs.sinks.following import Followers
from hetplanner.runs.sinks.record import read_record
from hetplanner.runs.sinks.registry import SINKS
from hetplanner.workload.presets import preset
from tests.distributed import real_ranks
from tests.factories import chain_plan, small_cluster
from tests.patience import until

LEFT_OUT_S = 0.5


def followers_of(run: Run) -> list[psutil.Process]:
    """The sinks' processes and those that these have started."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hetplanner.runs.sinks.following" in words and str(run.path) in words:
            found |= {p.pid: p for p in (process, *process.children(recursive=True))}
    return list(found.values())


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU time of all of them so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def bench(folder: Path, steps: int, turn_s: float) -> dict[str, float]:
    """One run: seconds of a step with and without, and CPU time."""
    workload = preset("tiny-gpt")
    half = workload.num_micro_batches // 2
    plan = chain_plan([half, half], [len(workload.graph.ops) // 2], cluster=small_cluster(4), workload=workload)
    os.environ["WANDB_MODE"] = "offline"
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    ranks = real_ranks.start_ranks(plan, TrainConfig(steps=steps), folder)
    run = Run(folder)
    followers = Followers(run, sorted(SINKS))
    until(lambda: all(read_record(run.path, name).step >= 0 for name in SINKS), lambda: list(followers.troubles()))
    processes = followers_of(run)
    start_cpu_s, turns, began_s = cpu_s(processes), [], time.time()
    try:
        while all(process.is_alive() for process in ranks.processes):
            is_on = len(turns) % 2 == 1
            for process in processes:
                process.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
            begin_s = time.time()
            time.sleep(turn_s)
            turns.append((begin_s + LEFT_OUT_S, begin_s + turn_s, is_on))
        spent_s, seconds = cpu_s(processes) - start_cpu_s, time.time() - began_s
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
    assert ranks.wait(600) == [0] * len(plan.ranks), ranks.logs()
    told = followers.wait(600)
    run.read_all()
    assert all(read_record(run.path, name).step == steps - 1 for name in SINKS), told
    times: dict[bool, list[float]] = {True: [], False: []}
    origin_s = run.ranks[0].origin_unix_s or 0.0
    for step in run.steps():
        end_s = origin_s + step.end_s
        for first_s, last_s, is_on in turns[:-1]:
            if step.step_s is not None and first_s <= end_s - step.step_s and end_s <= last_s:
                times[is_on].append(step.step_s)
    found = {f"{word}_s": statistics.median(times[is_on]) for word, is_on in (("with", True), ("without", False))}
    found |= {"steps_with": len(times[True]), "steps_without": len(times[False]), "start_cpu_s": start_cpu_s}
    return found | {"ratio": found["with_s"] / found["without_s"], "cpu_share": spent_s / seconds}


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--turn", type=float, default=6.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = bench(Path(folder).resolve(), args.steps, args.turn)
    if args.json:
        print(json.dumps(found))
        return
    print(
        f"{1e3 * found['with_s']:.2f} ms a step with all sinks ({found['steps_with']} steps),"
        f" {1e3 * found['without_s']:.2f} ms without ({found['steps_without']}): {found['ratio'] - 1:+.2%};"
        f" CPU of the sinks: {found['start_cpu_s']:.1f} s to start, then {found['cpu_share']:.2%} of one core"
    )


if __name__ == "__main__":
    main()
