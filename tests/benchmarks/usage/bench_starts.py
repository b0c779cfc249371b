"""What the start of ranks costs on this machine, as forks of our launcher and as programs of torchrun.

    python tests/benchmarks/usage/bench_starts.py [--ranks 1 2 4] [--repeat 3] [--json]

Each run does one step of a tiny model and saves it. Prints medians of its seconds, and of the seconds that all its
processes had a core; 0.4 s of each rank are its profile.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.launchers.interface import LAUNCH, WORKER_MODULE
from hetplanner.launchers.torchrun import TORCHRUN
from hetplanner.plan.files.plan_files import save_plan
from tests.support.plans.factories import chain_plan

SHAPES: dict[int, tuple[list[int], list[int]]] = {1: ([4], []), 2: ([4], [4]), 4: ([2, 2], [4])}
"""By number of ranks: micro-batches of each replica, and where the model is cut."""


def cpu_s() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(starting: tuple[str, ...], ranks: int) -> tuple[float, float]:
    """Seconds, and seconds on a core, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        save_plan(chain_plan(*SHAPES[ranks]), Path(folder) / "plan.json")
        argv = [sys.executable, *starting, "--rdzv-backend=hetplanner-loopback", "--rdzv-endpoint=127.0.0.1:0"]
        argv += ["--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0", "--log-dir=/dev/null"]
        argv += ["-m", WORKER_MODULE, f"{folder}/plan.json", "--steps=1", f"--output={folder}/run"]
        before_s, began_s = cpu_s(), time.monotonic()
        subprocess.run(argv, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return time.monotonic() - began_s, cpu_s() - before_s


def main() -> None:
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], choices=sorted(SHAPES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for ranks in args.ranks:
        row: dict[str, float] = {"ranks": ranks}
        rounds = [(measured(LAUNCH, ranks), measured(TORCHRUN, ranks)) for _ in range(args.repeat)]
        for name, pairs in zip(("forks", "programs"), zip(*rounds, strict=True), strict=True):
            row[f"{name}_s"], row[f"{name}_cpu_s"] = (statistics.median(each) for each in zip(*pairs, strict=True))
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            forks, programs = (f"{row[f'{n}_cpu_s']:.1f} CPU s in {row[f'{n}_s']:.1f} s" for n in ("forks", "programs"))
            print(f"{ranks} ranks: forks {forks}; programs {programs}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
