"""What sinks cost a run: its step time while all of them follow it, against the same run without any.

    python tests/benchmarks/training/bench_sinks.py [--steps 400] [--pairs 3] [--json]

tiny-gpt in 2 x 2 on this machine, links not emulated, so that nothing hides what a step costs. W&B is offline, MLflow
in the run's folder. Runs with and without sinks take turns. Reported are the medians of their step times in the second
half of a run, when all sinks have begun, and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.run import open_run
from hetplanner.runs.sinks.registry import SINKS
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster


def step_s(plan: Path, steps: int, sinks: tuple[str, ...]) -> float:
    """Median seconds of the last half of a run's steps."""
    words = ["train", str(plan), "--steps", str(steps), "--json", *(w for sink in sinks for w in ("--sink", sink))]
    subprocess.run([sys.executable, "-m", "hetplanner.cli", *words], check=True, stdout=subprocess.DEVNULL)
    found = [step.step_s for step in open_run("last").read_all().steps() if step.step_s is not None]
    return statistics.median(found[len(found) // 2 :])


def main() -> None:
    """Prints a line a pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ |= {"WANDB_MODE": "offline"}
    workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HETPLANNER_HOME"] = folder
        plan = Path(folder, "plan.json")
        save_plan(chain_plan([2, 2], [workload.boundaries[3]], cluster=small_cluster(4), workload=workload), plan)
        for _ in range(args.pairs):
            without, with_all = step_s(plan, args.steps, ()), step_s(plan, args.steps, tuple(SINKS))
            pairs.append({"without_s": without, "with_s": with_all, "ratio": with_all / without})
            if not args.json:
                print(f"{without:.4f} s without, {with_all:.4f} s with all sinks: {with_all / without:.3f}", flush=True)
        AgentClient(start=False).shutdown(stop_runs=True)
    if args.json:
        print(json.dumps(pairs))


if __name__ == "__main__":
    main()
