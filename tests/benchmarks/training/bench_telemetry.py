"""What telemetry costs: steps of one run with and without it, in turn.

    python tests/benchmarks/training/bench_telemetry.py [--blocks 12] [--block 40] [--runs 3] [--json]

tiny-gpt on 2 x 2 ranks of this machine, links not emulated, so that nothing hides what a step costs. Blocks of steps
alternate between all telemetry and nothing but the times at which steps end; the first steps of a block are left out,
as the writing thread may still be busy with the block before. Reported are the ratios of the medians, of wall time and
of the CPU time of all ranks and their threads: the second is the steadier one on a machine that does other things too.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training import real_ranks

LEFT_OUT_S = 0.3
"""After a switch: the writing thread empties its queue every 0.2 s."""


def switch(rank: int, *, block: int, folder: str) -> None:
    """Turns a rank's telemetry off in every second block of steps; it notes when its steps end, by two clocks."""
    from hetplanner.runtime import session
    from hetplanner.runtime.comm.traffic import Traffic
    from hetplanner.runtime.measure.telemetry import Telemetry
    from hetplanner.runtime.train import executor, update

    ends: list[tuple[float, float]] = []

    def is_on() -> bool:
        return (len(ends) // block) % 2 == 0

    def only_when_on(owner: Any, name: str, otherwise: object) -> None:
        full = getattr(owner, name)
        setattr(owner, name, lambda *args, **more: full(*args, **more) if is_on() else otherwise)

    only_when_on(Telemetry, "span", None)
    only_when_on(Telemetry, "write", None)
    only_when_on(Traffic, "count_sent", None)
    only_when_on(Traffic, "count_taken", None)
    only_when_on(session, "_resident_bytes", 0)
    only_when_on(update.Update, "_squared_norm", 0.0)
    only_when_on(executor.Executor, "_note_depth", None)
    only_when_on(executor, "keeps_spans", False)
    run_step = executor.Executor.run_step

    def run_and_note(self: Any, step: int) -> Any:
        stats = run_step(self, step)
        ends.append((time.monotonic(), time.process_time()))
        if step + 1 == self.config.steps:
            (Path(folder) / f"ends-{rank}.json").write_text(json.dumps(ends))
        return stats

    executor.Executor.run_step = run_and_note  # type: ignore[method-assign]


def bench(plan: Plan, blocks: int, block: int) -> dict[str, float]:
    """One run: median seconds of a step with and without, wall and CPU."""
    with tempfile.TemporaryDirectory() as folder:
        switched = partial(switch, block=block, folder=folder)
        ranks = real_ranks.start_ranks(plan, TrainConfig(steps=blocks * block), Path(folder), fault=switched)
        codes = ranks.wait(600)
        assert codes == [0] * len(codes), ranks.logs()
        ends_of_rank = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("ends-*.json"))]
        lines = sum(path.read_text().count("\n") for path in Path(folder).glob("rank-*.jsonl"))
    wall = [end for end, _ in ends_of_rank[0]]
    cpu = [sum(rank[step][1] for rank in ends_of_rank) for step in range(blocks * block)]
    found = {"lines_per_step": 2 * lines / (blocks * block)}
    for name, ends in (("wall", wall), ("cpu", cpu)):
        times: dict[bool, list[float]] = {True: [], False: []}
        for step in range(block, blocks * block):
            if wall[step - 1] - wall[step // block * block - 1] >= LEFT_OUT_S:
                times[(step // block) % 2 == 0].append(ends[step] - ends[step - 1])
        # CPU time is added up: the writing thread works in a few steps for all of them.
        middle = statistics.median if name == "wall" else statistics.fmean
        found[f"{name}_with_s"], found[f"{name}_without_s"] = middle(times[True]), middle(times[False])
        found[f"{name}_ratio"] = found[f"{name}_with_s"] / found[f"{name}_without_s"]
    return found


def main() -> None:
    """Prints one line a run and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--block", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    workload = preset("tiny-gpt")
    half = workload.num_micro_batches // 2
    plan = chain_plan([half, half], [len(workload.graph.ops) // 2], cluster=small_cluster(4), workload=workload)
    rows = []
    for _ in range(args.runs):
        rows.append(bench(plan, args.blocks, args.block))
        row = rows[-1]
        if not args.json:
            both = [
                f"{name} {1e3 * row[f'{name}_with_s']:.2f} ms with, {1e3 * row[f'{name}_without_s']:.2f} ms without:"
                f" {row[f'{name}_ratio'] - 1:+.2%}"
                for name in ("wall", "cpu")
            ]
            print("; ".join(both), f"({row['lines_per_step']:.0f} lines a step over all ranks)", flush=True)
    ratio = {name: statistics.median(row[f"{name}_ratio"] for row in rows) for name in ("wall", "cpu")}
    if args.json:
        print(json.dumps({"ratio": ratio, "runs": rows}))
    else:
        print(f"median of {args.runs} runs: wall {ratio['wall'] - 1:+.2%}, CPU {ratio['cpu'] - 1:+.2%}")


if __name__ == "__main__":
    main()
