"""Published steps of hosts with several GPUs, as plans of ours: how far are predicted seconds and memory off?

    python tests/benchmarks/prediction/bench_published.py

Sailor's runs of OPT-350M on GH200 and AMP's trials of GPT-2 on T4, and on V100 and T4. Facts and sources are in
`published/*.json`. A few runs of each are fitted, see the modules there; errors are of all others. `--all` prints every
run, `--fit` fits AMP's trials again and prints what belongs into `amp.json`. The tables stand in
docs/results/accuracy.md; a test holds the page to them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.benchmarks.prediction.published import amp, gh200
from tests.benchmarks.prediction.published.layouts import Timed
from tests.benchmarks.prediction.published.scatter import scatter

CLUSTERS = {"t4": "16 T4", "v100_t4": "12 V100, 4 T4"}
LAYOUTS = ("OPT-350M | 4 | 1, 2, 4", *["GPT-2, 355M | 1, 2, 4 | 1 to 16"] * 2)


def all_timed() -> dict[str, list[Timed]]:
    """All runs by their GPUs."""
    known = amp.Known.read()
    found = {"32 to 128 GH200": [run.timed for run in gh200.runs()]}
    return found | {words: [trial.timed(known) for trial in amp.trials(key)] for key, words in CLUSTERS.items()}


def summary_table() -> str:
    """Mean, median and worst error of every source, as Markdown."""
    lines = [
        "| GPUs | model | tensor degree | stages | runs | of them fitted | mean error | median | worst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (gpus, timed), layouts in zip(all_timed().items(), LAYOUTS, strict=True):
        errors = [abs(one.error) for one in timed if not one.is_fitted]
        counts = f"{len(timed)} | {len(timed) - len(errors)}"
        numbers = " | ".join(f"{float(take(errors)):.1%}" for take in (np.mean, np.median, np.max))
        lines.append(f"| {gpus} | {layouts} | {counts} | {numbers} |")
    return _spaced(lines)


def gh200_table() -> str:
    """Sailor's runs with their memory, as Markdown."""
    lines = [
        "| GPUs | stages × replicas | batch | published | predicted | GiB of a GPU, by stage | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    memory = []
    for run in gh200.runs():
        timed, fitted = run.timed, ", fitted" if run.is_fitted else ""
        peaks = ", ".join(f"{mib / 1024:.1f}" for mib in run.peak_mib)
        errors = ", ".join(f"{error:+.1%}" for error in run.memory_errors)
        step = f"{run.seconds:.2f} s | {timed.simulated_s:.2f} s, {timed.error:+.1%}{fitted}"
        shape = f"{run.stages} × {run.hosts // run.stages}"
        lines.append(f"| {4 * run.hosts} | {shape} | {run.batch} | {step} | {peaks} | {errors}{fitted} |")
        memory += [] if run.is_fitted else [abs(error) for error in run.memory_errors]
    lines.append(f"| mean, worst | | | | | | {np.mean(memory):.1%}, {np.max(memory):.1%} |")
    return _spaced(lines)


def _spaced(lines: Sequence[str]) -> str:
    return "\n".join(lines).replace("%", " %")


def _print_trials() -> None:
    known = amp.Known.read()
    for key, words in CLUSTERS.items():
        print(f"\n{words}: degree, replicas, stages, micro-batch")
        for trial in amp.trials(key):
            timed: Timed = trial.timed(known)
            shape = f"{trial.degree:2} {trial.replicas:2} {len(trial.cut) + 1:2} {trial.micro_batch:2}"
            numbers = f"{timed.published_s:5.2f} s, predicted {timed.closed_s:.2f} and {timed.simulated_s:.2f} s"
            print(f"{shape}  {numbers}, {timed.error:+.1%}{' fitted' if timed.is_fitted else ''}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every trial of AMP, too")
    parser.add_argument("--fit", action="store_true", help="fit AMP's trials and print the numbers")
    parser.add_argument("--plot", type=Path, help="write predicted against published seconds as SVG")
    options = parser.parse_args()
    if options.fit:
        known = amp.fit(amp.Known.read())
        for cell, seconds in known.block_s.items():
            print(*cell, f"{seconds:.6f}")
        print(f"head {known.head:.4f}, step {known.step_s:.5f}")
        return
    print(summary_table(), gh200_table(), sep="\n\n")
    if options.plot:
        options.plot.write_text(scatter(all_timed()), encoding="utf-8")
    if options.all:
        _print_trials()


if __name__ == "__main__":
    main()
