"""Steps that a profile of the model's layers predicts, against real steps of twelve layouts.

    python tests/benchmarks/prediction/bench_profile.py [--steps 12] [--json]

Three models are profiled on one core of this machine (`hetplanner profile --threads 1`). Then CPU ranks train twelve
layouts over emulated links. The prediction is the simulator's, with the profile, the catalog's memory bandwidth, and
what a message costs beside its link, as `hetplanner calibrate` finds it in one other run. Nothing of the run itself
goes into it, but that so many ranks share the machine's cores. Run it on a machine that does nothing else.

The last two columns do without a profile: `calibrate --table` fits the efficiency, or the efficiency and what an
operator takes to launch, to three of the layouts. Their errors are of the other nine.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.calibration.model import apply_calibration
from hetplanner.calibration.table_fit import MeasuredStep, calibrate_table
from hetplanner.calibration.trace_fit import calibrate_trace
from hetplanner.cluster.model import TransferCost
from hetplanner.codecs.spec import Codec
from hetplanner.cost.durations import durations_of
from hetplanner.plan.model import LinkCodec, Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.profiles.measuring import measured_profile
from hetplanner.profiles.model import Profile
from hetplanner.runs.run import Run
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import train

MODELS = ("tiny-gpt", "tiny-llama", "small-gpt")
MEASURED = (1, 4)
"""Micro-batches of the profile; what lies between is interpolated."""
WINDOW_S = 2.0
FAST, SLOW = ("1 Gbit/s", "2 ms"), ("100 Mbit/s", "20 ms")


@dataclass(frozen=True)
class Layout:
    """One run: routes with their micro-batches, stages, and the network."""

    model: str
    micro_batch: int
    shares: tuple[int, ...]
    stages: int
    network: tuple[str, str]
    codec: str = "none"
    recompute: bool = False

    def __str__(self) -> str:
        more = (" " + self.codec if self.codec != "none" else "") + (" recompute" if self.recompute else "")
        shape = f"{self.stages}x{len(self.shares)}"
        return f"{self.model} of {self.micro_batch}, {shape}, {' '.join(self.network)}{more}"


LAYOUTS = (
    Layout("tiny-gpt", 2, (8,), 2, FAST),
    Layout("tiny-gpt", 4, (4, 4), 1, FAST),
    Layout("tiny-gpt", 4, (8,), 4, SLOW),
    Layout("tiny-gpt", 2, (5, 3), 2, SLOW),
    Layout("tiny-llama", 4, (8,), 2, SLOW),
    Layout("tiny-llama", 2, (4, 4), 1, SLOW),
    Layout("tiny-llama", 4, (4, 4), 2, FAST),
    Layout("small-gpt", 2, (8,), 2, FAST),
    Layout("small-gpt", 1, (8,), 2, SLOW, codec="int8"),
    Layout("small-gpt", 2, (8,), 2, FAST, recompute=True),
    Layout("small-gpt", 2, (4, 4), 1, FAST),
    Layout("small-gpt", 2, (4, 4), 2, FAST),
)


FITTED = (LAYOUTS[0], LAYOUTS[4], LAYOUTS[7])
"""One of each model."""
FITS = {"efficiency_s": ("efficiency",), "launch_s": ("efficiency", "launch")}


def workload_of(layout: Layout) -> Workload:
    """The model with the layout's batch, in float32."""
    size = layout.micro_batch * sum(layout.shares)
    return preset(layout.model, micro_batch=layout.micro_batch, global_batch=size, dtype="float32")


def plan_of(layout: Layout, profile: Profile | None) -> Plan:
    """Even stages on one device a site; with the profile in its problem."""
    workload = workload_of(layout)
    edges = [k * len(workload.boundaries) // layout.stages for k in range(1, layout.stages)]
    cuts = [workload.boundaries[k] for k in edges]
    bandwidth, latency = layout.network
    cluster = small_cluster(layout.stages * len(layout.shares), bandwidth=bandwidth, latency=latency)
    cluster = cluster.replace(name=str(layout))
    plan = chain_plan(list(layout.shares), cuts, cluster=cluster, workload=workload)
    plan = plan.replace(problem=plan.problem.replace(profile=profile))
    if layout.recompute:
        plan = plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))
    if layout.codec == "none":
        return plan
    pairs = [(a, b) for a in plan.ranks for b in plan.ranks if a != b]
    codec = Codec(name=layout.codec)  # type: ignore[arg-type]
    rules = [
        LinkCodec(from_device=a, to_device=b, role=role, codec=codec)
        for a, b in pairs
        for role in ("activation", "gradient")
    ]
    return plan.replace(link_codecs=tuple(rules))


