"""Tokens per second beside torch.distributed.pipelining: same modules, schedule, processes and micro-batches.

    python tests/benchmarks/training/bench_pipelining.py [--stages 2 4] [--schedules 1f1b gpipe] [--rates 100 25]
        [--blocks 9]

Both sides train in the same processes, in turn: a block of steps here, a block there, and the median of the ratios of
neighbouring blocks is reported, so that other load on the machine meets both. Every stage is a `StageModel`; torch's
side runs it inside `PipelineStage`, and both draw the same batches and take the same AdamW steps.

`--rates` (Mbit/s; needs root, `ip` and `tc`) repeats the runs with every rank in a network namespace of its own whose
link the kernel slows down (token bucket, both directions), under the same gloo: no emulation of ours is involved.
There is no added latency. torch posts a receive when it is due and waits for sends before it goes on; gloo moves no
bytes before the receive is posted, so there a transfer cannot overlap with computing.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.connect import join, open_store, place_from_environment
from hetplanner.runtime.comm.transport import Transport
from hetplanner.runtime.measure.telemetry import Telemetry
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.chunk import build_chunks
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.runtime.train.executor import Executor
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_cluster

LAYERS, MICRO_BATCHES = 8, 8
CONFIG = TrainConfig(steps=10_000, seed=0, learning_rate=1e-3)


def homogeneous_plan(stages: int, schedule: str, width: int) -> Plan:
    """Equal layers a stage, one replica, links that cost nothing in the schedule; no tied weights, which torch's
    pipelining would train apart.
    """
    workload = Workload(
        name="bench",
        transformer=TransformerConfig(
            vocab=256, max_seq_len=64, hidden=width, layers=LAYERS, heads=4, ffn=4 * width, tie_embeddings=False
        ),
        global_batch=4 * MICRO_BATCHES,
        micro_batch=4,
        seq_len=64,
        dtype="float32",
    )
    cuts = [1 + 2 * LAYERS // stages * s for s in range(1, stages)]
    cluster = small_cluster(stages, bandwidth="1000 Gbit/s", latency="0 s")
    return chain_plan([MICRO_BATCHES], cuts, schedule=schedule, cluster=cluster, workload=workload)


class TorchStage(nn.Module):
    """A stage for `PipelineStage`; the last one ends in logits, torch's schedule adds the loss."""

    def __init__(self, workload: Workload, first_op: int, end_op: int) -> None:
        super().__init__()
        self.stage = StageModel(workload, first_op, min(end_op, len(workload.graph.ops) - 1), CONFIG.seed)
        self.weights = nn.ParameterList(self.stage.parameters)
        self.shape = (workload.micro_batch, workload.seq_len, -1)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or the boundary's tensor in, the next boundary's out."""
        first = self.stage.is_first
        return self.stage.forward(None if first else x.reshape(-1), (x, x) if first else None).view(self.shape)


def summed_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """As our loss op: the sum over tokens."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), reduction="sum")


class TorchSide:
    """One rank under torch's schedule."""

    def __init__(self, plan: Plan, rank: int, batches: Batches) -> None:
        self.workload, self.rank, self.batches, self.last = plan.problem.workload, rank, batches, len(plan.stages) - 1
        module = TorchStage(self.workload, plan.stages[rank].first_op, plan.stages[rank].end_op)
        self.model = module.stage
        stage = PipelineStage(module, rank, len(plan.stages), torch.device("cpu"))
        kind = ScheduleGPipe if plan.schedule == "gpipe" else Schedule1F1B
        self.schedule = kind(stage, self.workload.num_micro_batches, loss_fn=summed_loss, scale_grads=False)
        model = self.model
        self.optimizer = StageOptimizer(
            self.workload, model.first_op, model.end_op, CONFIG, model.flat, model.flat_grad
        )

    def run_step(self, step: int) -> float | None:
        """One step; the mean loss on the last rank."""
        losses: list[Tensor] = []
        if self.rank in (0, self.last):
            drawn = [self.batches.draw(step, m) for m in range(self.workload.num_micro_batches)]
            tokens, labels = (torch.cat([pair[i] for pair in drawn]) for i in (0, 1))
        if self.rank == 0:
            self.schedule.step(tokens, return_outputs=False)
        elif self.rank == self.last:
            self.schedule.step(target=labels, losses=losses, return_outputs=False)
        else:
            self.schedule.step(return_outputs=False)
        self.model.flat_grad.mul_(1.0 / self.workload.tokens_per_step)
        self.optimizer.step(CONFIG.learning_rate_at(step))
        self.model.flat_grad.zero_()
        return float(torch.stack(losses).detach().sum()) / self.workload.tokens_per_step if losses else None


def our_side(plan: Plan, rank: int, batches: Batches, folder: Path) -> Callable[[int], float | None]:
    """One rank of the executor, telemetry included."""
    transport = Transport(rank, None, window=2 * plan.held_S[rank] + 4)
    telemetry = Telemetry(folder / f"rank-{rank}.jsonl", rank)
    executor = Executor(plan, rank, CONFIG, build_chunks(plan, rank, CONFIG), transport, batches, telemetry)

    def run_step(step: int) -> float | None:
        stats = executor.run_step(step)
        return None if stats.loss_sum is None else stats.loss_sum / stats.num_tokens

    return run_step


