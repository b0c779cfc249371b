"""The step of worker groups and of ZeRO beside the same layout in plain PyTorch: DTensor, `parallelize_module`,
`fully_shard`.

    python tests/benchmarks/training/bench_groups_train.py [--layouts 1x2 1x4 2x2] [--steps 10] [--runs 3] [--reshard]
        [--zero] [--sharding tensor|zero2|zero3] [--captured] [--json]

A layout is replicas x devices of a group. With `--zero` replicas shard the optimizer's states. With `--sharding zero2`
or `zero3` the devices of a group divide samples, as those under `fully_shard` do; the layouts are then of one replica,
and torch adds up gradients in every micro-batch. With `zero3` both divide weights again after each use.

Ours are real ranks of the product. torch's side is laid out as torchtitan lays out its Llama: separate projections of
queries, keys and values, norms sequence parallel, cross-entropy over divided words, replicas under `fully_shard` that
exchange gradients once a step, fused AdamW. Weights and gradients stay whole between the micro-batches of a step;
`--reshard` divides the weights again after each forward and backward. With `--captured` ours is a capture of torch's
model; else it is our own Llama.

Both sides train in the same processes, in turn: a step here, a step there, from the same weights and with the same
batches, each step behind a barrier. A step lasts until its last process is done. Printed for each layout:

- median seconds of a step of both, and the median of the ratios torch / ours of neighbouring steps (above 1: ours is
  faster) with the least and the greatest median of a run;
- the ratio of the processors' seconds of all processes, which other work on the machine changes less;
- how far our losses are from those of one process (the first steps), and torch's from ours (all steps), relative;
- the most resident memory of any process, and seconds of a step, where each side trains alone.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.connect import join, open_store, place_from_environment
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.modules import rotated, rotation
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.runtime.train.executor import Executor, StepStats
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.tensor_degrees import SHARDINGS, Sharding
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, sharded
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import train

SIDES = ("ours", "torch")
WARM_STEPS, REFERENCE_STEPS, ALONE_STEPS = 2, 3, 5


SHAPE = TransformerConfig(
    family="llama", vocab=4096, max_seq_len=256, hidden=512, layers=4, heads=8, ffn=1408, tie_embeddings=False
)
TOKENS, CPU = 256, torch.device("cpu")


def bench_plan(
    replicas: int, degree: int, micro_batches: int, sharding: Sharding, *, zero: bool, captured: bool
) -> Plan:
    """A Llama of 4 layers on replicas that are groups of so many devices; each takes so many micro-batches a step."""
    samples = 2 if sharding == "tensor" else max(2, degree)
    batch = samples * micro_batches * replicas
    if captured:
        tokens = torch.zeros(samples, TOKENS, dtype=torch.int64)
        workload = capture_workload(lambda: (TorchLlama(SHAPE), tokens), "bench", global_batch=batch)
    else:
        workload = Workload(
            name="bench", transformer=SHAPE, global_batch=batch, micro_batch=samples, seq_len=TOKENS, dtype="float32"
        )
    plan = chain_plan([micro_batches] * replicas, [], workload=workload)
    if degree > 1:
        plan = in_groups(plan, [degree] * replicas, sharding)
    return sharded(plan) if zero else plan


# -- torch's side ---------------------------------------------------------------------------------


class TorchAttention(nn.Module):
    """Causal self-attention of the heads that the projections give here."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.c = c
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(c.hidden, c.hidden, bias=False) for _ in range(4))
        for name, values in zip(("cosine", "sine"), rotation(TOKENS, c.head_dim, c.rope_theta, CPU), strict=True):
            self.register_buffer(name, values.clone(), persistent=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Rotates by halves, as our model does."""
        B, T, _ = x_BTC.shape
        q, k, v = (p(x_BTC).view(B, T, -1, self.c.head_dim).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
        turn = self.cosine, self.sine
        y = F.scaled_dot_product_attention(rotated(q, *turn), rotated(k, *turn), v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


class TorchMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(c.hidden, c.ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(c.ffn, c.hidden, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """The feed-forward half."""
        return self.w2(F.silu(self.w1(x_BTC)) * self.w3(x_BTC))


class TorchLayer(nn.Module):
    """One layer."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(c.hidden, eps=c.norm_eps) for _ in range(2))
        self.attention, self.feed_forward = TorchAttention(c), TorchMlp(c)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Both halves with their residuals."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        return x_BTC + self.feed_forward(self.ffn_norm(x_BTC))


class TorchLlama(nn.Module):
    """Tokens to logits."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(TorchLayer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.hidden, eps=c.norm_eps)
        self.output = nn.Linear(c.hidden, c.vocab, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """All layers in order."""
        x_BTC = self.tok_embeddings(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.output(self.norm(x_BTC))


def torch_weights(workload: Workload, seed: int) -> dict[str, Tensor]:
    """Our initial weights by torch's names."""
    c, ours = SHAPE, StageModel(workload, 0, len(workload.graph.ops), seed).named_weights()
    if workload.program is not None:
        return {name: values.detach().clone() for name, values in ours.items()}
    found = {"tok_embeddings.weight": ours["embedding.tokens.weight"], "output.weight": ours["head.weight"]}
    found["norm.weight"] = ours["final_norm.norm_in.weight"]
    for i in range(c.layers):
        theirs, half = f"layers.{i}.", f"layer.{i}."
        qkv = ours[half + "attention.qkv.weight"].split(c.hidden)
        found |= {f"{theirs}attention.w{part}.weight": rows for part, rows in zip("qkv", qkv, strict=True)}
        found[theirs + "attention.wo.weight"] = ours[half + "attention.out.weight"]
        for name, ours_name in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
            found[f"{theirs}feed_forward.{name}.weight"] = ours[f"{half}mlp.{ours_name}.weight"]
        found[theirs + "attention_norm.weight"] = ours[half + "attention.norm_in.weight"]
        found[theirs + "ffn_norm.weight"] = ours[half + "mlp.norm_in.weight"]
    return {name: values.detach().clone() for name, values in found.items()}


def laid_out(model: TorchLlama, mesh: DeviceMesh, *, reshard: bool) -> None:
    """Divides the model as torchtitan does: by tensor, then by data."""
    if mesh["tensor"].size() > 1:
        divided_by_tensor(model, mesh["tensor"])
    if mesh["data"].size() == 1:
        return
    for part in (model.tok_embeddings, *model.layers, [model.norm, model.output], model):
        fully_shard(part, mesh=mesh["data"], reshard_after_forward=reshard)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            module.set_gradient_divide_factor(1.0)


def divided_by_tensor(model: TorchLlama, tensor: DeviceMesh) -> None:
    """Heads, columns and words, with sequence parallelism."""
    tokens = Shard(1)
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, tensor, ends)
    whole = partial(PrepareModuleInput, input_layouts=(tokens,), desired_input_layouts=(Replicate(),))
    inner = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    inner |= {"attention": whole(), "feed_forward": whole()}
    inner |= {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
    inner |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
    inner |= {name: RowwiseParallel(output_layouts=tokens) for name in ("attention.wo", "feed_forward.w2")}
    for layer in model.layers:
        parallelize_module(layer, tensor, inner)


class TorchSide:
    """One process of torch's side."""

    def __init__(self, plan: Plan, config: TrainConfig, batches: Batches, *, reshard: bool) -> None:
        self.workload, self.config, self.batches, self.reshard = plan.problem.workload, config, batches, reshard
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # nothing is changed in place
        processes = torch.tensor(plan.processes_of_rank)
        sharding = plan.problem.sharding_of(plan.ranks[0])
        self.divides_samples = sharding != "tensor"
        if self.divides_samples:
            processes, reshard = processes.T, sharding == "zero3"
            self.reshard = reshard
        mesh = DeviceMesh("cpu", processes, mesh_dim_names=("data", "tensor"))
        self.data, self.has_replicas = mesh["data"], mesh["data"].size() > 1
        self.divided_loss = loss_parallel if mesh["tensor"].size() > 1 else nullcontext
        self.model = TorchLlama(SHAPE)
        self.model.load_state_dict(torch_weights(self.workload, config.seed))
        laid_out(self.model, mesh, reshard=reshard)
        share = self.workload.num_micro_batches // (1 if self.divides_samples else self.data.size())
        first = 0 if self.divides_samples else self.data.get_local_rank() * share
        self.micro_batches = range(first, first + share)
        weights = list(self.model.parameters())
        groups = [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)

    def run_step(self, step: int) -> Tensor:
        """One step; this replica's sum of losses over the step's tokens."""
        loss_sum = torch.zeros(())
        for m in self.micro_batches:
            if self.has_replicas:
                is_last = m == self.micro_batches[-1]
                self.model.set_requires_gradient_sync(is_last or self.divides_samples)
                self.model.set_reshard_after_backward(self.reshard or is_last)
            batch = self.batches.draw(step, m)
            inputs, labels = batch.inputs, batch.labels
            if self.divides_samples:
                size, place = self.data.size(), self.data.get_local_rank()
                inputs, labels = (part.tensor_split(size)[place] for part in (inputs, labels))
            with self.divided_loss():
                logits = self.model(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                loss = loss / self.workload.tokens_per_step
                loss.backward()
            loss_sum += loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach()
            del logits, loss
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate_at(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss_sum

    def mean_loss(self, loss_sum: Tensor) -> float:
        """Over all replicas."""
        if self.has_replicas:
            dist.all_reduce(loss_sum, group=self.data.get_group())
        return float(loss_sum)


# -- processes ------------------------------------------------------------------------------------


class Record:
    """What one process writes down after every step."""

    def __init__(self, folder: str, process: int) -> None:
        self.path = Path(folder) / f"record-{process}.json"
        self.seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        self.cpu: dict[str, list[float]] = {side: [] for side in SIDES}
        self.losses: list[float] = []

    def write(self) -> None:
        """Also the most memory that has been resident."""
        status = Path("/proc/self/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        own = {"seconds": self.seconds, "cpu": self.cpu, "losses": self.losses, "peak": kib * 1024}
        self.path.write_text(json.dumps(own))

    def timed(self, side: str, run_step: Callable[[], Any]) -> Any:
        """A step behind a barrier, timed."""
        dist.barrier()
        began_s, cpu_s = time.monotonic(), time.process_time()
        found = run_step()
        self.seconds[side].append(time.monotonic() - began_s)
        self.cpu[side].append(time.process_time() - cpu_s)
        return found

    def torch_step(self, side: "TorchSide", step: int) -> None:
        """A step of torch's side."""
        self.losses.append(side.mean_loss(self.timed("torch", lambda: side.run_step(step))))


def our_steps(process: int, *, folder: str, takes_turns: bool, reshard: bool) -> None:
    """Before a rank begins: its steps are recorded, and torch's side takes each after it, if it is to take turns."""
    record, sides, run_step = Record(folder, process), [], Executor.run_step

    def both(executor: Executor, step: int) -> StepStats:
        if takes_turns and not sides:
            sides.append(TorchSide(executor.plan, executor.config, executor.batches, reshard=reshard))
        stats = record.timed("ours", lambda: run_step(executor, step))
        for side in sides:
            record.torch_step(side, step)
        record.write()
        return stats

    Executor.run_step = both


def torch_steps(process: int, *, folder: str, reshard: bool) -> None:
    """In the place of a rank: torch's side alone."""
    plan, place = load_plan(Path(folder) / "plan.json"), place_from_environment()
    config = run_config(json.loads((Path(folder) / "run.json").read_text())["steps"])
    join(place, open_store(place), loopback=place.is_loopback)
    record = Record(folder, process)
    side = TorchSide(plan, config, open_batches(config, plan.problem.workload), reshard=reshard)
    for step in range(config.steps):
        record.torch_step(side, step)
    record.write()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def run_config(steps: int) -> TrainConfig:
    """Of all runs."""
    return TrainConfig(steps=steps)


def measure(plan: Plan, steps: int, before: Callable[..., None], **options: bool) -> dict[str, Any]:
    """One run: by side seconds of each step until its last process is done, processors' seconds of all, and losses;
    the most memory of a process.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = train(plan, run_config(steps), Path(folder), fault=partial(before, folder=folder, **options))
        records = [json.loads(path.read_text()) for path in Path(folder).glob("record-*.json")]
        losses = ranks.losses() if before is our_steps else []

    def of_all(what: str, side: str, join_: Callable[[Any], float]) -> list[float]:
        return [join_(each) for each in zip(*(r[what][side] for r in records), strict=True)][WARM_STEPS:]

    return {
        "seconds": {side: of_all("seconds", side, max) for side in SIDES},
        "cpu": {side: of_all("cpu", side, sum) for side in SIDES},
        "losses": {"ours": losses, "torch": records[0]["losses"]},
        "peak": max(r["peak"] for r in records),
    }


def greatest_difference(losses: list[float], expected: list[float]) -> float:
    """Relative, of the steps that both have."""
    return max(abs(a / b - 1.0) for a, b in zip(losses, expected, strict=False))


def ratios(of: dict[str, list[float]]) -> list[float]:
    """torch / ours, of neighbouring steps."""
    return [b / a for a, b in zip(of["ours"], of["torch"], strict=True)]


def layout_row(layout: str, args: argparse.Namespace) -> dict[str, Any]:
    """All runs of one layout."""
    replicas, degree = map(int, layout.split("x"))
    made = partial(bench_plan, zero=args.zero, captured=args.captured)
    plan, reshard = made(replicas, degree, args.micro_batches, args.sharding), args.reshard
    _, expected = train_reference(plan.problem.workload, run_config(REFERENCE_STEPS))
    runs = [measure(plan, args.steps, our_steps, takes_turns=True, reshard=reshard) for _ in range(args.runs)]
    ours = measure(plan, ALONE_STEPS, our_steps, takes_turns=False, reshard=reshard)
    alone = measure(plan, ALONE_STEPS, torch_steps, reshard=reshard)
    medians = [statistics.median(ratios(run["seconds"])) for run in runs]
    return {
        "layout": layout,
        "seconds": {side: statistics.median(s for run in runs for s in run["seconds"][side]) for side in SIDES},
        "ratio": statistics.median(ratio for run in runs for ratio in ratios(run["seconds"])),
        "least": min(medians),
        "greatest": max(medians),
        "cpu_ratio": statistics.median(ratio for run in runs for ratio in ratios(run["cpu"])),
        "apart": {
            "ours": max(greatest_difference(run["losses"]["ours"], expected) for run in runs),
            "torch": max(greatest_difference(run["losses"]["torch"], run["losses"]["ours"]) for run in runs),
        },
        "peak": {"ours": ours["peak"], "torch": alone["peak"]},
        "alone": {
            side: statistics.median(run["seconds"][side]) for side, run in zip(SIDES, (ours, alone), strict=True)
        },
    }


def show(row: dict[str, Any]) -> None:
    """One line."""
    seconds, apart, peak, alone = row["seconds"], row["apart"], row["peak"], row["alone"]
    print(
        f"{row['layout']:6} {seconds['ours']:6.2f} {seconds['torch']:6.2f}"
        f"   {row['ratio']:6.3f} {row['least']:6.3f} {row['greatest']:6.3f}   {row['cpu_ratio']:6.3f}"
        f"   {apart['ours']:.0e} {apart['torch']:.0e}"
        f"   {peak['ours'] / 2**20:5.0f} {peak['torch'] / 2**20:5.0f}   {alone['ours']:6.2f} {alone['torch']:6.2f}",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", default=["1x2", "1x4", "2x2"], metavar="REPLICASxDEGREE")
    parser.add_argument("--micro-batches", type=int, default=4, help="of each replica in a step")
    parser.add_argument("--steps", type=int, default=10, help=f"of a run; the first {WARM_STEPS} do not count")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--reshard", action="store_true", help="torch: divide weights again after each use")
    parser.add_argument("--zero", action="store_true", help="ours: replicas shard the optimizer's states (ZeRO 1)")
    parser.add_argument("--sharding", choices=SHARDINGS, default="tensor", help="what the devices of a group divide")
    parser.add_argument("--captured", action="store_true", help="ours: a capture of torch's model")
    parser.add_argument("--json", action="store_true", help="one object a layout instead of the table")
    args = parser.parse_args()
    if args.sharding != "tensor":
        args.layouts = [layout for layout in args.layouts if layout.startswith("1x")]
    torch.set_num_threads(1)
    if not args.json:
        print("       step, s           torch / ours           cpu     loss apart    peak MiB      alone, s")
        print("layout   ours  torch   median  least   most   ratio    ours torch    ours torch     ours  torch")
    for layout in args.layouts:
        row = layout_row(layout, args)
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            show(row)


if __name__ == "__main__":
    main()
