"""Steps and memory that profiles of a GPU predict, against real runs on it.

    python tests/benchmarks/prediction/bench_gpu.py [--steps 12] [--only TEXT] [--profiles FOLDER] [--json FILE]

Models are profiled on the GPU (`hetplanner profile`). Then ranks train layouts of them on it. The prediction is the
simulator's from the profile, and the plan's bytes; what is measured is the median step, and the most that torch had
allocated (`torch.cuda.max_memory_allocated`). `rank_s` is what the run itself predicts before its first step. Ranks
that share the GPU get equal parts of its time in the prediction.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.model import Cluster
from hetplanner.cost.check import peak_bytes
from hetplanner.cost.durations import durations_of
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.profiles.files import save_profile
from hetplanner.profiles.measuring import measured_profile
from hetplanner.profiles.model import Profile
from hetplanner.schema import checked
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.support.training.real_ranks import Ranks, train

WINDOW_S = 0.3
"""Of a profile's layer at a micro-batch."""


@dataclass(frozen=True)
class Layout:
    """One run on the GPU: `stages` on one rank each, or interleaved `chunks` times over two."""

    model: str
    dtype: str
    micro_batch: int
    micro_batches: int
    stages: int = 1
    chunks: int = 1
    recompute: bool = False

    def __str__(self) -> str:
        more = " recompute" if self.recompute else ""
        more += f" interleaved {self.chunks} times" if self.chunks > 1 else ""
        return f"{self.model} {self.dtype}, {self.micro_batches} of {self.micro_batch}, {self.stages} stage{more}"

    @property
    def workload(self) -> Workload:
        batch = {} if preset(self.model).transformer is None else {"micro_batch": self.micro_batch}
        size = self.micro_batch * self.micro_batches
        return preset(self.model, global_batch=size, dtype=self.dtype, **batch)


PROFILED: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("gpt2", "bfloat16", (1, 4, 8, 16)),
    ("gpt2", "tf32", (4, 8)),
    ("gpt2", "float32", (4,)),
    ("gpt2-medium", "bfloat16", (1, 4, 8)),
    ("gpt2-large", "bfloat16", (1, 4)),
    ("gpt2-xl", "bfloat16", (1, 4)),
    ("gpt3-xl", "bfloat16", (1, 2, 4)),
    ("llama-1b", "bfloat16", (1, 2)),
    ("llama-8b", "bfloat16", (1, 2)),
    ("small-gpt", "bfloat16", (16,)),
    ("resnet101", "float32", (4,)),
)

LAYOUTS = (
    Layout("gpt2", "bfloat16", 8, 4),
    Layout("gpt2", "bfloat16", 4, 8),
    Layout("gpt2", "bfloat16", 6, 4),  # between two sizes of the profile
    Layout("gpt2", "bfloat16", 16, 2),
    Layout("gpt2", "bfloat16", 8, 4, recompute=True),
    Layout("gpt2", "tf32", 8, 4),
    Layout("gpt2", "float32", 4, 4),
    Layout("gpt2-medium", "bfloat16", 4, 8),
    Layout("gpt2-large", "bfloat16", 4, 4),
    Layout("gpt3-xl", "bfloat16", 2, 8),
    Layout("llama-1b", "bfloat16", 2, 4, recompute=True),
    Layout("small-gpt", "bfloat16", 16, 8),
    Layout("resnet101", "float32", 4, 8),
    Layout("gpt2", "bfloat16", 8, 8, stages=2),
    Layout("gpt2", "bfloat16", 8, 8, stages=4, chunks=2),
)


def cluster_of(devices: int, kind: str) -> Cluster:
    """So many devices of a kind in one host."""
    data = {
        "name": "one host",
        "sites": [{"name": "here", "latitude": 0.0, "longitude": 0.0}],
        "hosts": [{"id": "h0", "site": "here"}],
        "devices": [{"id": f"d{i}", "kind": kind, "host": "h0"} for i in range(devices)],
        "host_links": [{"host": "h0", "latency": "50 us", "bandwidth": "10 Gbit/s"}],
    }
    return checked(Cluster, data, "one host", from_file=True)


