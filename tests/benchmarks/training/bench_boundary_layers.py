"""What compression-aware layers cost in loss and save in bytes, beside int8, at equal steps.

    python tests/benchmarks/training/bench_boundary_layers.py [--steps 600] [--seeds 2] [--json]

A small GPT of three layers reads bytes of Python's library in three stages, with such a layer at both boundaries; one
process passes every micro-batch through stages and codecs (as `bench_fusionllm.py`, which checks that against real
ranks). Runs of one seed see the same samples in the same order. Loss is the mean of the last tenth of the steps;
`held out` is on samples that were not trained on. Bytes are those of one boundary for one micro-batch, both ways.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from hetplanner.codecs.spec import Codec
from hetplanner.plan.model import Plan
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.transformer import BoundaryLayers
from tests.benchmarks.training.bench_fusionllm import InOneProcess, config_of, gpt, step_bytes, with_codecs
from tests.support.plans.factories import chain_plan

VARIANTS: dict[str, tuple[str | None, str | None]] = {
    "none": (None, None),
    "int8": (None, "int8"),
    "bottleneck 2": ("bottleneck:2", None),
    "bottleneck 4": ("bottleneck:4", None),
    "maxout 2": ("maxout:2", None),
    "maxout 4": ("maxout:4", None),
    "bottleneck 4, int8": ("bottleneck:4", "int8"),
}


def plan_of(layers: str | None, codec: str | None) -> Plan:
    """Three stages, one layer each."""
    workload = gpt()
    if layers is not None:
        shape = workload.transformer.replace(boundary_layers=BoundaryLayers.parse(layers))
        workload = workload.replace(transformer=shape)
    ops = workload.graph.ops
    cuts = [next(i for i, op in enumerate(ops) if op.layer == layer) for layer in (1, 2)]
    plan = chain_plan([workload.num_micro_batches], cuts, workload=workload)
    return with_codecs(plan, [Codec(name=codec)] * 2) if codec else plan


def train(plan: Plan, steps: int, seed: int) -> dict[str, float]:
    """One run."""
    began_s = time.process_time()
    config = config_of(steps, seed, None)
    trainer, batches = InOneProcess(plan, config), open_batches(config, plan.problem.workload)
    losses = [trainer.step(batches, t) for t in range(steps)]
    final, held_out = statistics.mean(losses[-max(1, steps // 10) :]), trainer.validation_loss(batches)
    return {"loss": final, "held_out": held_out, "cpu_s": time.process_time() - began_s}


def main() -> None:
    """Prints a line for every variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dense: list[float] = []
    for name, (layers, codec) in VARIANTS.items():
        plan = plan_of(layers, codec)
        runs = [train(plan, args.steps, seed) for seed in range(args.seeds)]
        dense = dense or [run["loss"] for run in runs]
        row = {key: statistics.mean(run[key] for run in runs) for key in ("loss", "held_out", "cpu_s")} | {
            "over_none": [run["loss"] / base - 1.0 for run, base in zip(runs, dense, strict=True)],
            "bytes": step_bytes(plan) // (2 * plan.problem.workload.num_micro_batches),
            "params": plan.problem.workload.graph.num_params,
        }
        if args.json:
            print(json.dumps({"variant": name} | row), flush=True)
            continue
        shares = ", ".join(f"{share:+.2%}" for share in row["over_none"])
        print(
            f"{name:20} {row['bytes'] / 1e3:6.1f} kB a boundary, {row['params']:7,} parameters, loss {row['loss']:.3f}"
            f" ({shares}), held out {row['held_out']:.3f}, {row['cpu_s']:.0f} CPU s a run",
            flush=True,
        )


if __name__ == "__main__":
    main()
