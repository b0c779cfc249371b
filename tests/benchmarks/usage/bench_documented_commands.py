"""Every command of README and docs as it stands there: the budget it states, and the seconds it takes.

    python tests/benchmarks/usage/bench_documented_commands.py [--share 0.05 --steps-share 0.02]

Runs them in order in a scratch folder with a home of its own (kernels are compiled before, as a first search does once
per installation). Prints one line a command: exit code, stated budget, seconds, and whether these are within twice the
budget and the seconds for starting up. `--share` and `--steps-share` shorten budgets and training.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.repository.documentation import ROOT, Scratch, run_all, shortened, stated_budget_s

# Starting Python, importing, reading files, judging, bounds; commands without a budget train, simulate or capture.
START_UP_S = 15.0
OBJECTIVES = ("dtfm", "step-time", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the stated budgets")
    parser.add_argument("--steps-share", type=float, default=1.0, help="of the stated steps of training")
    asked = parser.parse_args()
    late = []

    def tell(done) -> None:
        budget_s = stated_budget_s(shortened(done.command, asked.share, 1.0))
        is_late = budget_s > 0 and done.seconds > 2 * budget_s + START_UP_S
        late.extend([done.command] * is_late)
        budget = f"{budget_s:7.2f} s" if budget_s else "        –"
        print(
            f"{done.code:3d}  {budget}  {done.seconds:7.1f} s  {'LATE' if is_late else '    '}  {done.command}",
            flush=True,
        )
        if done.code:
            print(done.output[-2000:], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(Path(folder), asked.share, asked.steps_share)
        scratch.prepare()
        compile_kernels(scratch)
        try:
            run_all(scratch, tell)
        finally:
            scratch.end()
    failed = [done.command for done in scratch.done if done.code]
    print(f"{len(scratch.done)} commands, {len(failed)} failed, {len(late)} took longer than twice their budget")
    sys.exit(bool(failed or late))


def compile_kernels(scratch: Scratch) -> None:
    """Compiles and caches what the commands' planners use."""
    sample = ROOT / "sample_clusters" / "lab_2_sites_4.json"
    few = ["--stages", "2", "--replicas", "2"]
    commands = [["compare", *few, "--objective", o, "--seeds", "1", "--evaluations", "1000"] for o in OBJECTIVES]
    for name, *options in (*commands, ["pareto", *few, "--evaluations", "1000", "-o", str(scratch.folder / "first")]):
        subprocess.run(
            [sys.executable, "-m", "hetplanner.cli", name, str(sample), "tiny-gpt", *options],
            env=scratch.environment, capture_output=True, check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
