"""A run that streams without training: what a rehearsal writes, step after step, in real time and for next to no CPU.

    python tests/support/runs/streamed_run.py HOME [--step-s 0.25] [--stages 4] [--replicas 2]

Prints the run's id, then writes until it is killed. Spans are those of the simulated step, stretched to `--step-s`.
"""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

import psutil

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.trace import Span
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.registry import make_planner
from hetplanner.runs.directory import RunDirectory, create_run_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset

CLUSTER = Path(__file__).parents[3] / "sample_clusters" / "laptop_8_cities.json"
LAST_STEP = 1_000_000
PHASES = ("importing", "connecting", "building", "profiling", "predicting", "training")
LINKS_EVERY = 8


class Ranks:
    """Writes the files of all ranks."""

    def __init__(self, plan: Plan, directory: RunDirectory, step_s: float) -> None:
        self.directory, self.step_s = directory, step_s
        trace = simulate(plan, steps=2)
        steady = [s for s in trace.spans if s.step == 1]
        begin, end = min(s.start_s for s in steady), max(s.end_s for s in steady)
        self.spans = [self._stretched(s, begin, step_s / (end - begin)) for s in steady]
        self.ranks = range(len(plan.ranks))
        self.last = [plan.rank_at(len(plan.stages) - 1, r) for r in range(len(plan.stages[-1].replicas))]
        self.num_tokens = plan.problem.workload.global_batch * plan.problem.workload.seq_len // len(self.last)
        prediction = {"step_s": 0.9 * step_s, "catalog_step_s": 0.5 * step_s}
        directory.prediction_file.write_text(json.dumps(prediction), encoding="utf-8")

    @staticmethod
    def _stretched(span: Span, begin_s: float, factor: float) -> Span:
        start_s, end_s = ((t - begin_s) * factor for t in (span.start_s, span.end_s))
        return Span(**{**span.to_dict(), "start_s": start_s, "end_s": end_s})

    def begin(self) -> None:
        now_s = time.time()
        for rank in self.ranks:
            records = [{"type": "phase", "name": name, "time_s": now_s} for name in PHASES]
            self._write(rank, [*records, {"type": "origin", "unix_s": now_s}])

    def step(self, step: int) -> None:
        """Writes one step, as of now."""
        before_s = step * self.step_s
        loss = 2.0 + 3.5 * math.exp(-step / 400) + random.gauss(0, 0.03)
        for rank in self.ranks:
            own = [s for s in self.spans if s.rank == rank]
            moved = [{"start_s": round(s.start_s + before_s, 6), "end_s": round(s.end_s + before_s, 6)} for s in own]
            lines = [
                {"type": "span"} | s.to_dict() | {"step": step} | times for s, times in zip(own, moved, strict=True)
            ]
            lines.append(self._step_line(rank, step, loss, own))
            if step % LINKS_EVERY == LINKS_EVERY - 1:
                lines.append({"type": "links", "step": step, "steps": LINKS_EVERY, "links": self._links(own)})
                lines.append(self._load_line(rank))
            self._write(rank, lines)
            with self.directory.log_file(rank).open("a", encoding="utf-8") as log:
                log.write(f"step {step}: loss {loss:.4f}\n")

    def _step_line(self, rank: int, step: int, loss: float, own: list[Span]) -> dict:
        jitter = 1.0 + abs(random.gauss(0, 0.02))
        sent = sum(s.bytes for s in own if s.kind == "send")
        return {
            "type": "step",
            "step": step,
            "start_s": step * self.step_s,
            "end_s": (step + jitter) * self.step_s,
            "loss_sum": loss * self.num_tokens if rank in self.last else None,
            "num_tokens": self.num_tokens if rank in self.last else 0,
            "boundary_bytes": sent,
            "reduce_bytes": sum(s.bytes for s in own if s.kind == "reduce"),
            "late": 0,
            "late_s": 0.0,
            "grad_norm": 1.0,
            "memory_bytes": 600 * 2**20 + 2**20 * random.randrange(20),
        }

    @staticmethod
    def _load_line(rank: int) -> dict:
        """As if every rank had a host of its own."""
        shares = {"cpu": 0.4 + 0.1 * random.random(), "memory": 0.3, "gpus": [[0.7 + 0.2 * random.random(), 0.5]]}
        rates = {name: 1e6 * random.random() for name in ("sent", "received", "loopback")}
        return {"type": "load", "time_s": time.time(), "host": f"host-{rank}"} | shares | rates

    @staticmethod
    def _links(own: list[Span]) -> list[dict]:
        rows: dict[tuple[int, str], int] = {}
        for span in own:
            if span.kind == "send":
                rows[span.peer, span.role] = rows.get((span.peer, span.role), 0) + span.bytes * LINKS_EVERY
        return [
            {"peer": peer, "role": role, "sent": LINKS_EVERY, "sent_bytes": count, "wait_s": 0.01}
            for (peer, role), count in rows.items()
        ]

    def _write(self, rank: int, records: list[dict]) -> None:
        with self.directory.telemetry_file(rank).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--step-s", type=float, default=0.25)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2)
    asked = parser.parse_args()
    problem = Problem(
        cluster=load_cluster(CLUSTER),
        workload=preset("tiny-gpt"),
        constraints=Constraints(stages=asked.stages, replicas=asked.replicas),
    )
    plan = make_planner("rank-order").solve(problem, budget="1 evaluations").plan
    run_id, directory = create_run_directory(plan, TrainConfig(steps=LAST_STEP, emulate_links=True), home=asked.home)
    now_s = time.time()
    process = psutil.Process()
    status = RunStatus(
        run=run_id,
        state="running",
        message="training",
        created_unix_s=now_s,
        started_unix_s=now_s,
        pid=os.getpid(),
        pid_created_unix_s=process.create_time(),
        ranks=len(plan.ranks),
    )
    write_status(directory.status_file, status)
    ranks = Ranks(plan, directory, asked.step_s)
    ranks.begin()
    print(run_id, flush=True)
    began_s = time.monotonic()
    for step in range(LAST_STEP):
        time.sleep(max(0.0, began_s + (step + 1) * asked.step_s - time.monotonic()))
        ranks.step(step)


if __name__ == "__main__":
    main()