def plan_of(layout: Layout, profile: Profile) -> Plan:
    """Even stages, with the profile in the plan's problem."""
    workload, (kind,) = layout.workload, profile.kinds
    ranks = layout.stages // layout.chunks
    cluster = cluster_of(ranks, kind)
    ids, places, stages = cluster.device_ids, workload.boundaries, layout.stages
    edges = [0, *(places[len(places) * s // stages] for s in range(1, stages)), len(workload.graph.ops)]
    return Plan(
        problem=Problem(cluster=cluster, workload=workload, profile=profile),
        stages=tuple(
            Stage(
                first_op=edges[s], end_op=edges[s + 1], replicas=((ids[s % ranks],),), in_flight=stages - s,
                recompute=layout.recompute,
            )
            for s in range(stages)
        ),
        routes=(Route(replicas=(0,) * stages, micro_batches=layout.micro_batches),),
        ranks=ids,
        schedule="interleaved" if layout.chunks > 1 else "1f1b",
    )  # fmt: skip


def predicted_s(plan: Plan) -> float:
    """The simulated step; ranks share the GPU."""
    durations, ranks = durations_of(plan), len(plan.ranks)
    if ranks > 1:
        durations = replace(durations, cores_N=np.full(ranks, 1 / ranks))
    return summarise_plan(plan, durations).step_s


def measured(plan: Plan, steps: int) -> dict[str, Any]:
    """The median step but the first three, and each rank's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = train(plan, TrainConfig(steps=steps, device="cuda"), Path(folder), profile_s=0.4)
        lines = ranks.lines(0, "step")[3:]
        said = json.loads(Path(folder, "prediction.json").read_text())
        held = [ranks.lines(rank, "step")[-1]["device_bytes"] for rank in range(len(plan.ranks))]
        busy = busy_share(ranks, steps - 1)
    return {
        "measured_s": statistics.median(line["end_s"] - line["start_s"] for line in lines),
        "rank_s": said["step_s"],
        "held_bytes": held,
        "busy": busy,
    }


def busy_share(ranks: Ranks, step: int) -> float:
    """Share of rank 0's step in which its spans say that the GPU computes."""
    (line,) = (line for line in ranks.lines(0, "step") if line["step"] == step)
    spans = [span for span in ranks.lines(0, "span") if span["step"] == step]
    work = sum(s["end_s"] - s["start_s"] for s in spans if s["kind"] in ("forward", "backward", "step"))
    return float(work / (line["end_s"] - line["start_s"]))


def row_of(layout: Layout, profile: Profile, steps: int) -> dict[str, Any]:
    """Predicted and measured."""
    plan = plan_of(layout, profile)
    row: dict[str, Any] = {"layout": str(layout), "profile_s": predicted_s(plan)}
    row["planned_bytes"] = peak_bytes(plan, CostTables(plan.problem))
    bare = plan.replace(problem=plan.problem.replace(profile=None))
    row["catalog_s"] = predicted_s(bare)
    row["catalog_bytes"] = peak_bytes(bare, CostTables(bare.problem))
    return row | measured(plan, steps)


def tell(row: dict[str, Any]) -> None:
    """Prints a row."""
    if "error" in row:
        print(f"{row['layout']:58} {row['error']}", flush=True)
        return
    took = row["measured_s"]
    off = [f"{name} {row[f'{name}_s'] * 1e3:8.1f} ms {row[f'{name}_s'] / took - 1:+7.1%}" for name in TIMES]
    pairs = zip(row["planned_bytes"], row["catalog_bytes"], row["held_bytes"], strict=True)
    sizes = " ".join(f"{held / 2**20:7.0f} MiB {plan / held:.3f} {bare / held:.3f}" for plan, bare, held in pairs)
    print(f"{row['layout']:58} {took * 1e3:8.1f} ms  {'  '.join(off)}  busy {row['busy']:.0%}  {sizes}", flush=True)


TIMES = ("profile", "rank", "catalog")


def main() -> None:
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default="", help="layouts whose words hold this")
    parser.add_argument("--profiles", type=Path, help="keeps the profiles in this folder, and measures those of all")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    layouts = [layout for layout in LAYOUTS if given.only in str(layout)]
    rows: list[dict[str, Any]] = []
    for model, dtype, sizes in PROFILED:
        mine = [layout for layout in layouts if (layout.model, layout.dtype) == (model, dtype)]
        if not mine and given.profiles is None:
            continue
        try:
            began_s = time.perf_counter()
            profile = measured_profile(preset(model, dtype=dtype), sizes, device="cuda", window_s=WINDOW_S)
            print(f"{profile.name}, {dtype}: profiled in {time.perf_counter() - began_s:.0f} s", flush=True)
            if given.profiles is not None:
                save_profile(profile, given.profiles / f"{model}-{dtype}.json")
        except Exception as error:
            print(f"profile of {model}: {error}", flush=True)
            continue
        for layout in mine:
            try:
                rows.append(row_of(layout, profile, given.steps))
            except Exception as error:  # the others are measured all the same
                traceback.print_exc()
                rows.append({"layout": str(layout), "error": repr(error)[-300:]})
            tell(rows[-1])
            if given.json is not None:
                given.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
