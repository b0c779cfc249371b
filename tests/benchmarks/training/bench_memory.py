"""Does a rank take as much memory as its plan says: while it loads, trains and saves?

    python tests/benchmarks/training/bench_memory.py [--json]

Real runs on this machine. The kernel's own peak of every rank's resident memory (VmHWM) less that of a rank with a tiny
model, which is Python, torch and gloo, is held against the plan's bytes. A checkpoint is saved every second step.

Set MALLOC_MMAP_THRESHOLD_=1048576 and MALLOC_TRIM_THRESHOLD_=1048576, so that the C library gives freed blocks back.
Else ranks hold 12 to 18 % more than the plan says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cost.check import peak_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import read_heartbeats
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.run import Run
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan

STEPS, PATIENCE_S, POLL_S = 4, 600.0, 0.02
TINY: dict[str, Any] = {"vocab": 256, "hidden": 16, "heads": 2, "ffn": 64, "layers": 4}
CASES: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "GPT-2, float32, 2 stages": ([8], [8], {}),
    "GPT-2, float32, 2 stages x 2": ([4, 4], [8], {}),
    "GPT-2, float32, 1 stage x 2": ([4, 4], [], {}),
    "GPT-2, bfloat16, 2 stages": ([8], [8], {"dtype": "bfloat16"}),
    "GPT-2, bfloat16, recomputed, 2 stages": ([8], [8], {"dtype": "bfloat16", "recompute": True}),
    "Llama, float32, 2 stages": ([8], [8], {"family": "llama"}),
    "Llama, bfloat16, vocabulary of 32 k, 2 stages x 2": (
        [4, 4], [8], {"family": "llama", "dtype": "bfloat16", "vocab": 32_000}
    ),
    "Llama, float32, LoRA, 2 stages x 2": ([4, 4], [8], {"family": "llama", "adapters": True}),
}  # fmt: skip


def workload_of(
    family: str = "gpt2", dtype: str = "float32", recompute: bool = False, adapters: bool = False, **shape: Any
) -> Workload:
    """Eight layers of width 512 with 4 sequences of 256 tokens in a micro-batch, unless told else."""
    size = {"vocab": 8000, "hidden": 512, "heads": 8, "ffn": 2048, "layers": 8} | shape
    config = TransformerConfig(family=family, max_seq_len=256, tie_embeddings=False, **size)
    tuning = FineTuning(adapters=Adapters(rank=8, alpha=16.0, targets=("q_proj", "v_proj"))) if adapters else None
    return Workload(
        name="memory", transformer=config, global_batch=32, micro_batch=4, seq_len=256, dtype=dtype,
        recompute=recompute, fine_tuning=tuning,
    )  # fmt: skip


@contextmanager
def agent() -> Iterator[AgentClient]:
    """One of its own."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["HETPLANNER_HOME"] = home
        client = AgentClient(Path(home))
        try:
            yield client
        finally:
            client.shutdown(stop_runs=True)


def peaks(client: AgentClient, plan: Plan) -> list[int]:
    """Most bytes that each rank had resident, as the kernel counts."""
    run = client.start(plan, TrainConfig(steps=STEPS, checkpoint_every=2))
    found: dict[int, int] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while not run.status().is_over:
        if time.monotonic() > deadline_s:
            raise SystemExit("the run does not end")
        for rank, pid in enumerate(_pids(run)):
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if match := re.search(r"VmHWM:\s+(\d+) kB", text):
                found[rank] = int(match[1]) * 1024
        time.sleep(POLL_S)
    if run.status().state != "finished":
        raise SystemExit(f"a run failed: {run.status().message}")
    return [found[rank] for rank in range(len(plan.ranks))]


def _pids(run: Run) -> list[int]:
    """Of the ranks that there are."""
    try:
        return [beat.pid for beat in read_heartbeats(Path(str(run.status().heartbeats)))]
    except InvalidInput:  # not yet, or no longer
        return []


def measured(client: AgentClient, name: str) -> list[dict[str, Any]]:
    """One row for each rank of a case."""
    routes, cut, settings = CASES[name]
    depth = [2, 1][: len(cut) + 1]
    plan = chain_plan(
        routes, [_boundary(settings, at) for at in cut], workload=workload_of(**settings), in_flight=depth
    )
    plan = plan.replace(stages=tuple(stage.replace(recompute=bool(settings.get("recompute"))) for stage in plan.stages))
    tiny = chain_plan(routes, [4 for _ in cut], workload=workload_of(**TINY), in_flight=depth)
    base = min(peaks(client, tiny))
    planned = peak_bytes(plan, CostTables(plan.problem))
    rows = zip(planned, peaks(client, plan), strict=True)
    return [
        {"case": name, "rank": rank, "planned": plan_bytes, "held": peak - base}
        for rank, (plan_bytes, peak) in enumerate(rows)
    ]


def _boundary(settings: dict[str, Any], layers: int) -> int:
    return workload_of(**settings).boundaries[layers // 2 - 1]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, help="one of them alone")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with agent() as client:
        for name in [args.case] if args.case else CASES:
            for row in measured(client, name):
                rows.append(row)
                if not args.json:
                    megabytes = f"{row['planned'] / 1e6:7.0f} MB planned, {row['held'] / 1e6:7.0f} MB held"
                    print(f"{name:52} rank {row['rank']}: {megabytes}, {row['planned'] / row['held']:.3f}", flush=True)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