def predicted_s(plan: Plan, transfer: TransferCost | None = None) -> float:
    """The simulated step of ranks that share this machine's cores."""
    cores, count = len(os.sched_getaffinity(0)), len(plan.ranks)
    plan = plan.replace(problem=plan.problem.replace(cluster=plan.problem.cluster.replace(transfer=transfer)))
    durations = replace(durations_of(plan), cores_N=np.full(count, min(1.0, cores / count)))
    return summarise_plan(plan, durations).step_s


def measured_s(plan: Plan, steps: int) -> float:
    """The median step but the first."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = train(plan, TrainConfig(steps=steps, emulate_links=True), Path(folder))
        lines = ranks.lines(0, "step")[1:]
    return statistics.median(line["end_s"] - line["start_s"] for line in lines)


def transfer_cost(steps: int) -> TransferCost:
    """What a message costs beside its link, by a run of a layout that is none of the twelve."""
    plan = plan_of(Layout("tiny-gpt", 2, (6,), 2, ("500 Mbit/s", "5 ms")), None)
    with tempfile.TemporaryDirectory() as folder:
        train(plan, TrainConfig(steps=steps, emulate_links=True), Path(folder))
        found = calibrate_trace(Run(Path(folder)).trace(steps), plan)
    assert found.transfer is not None
    return found.transfer


def rows(steps: int) -> list[dict[str, Any]]:
    """A row for every layout."""
    transfer = transfer_cost(steps)
    found: list[dict[str, Any]] = []
    for model in MODELS:
        profile = measured_profile(preset(model, dtype="float32"), MEASURED, device="cpu", threads=1, window_s=WINDOW_S)
        for layout in LAYOUTS:
            if layout.model == model:
                plan = plan_of(layout, profile)
                found.append(
                    {
                        "layout": str(layout),
                        "measured_s": measured_s(plan, steps),
                        "profile_s": predicted_s(plan),
                        "calibrated_s": predicted_s(plan, transfer),
                        "catalog_s": predicted_s(plan_of(layout, None)),
                    }
                )
    measured = {layout: row["measured_s"] for layout in LAYOUTS for row in found if row["layout"] == str(layout)}
    for name, fit in FITS.items():
        for row, seconds in zip(found, fitted_s(measured, fit), strict=True):
            row[name] = seconds
    return found


def fitted_s(measured: dict[Layout, float], fit: tuple[str, ...]) -> list[float]:
    """Predictions of the layouts in order, with a calibration that knows three of them."""
    steps = [MeasuredStep(str(layout), plan_of(layout, None), measured[layout]) for layout in FITTED]
    calibration, found = calibrate_table(steps, fit=fit), []
    for layout in LAYOUTS:
        plan = plan_of(layout, None)
        cluster = apply_calibration(calibration, plan.problem.cluster)
        found.append(predicted_s(plan.replace(problem=plan.problem.replace(cluster=cluster)), calibration.transfer))
    return found


def main() -> None:
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = rows(given.steps)
    if given.json:
        print(json.dumps(found))
        return
    columns = ("profile_s", "calibrated_s", "catalog_s", *FITS)
    print(f"{'layout':58} {'measured':>9}" + "".join(f" {name:>12} {'off':>7}" for name in columns))
    off = {name: [float(row[name]) / float(row["measured_s"]) - 1 for row in found] for name in columns}
    for i, row in enumerate(found):
        cells = "".join(f" {float(row[name]) * 1e3:10.1f}ms {off[name][i]:+7.1%}" for name in columns)  # type: ignore[arg-type]
        print(f"{row['layout']:58} {float(row['measured_s']) * 1e3:7.1f}ms{cells}")  # type: ignore[arg-type]
    known = {str(layout) for layout in FITTED}
    for name in columns:
        told = [
            abs(e) for row, e in zip(found, off[name], strict=True) if name not in FITS or row["layout"] not in known
        ]
        print(f"{name}: mean {statistics.mean(told):.1%}, worst {max(told):.1%}")


if __name__ == "__main__":
    main()