def work(folder: Path, blocks: int, block_s: float) -> None:
    """One rank: both sides in turn; the last rank writes what it measured."""
    plan, place = load_plan(folder / "plan.json"), place_from_environment()
    join(place, open_store(place), loopback=place.is_loopback)
    workload = plan.problem.workload
    batches = open_batches(CONFIG, workload)
    torch_side = TorchSide(plan, place.rank, batches)
    sides = {"ours": our_side(plan, place.rank, batches, folder), "torch": torch_side.run_step}
    done, losses = dict.fromkeys(sides, 0), {name: [] for name in sides}

    def run(name: str, steps: int) -> float:
        dist.barrier()
        began = time.monotonic()
        for _ in range(steps):
            losses[name].append(sides[name](done[name]))
            done[name] += 1
        dist.barrier()
        return time.monotonic() - began

    for name in sides:
        run(name, 2)
    steps = torch.tensor(max(2, round(block_s / (run("ours", 2) / 2))))
    dist.broadcast(steps, src=0)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks):
        for name in sorted(sides, reverse=block % 2 == 1):
            seconds[name].append(run(name, int(steps)) / int(steps))
    if place.rank == place.world_size - 1:
        both = min(done.values())
        part = max(abs(a - b) for a, b in zip(losses["ours"][:both], losses["torch"][:both], strict=True))
        row = {"seconds": seconds, "tokens_per_step": workload.tokens_per_step, "loss_difference": part}
        (folder / "row.json").write_text(json.dumps(row))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


@contextmanager
def slow_network(ranks: int, mbit: float) -> Iterator[list[list[str]]]:
    """A namespace per rank on one bridge, every way in and out limited by the kernel; yields command prefixes."""
    # Interfaces have at most 15 characters; the kernel frees those of a deleted namespace only after a while.
    name = f"hp{secrets.token_hex(3)}"

    def command(text: str) -> None:
        subprocess.run(text.split(), check=True, capture_output=True)

    limit = f"root tbf rate {mbit}mbit burst 16kb latency 2s"
    try:
        command(f"ip link add {name} type bridge")
        command(f"ip link set {name} up")
        for r in range(ranks):
            command(f"ip netns add {name}-{r}")
            command(f"ip link add {name}v{r} type veth peer name hpv0 netns {name}-{r}")
            command(f"ip link set {name}v{r} master {name} up")
            for inside in (f"addr add 10.77.0.{r + 1}/24 dev hpv0", "link set hpv0 up", "link set lo up"):
                command(f"ip -n {name}-{r} {inside}")
            # Large segments would pass the bucket in one piece.
            command(f"ip netns exec {name}-{r} tc qdisc add dev hpv0 {limit}")
        yield [["ip", "netns", "exec", f"{name}-{r}"] for r in range(ranks)]
    finally:
        for r in range(ranks):
            subprocess.run(["ip", "netns", "del", f"{name}-{r}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def measure(plan: Plan, prefixes: Sequence[list[str]], address: str, args: argparse.Namespace) -> dict[str, Any]:
    """Starts the ranks and reads what the last one wrote."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        save_plan(plan, folder / "plan.json")
        environment = os.environ | {
            "WORLD_SIZE": str(len(plan.ranks)), "MASTER_ADDR": address, "MASTER_PORT": str(args.port),
            "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "0",
        }  # fmt: skip
        if address != "127.0.0.1":
            environment["GLOO_SOCKET_IFNAME"] = "hpv0"
        own = [sys.executable, __file__, "--work", text, "--blocks", str(args.blocks), "--block-s", str(args.block_s)]
        ranks = [
            subprocess.Popen([*prefix, *own], env=environment | {"RANK": str(r)}) for r, prefix in enumerate(prefixes)
        ]
        codes = [process.wait() for process in ranks]
        if any(codes):
            raise SystemExit("a rank failed")
        return json.loads((folder / "row.json").read_text())


def report(label: str, row: dict[str, Any]) -> None:
    """One line: medians, and the median of the ratios of neighbouring blocks."""
    ours, theirs = row["seconds"]["ours"], row["seconds"]["torch"]
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    rates = [row["tokens_per_step"] / statistics.median(part) for part in (ours, theirs)]
    print(
        f"{label:28} {rates[0]:9,.0f} {rates[1]:9,.0f} {ratio:7.3f}   {row['loss_difference']:.1e}",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "gpipe"])
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="Mbit/s of every rank's link; needs root")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=1.5)
    parser.add_argument("--port", type=int, default=29_611)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.blocks, args.block_s)
    print(f"{'case':28} {'ours':>9} {'torch':>9} {'ratio':>7}   loss difference     (tokens/s, medians)")
    for stages in args.stages:
        for schedule in args.schedules:
            plan = homogeneous_plan(stages, schedule, args.width)
            report(f"{stages} stages {schedule}", measure(plan, [[]] * stages, "127.0.0.1", args))
            for rate in args.rates:
                with slow_network(stages, rate) as prefixes:
                    row = measure(plan, prefixes, "10.77.0.1", args)
                report(f"{stages} stages {schedule} {rate:g} Mbit/s", row)


if __name__ == "__main__":
    main()
