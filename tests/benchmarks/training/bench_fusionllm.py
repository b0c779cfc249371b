"""FusionLLM's setting: what compression on slow links wins in seconds, and what it costs in loss.

    python tests/benchmarks/training/bench_fusionllm.py losses --model gpt|resnet [--steps N] [--seeds 3]
        [--only dense,int8]
    python tests/benchmarks/training/bench_fusionllm.py check --model gpt|resnet
    python tests/benchmarks/training/bench_fusionllm.py times --model gpt|resnet [--steps 12]
    python tests/benchmarks/training/bench_fusionllm.py simulated --model gpt|resnet
    python tests/benchmarks/training/bench_fusionllm.py report [--plots FOLDER]

Three stages in a row on three CPU ranks; of the two links between them one is four times as slow as the other. A
small GPT reads bytes of Python's library, a narrow ResNet-101 noisy digits (each picture at most once: a thousand
clean ones are learned by heart, and shares of a loss of nothing mean nothing).

`losses` trains without emulation, as loss over steps does not depend on the links' speed: one process passes every
micro-batch through the three stages and the plan's codecs, which `check` compares with three real ranks. `times`
measures real ranks on emulated links: median seconds of a step (on a machine that does nothing else); `simulated`
is what the simulator says of the same plans. Loss over seconds is steps times either. Results are
added to a JSON file after every run, and what is there already is not run again.

"Final loss" is the mean training loss of the last tenth of the steps; runs of one seed see the same samples in the
same order, so that they can be compared in pairs. "Equal bytes" are those of all boundary messages of a step.

Source of the setting: Tang et al. 2024, arXiv 2410.12707, section 7 (8 Mbit/s to 10 Gbit/s; 1.45 to 9.39 times).
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.adatopk import adatopk_reductions
from hetplanner.codecs.spec import NO_CODEC, Codec, most_kept, topk_of
from hetplanner.codecs.torch_codecs import AtPositions, TopK
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import LinkCodec, Plan, Role
from hetplanner.plan.problem import Constraints
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.choices.codec import choose_codecs
from hetplanner.runtime.model.chunk import build_chunks
from hetplanner.runtime.model.precision import boundary_codec
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.schema import checked
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.presets import preset
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.benchmarks.training.noisy_digits import write_noisy_digits
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import start_ranks

RESULTS = Path(__file__).with_name("fusionllm.json")
SLOW_MBIT = 8.0
SWEEP_MBIT = (8.0, 40.0, 200.0, 1000.0, 10_000.0)
FASTER = 4.0
"""The other link's bandwidth over the slow one's."""
LATENCY = "2 ms"
VALIDATION_SAMPLES = 512
ROLES: tuple[Role, Role] = ("activation", "gradient")


# -- models and links ---------------------------------------------------------------------------------


def gpt() -> Workload:
    """Three layers of 64; a micro-batch's boundary is 128 KiB."""
    config = TransformerConfig(
        name="small-gpt", vocab=256, max_seq_len=64, hidden=64, layers=3, heads=4, ffn=256, tie_embeddings=False
    )
    return Workload(name="gpt", transformer=config, global_batch=8, micro_batch=8, seq_len=64, dtype="float32")


def resnet() -> Workload:
    """101 narrow layers, on pictures of digits."""
    return preset("resnet101-narrow", global_batch=32)


MODELS: dict[str, Callable[[], Workload]] = {"gpt": gpt, "resnet": resnet}
LEARNING_RATE = 2e-3
STEPS = {"gpt": 1000, "resnet": 2000}
NOISE = 180.0
CLIP_NORM = 1.0
SLOW_LINK = {"gpt": 1, "resnet": 0}
"""Which of the two boundaries crosses the slow link: where a message is largest."""


def cuts_of(workload: Workload) -> list[int]:
    """Two cuts where the fewest elements cross: a GPT in thirds, a ResNet behind its first part and in its third."""
    num = len(workload.graph.ops)
    near = num // 40
    cuts = []
    for share in (1 / 3, 0.55) if workload.transformer else (0.06, 0.6):
        i = round(share * num)
        cuts.append(min(range(i - near, i + near + 1), key=lambda k: workload.boundary_elements[k]))
    return cuts


def links(slow_mbit: float, slow: int) -> Cluster:
    """Three sites in a row."""
    fast_mbit = min(FASTER * slow_mbit, 10_000.0)

    def bandwidth(a: int, b: int) -> str:
        return f"{slow_mbit if slow in (min(a, b), max(a, b) - 1) and a != b else fast_mbit} Mbit/s"

    sites = ["a", "b", "c"]
    data = {
        "name": "three in a row",
        "sites": [{"name": s, "latitude": 0, "longitude": 10 * i} for i, s in enumerate(sites)],
        "hosts": [{"id": f"h{s}", "site": s} for s in sites],
        "devices": [{"id": f"d{s}", "kind": "CPU generic", "host": f"h{s}"} for s in sites],
        "site_links": [
            {"from": s, "to": t, "latency": LATENCY, "bandwidth": bandwidth(i, j)}
            for i, s in enumerate(sites)
            for j, t in enumerate(sites)
        ],
    }
    return checked(Cluster, data, "links", from_file=True)


def dense_plan(workload: Workload, slow_mbit: float, slow: int) -> Plan:
    """Everything as float32."""
    m = workload.num_micro_batches
    return chain_plan([m], cuts_of(workload), cluster=links(slow_mbit, slow), workload=workload)


# -- plans ----------------------------------------------------------------------------------------------


def with_codecs(plan: Plan, codecs: list[Codec]) -> Plan:
    """A codec for each boundary, both ways."""
    rules = [
        LinkCodec(from_device=a, to_device=b, role=role, codec=codec)
        for s, codec in enumerate(codecs)
        for a, b, role in ((plan.ranks[s], plan.ranks[s + 1], ROLES[0]), (plan.ranks[s + 1], plan.ranks[s], ROLES[1]))
        if codec != NO_CODEC
    ]
    return plan.replace(link_codecs=tuple(rules))


def step_bytes(plan: Plan) -> int:
    """Bytes of all boundary messages in a step."""
    pairs = [(s, s, s + 1, ROLES[0]) for s in (0, 1)] + [(s, s + 1, s, ROLES[1]) for s in (0, 1)]
    return plan.problem.workload.num_micro_batches * sum(plan.boundary_bytes(*p) for p in pairs)


def topk_plan(plan: Plan, reductions: list[float]) -> Plan:
    """Top-k that carries so many times fewer bytes on each boundary, both directions together."""
    codecs = []
    for s, reduction in enumerate(reductions):
        n = plan.boundary_elements(s)
        total = 8 * n / reduction
        kept = max(
            (k for k in (int(total / c) for c in (4, 6)) if _bytes_both_ways(n, k) <= total),
            default=max(1, most_kept(n, total / 2)),
        )
        while kept < n and _bytes_both_ways(n, kept + n // 500) <= total:
            kept += n // 500
        codecs.append(NO_CODEC if reduction <= 1 or kept >= n else topk_of(n, kept))
    return with_codecs(plan, codecs)


def _bytes_both_ways(num: int, kept: int) -> int:
    codec = topk_of(num, max(1, kept))
    return codec.wire_bytes(num, 4) + codec.wire_bytes(num, 4, positions_known=True)


def adatopk_plan(plan: Plan, total: float) -> Plan:
    """FusionLLM's ratios, the slowest link's such that a step has `total` bytes."""
    cluster = plan.problem.cluster
    dense_s = [
        4 * plan.boundary_elements(s) / cluster.bandwidth_bytes_per_s_DD[s, s + 1] for s in range(len(plan.stages) - 1)
    ]
    low, high = 1.0, 1000.0
    for _ in range(30):
        ratio = (low * high) ** 0.5
        found = topk_plan(plan, list(adatopk_reductions(dense_s, ratio)))
        low, high = (ratio, high) if step_bytes(found) > total else (low, ratio)
    return found


def variants(dense: Plan) -> dict[str, Plan]:
    """The plans compared, by name; `plan` is the planner's own choice of int8 or int4 for each link."""
    found = {"dense": dense}
    problem = dense.problem.replace(constraints=Constraints(codecs=("none", "int8", "int4")))
    found["plan"] = choose_codecs(dense.replace(problem=problem), CostModel.of(problem))
    for name in ("int4", "int8"):
        found[name] = with_codecs(dense, [Codec(name=name)] * 2)
        total = step_bytes(found[name])
        found[f"topk at {name}'s bytes"] = topk_plan(dense, [step_bytes(dense) / total] * 2)
        found[f"adatopk at {name}'s bytes"] = adatopk_plan(dense, total)
    return found


def said(plan: Plan) -> list[str]:
    """Codec of each boundary."""
    return [str(plan.codec_between(s, s + 1, "activation")) for s in (0, 1)]


# -- loss over steps ------------------------------------------------------------------------------------


class InOneProcess:
    """The stages of a chain, one after the other, with the codecs between; as the executor does it."""

    def __init__(self, plan: Plan, config: TrainConfig) -> None:
        self.plan, self.config = plan, config
        self.chunks = [build_chunks(plan, rank, config)[0] for rank in range(len(plan.ranks))]
        self.positions: dict[tuple[int, int, str], torch.Tensor] = {}

    def step(self, batches: Batches, step: int) -> float:
        """One optimiser step; the mean loss."""
        workload, total = self.plan.problem.workload, 0.0
        for m in range(workload.num_micro_batches):
            batch, x, key = batches.draw(step, m), None, RngKey(self.config.seed, step, m)
            for s, chunk in enumerate(self.chunks):
                x = chunk.runner.forward(m, x, batch if chunk.model.needs_batch else None, key)
                if s + 1 < len(self.chunks):
                    x = self.travel(x, s, m, "activation")
            total += float(x)
            gradient = None
            for s, chunk in reversed(list(enumerate(self.chunks))):
                gradient = chunk.runner.backward(m, gradient)
                if s:
                    gradient = self.travel(gradient, s - 1, m, "gradient")
        gradients = [chunk.model.flat_grad.mul_(1.0 / workload.tokens_per_step) for chunk in self.chunks]
        norm = float(sum(g.double().square().sum() for g in gradients)) ** 0.5
        for chunk in self.chunks:
            if norm > CLIP_NORM:
                chunk.model.flat_grad.mul_(CLIP_NORM / (norm + 1e-6))
            chunk.optimizer.step(self.config.learning_rate_at(step))
            chunk.model.flat_grad.zero_()
        return total / workload.tokens_per_step

    @torch.no_grad()
    def validation_loss(self, batches: Batches) -> float:
        """Mean loss of held-out samples, through the codecs too."""
        workload, total = self.plan.problem.workload, 0.0
        num = VALIDATION_SAMPLES // workload.global_batch
        for t in range(num):
            for m in range(workload.num_micro_batches):
                batch, x = batches.draw(t, m, "validation"), None
                for s, chunk in enumerate(self.chunks):
                    x = chunk.runner.evaluate(x, batch if chunk.model.needs_batch else None)
                    x = self.travel(x, s, m, "activation") if s + 1 < len(self.chunks) else x
                total += float(x)
        return total / (num * workload.tokens_per_step)

    def travel(self, x: torch.Tensor, stage: int, m: int, role: Role) -> torch.Tensor:
        """What the other side gets."""
        a, b = (stage, stage + 1) if role == "activation" else (stage + 1, stage)
        spec, dtype = self.plan.codec_between(a, b, role), self.plan.problem.workload.dtype
        data = torch.empty(self.plan.boundary_bytes(stage, a, b, role), dtype=torch.uint8)
        sender, receiver = boundary_codec(spec, dtype), boundary_codec(spec, dtype)
        if isinstance(sender, TopK) and role == "gradient":
            sender = AtPositions(self.positions.pop((stage, m, "receiver")))
            receiver = AtPositions(self.positions.pop((stage, m, "sender")))
        sender.encode(x, data)
        y = receiver.decode(data, x.numel())
        if isinstance(sender, TopK) and isinstance(receiver, TopK):
            self.positions[stage, m, "sender"] = sender.position_M
            self.positions[stage, m, "receiver"] = receiver.position_M
        return y


@contextmanager
def data_of(model: str) -> Iterator[str | None]:
    """What a model reads: text of Python's library, or a folder of pictures that is made here and removed."""
    if model == "gpt":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        # A tenth is for validation; the rest suffices for every step's pictures to be new ones.
        count = int(1.15 * STEPS[model] * MODELS[model]().global_batch)
        yield str(write_noisy_digits(Path(folder) / "digits", count, NOISE))


def config_of(steps: int, seed: int, data: str | None, **changes: Any) -> TrainConfig:
    """Settings of a run."""
    fields = {
        "learning_rate": LEARNING_RATE,
        "warmup_steps": 50,
        "lr_schedule": "cosine",
        "clip_norm": CLIP_NORM,
    }
    return TrainConfig(steps=steps, seed=seed, data=data, **(fields | changes))


def run_losses(model: str, steps: int, seeds: int, only: list[str] | None, results: Path, data: str | None) -> None:
    """Trains every variant with every seed that the results lack."""
    torch.set_num_threads(1)
    dense = dense_plan(MODELS[model](), SLOW_MBIT, SLOW_LINK[model])
    plans = {name: plan for name, plan in variants(dense).items() if only is None or name in only}
    for seed in range(seeds):
        for name, plan in plans.items():
            key = f"{model}|{name}|{seed}|{steps}"
            if key in load(results)["losses"]:
                continue
            began = time.process_time()
            config = config_of(steps, seed, data)
            trainer, batches = InOneProcess(plan, config), open_batches(config, plan.problem.workload)
            losses = [trainer.step(batches, t) for t in range(steps)]
            tenth = max(1, steps // 10)
            entry = {
                "codecs": said(plan), "bytes_per_step": step_bytes(plan),
                "final_loss": statistics.mean(losses[-tenth:]),
                "validation_loss": trainer.validation_loss(batches),
                "curve": [round(statistics.mean(losses[i : i + 20]), 5) for i in range(0, steps, 20)],
                "cpu_s": round(time.process_time() - began, 1),
            }  # fmt: skip
            save(results, "losses", key, entry)
            print(key, said(plan), f"{entry['final_loss']:.4f}", f"{entry['cpu_s']} s", flush=True)


def check(model: str, data: str | None, only: list[str] | None, steps: int = 2) -> float:
    """Greatest difference of a loss between three real ranks and one process, over the variants.

    Two steps only: batch norm over eight samples, and top-k's choice, make rounding grow fast.
    """
    worst = 0.0
    plans = variants(dense_plan(MODELS[model](), SLOW_MBIT, SLOW_LINK[model]))
    for plan in (plan for name, plan in plans.items() if only is None or name in only):
        config = config_of(steps, 0, data)
        trainer, batches = InOneProcess(plan, config), open_batches(config, plan.problem.workload)
        ours = [trainer.step(batches, t) for t in range(steps)]
        with tempfile.TemporaryDirectory() as folder:
            ranks = start_ranks(plan, config, Path(folder) / "run")
            ranks.wait()
            worst = max(worst, *(abs(a - b) for a, b in zip(ours, ranks.losses(), strict=True)))
    return worst


# -- seconds a step -------------------------------------------------------------------------------------


def run_times(model: str, steps: int, only: list[str] | None, results: Path, data: str | None) -> None:
    """Measures dense, int8, int4 and the planner's choice on all links, the other variants on the slowest."""
    workload = MODELS[model]()
    for slow_mbit in SWEEP_MBIT:
        for name, plan in variants(dense_plan(workload, slow_mbit, SLOW_LINK[model])).items():
            key = f"{model}|{name}|{slow_mbit:g}"
            unwanted = (only and name not in only) or (slow_mbit > SLOW_MBIT and " at " in name)
            if unwanted or key in load(results)["times"]:
                continue
            with tempfile.TemporaryDirectory() as folder:
                ranks = start_ranks(plan, config_of(steps, 0, data, emulate_links=True), Path(folder) / "run")
                ranks.wait()
                ends = [line["end_s"] for line in ranks.lines(0, "step")]
                predicted = json.loads((Path(folder) / "run" / "prediction.json").read_text())["step_s"]
                late = sum(line["late_s"] for line in ranks.all_lines("step"))
            step_s = statistics.median(np.diff(ends)[1:])
            entry = {"codecs": said(plan), "step_s": step_s, "predicted_s": predicted, "late_s": round(late, 3)}
            save(results, "times", key, entry)
            print(key, said(plan), f"{step_s * 1e3:.0f} ms (predicted {predicted * 1e3:.0f})", flush=True)


def run_simulated(model: str, results: Path) -> None:
    """Seconds of every variant's step on all links as the simulator has them, with the catalog's speed of a CPU."""
    workload = MODELS[model]()
    for slow_mbit in SWEEP_MBIT:
        for name, plan in variants(dense_plan(workload, slow_mbit, SLOW_LINK[model])).items():
            entry = {"codecs": said(plan), "step_s": simulate_step_s(plan)}
            save(results, "simulated", f"{model}|{name}|{slow_mbit:g}", entry)


# -- results --------------------------------------------------------------------------------------------


def load(path: Path) -> dict[str, dict[str, Any]]:
    """What was measured so far."""
    empty: dict[str, dict[str, Any]] = {"losses": {}, "times": {}, "simulated": {}, "check": {}}
    return empty | (json.loads(path.read_text()) if path.exists() else {})


def save(path: Path, part: str, key: str, entry: Any) -> None:
    """Adds one measurement (one process a file at a time)."""
    found = load(path)
    found[part][key] = entry
    path.write_text(json.dumps(found, indent=1) + "\n")


def against_dense(found: dict[str, Any], model: str) -> dict[str, list[float]]:
    """By variant: final loss over that of dense, one for each seed."""
    runs = {tuple(key.split("|")): entry["final_loss"] for key, entry in found["losses"].items()}
    shares: dict[str, list[float]] = {}
    for (m, name, seed, steps), loss in runs.items():
        dense = runs.get((m, "dense", seed, steps))
        if m == model and dense:
            shares.setdefault(name, []).append(loss / dense)
    return shares


def step_seconds(found: dict[str, Any], model: str, name: str, slow_mbit: float) -> tuple[float, str] | None:
    """Seconds of a variant's step, measured if they were, else simulated."""
    for part in ("times", "simulated"):
        entry = found[part].get(f"{model}|{name}|{slow_mbit:g}")
        if entry:
            return entry["step_s"], "measured" if part == "times" else "simulated"
    return None


def speed_up(found: dict[str, Any], model: str, name: str, slow_mbit: float) -> str:
    """Step rate over that of dense, both from the same source."""
    said = []
    for part, word in (("times", "measured"), ("simulated", "simulated")):
        dense, other = (found[part].get(f"{model}|{n}|{slow_mbit:g}") for n in ("dense", name))
        if dense and other:
            said.append(f"{dense['step_s'] / other['step_s']:.2f} x {word}")
    return ", ".join(said) or "-"


def report(results: Path) -> None:
    """Prints the tables."""
    found = load(results)
    for model in MODELS:
        print(f"\n{model}: one process against three ranks, worst difference {found['check'].get(model, 'not run')}")
        for name, shares in against_dense(found, model).items():
            entry = next(e for key, e in found["losses"].items() if key.startswith(f"{model}|{name}|"))
            percent = ", ".join(f"{100 * (s - 1):+.2f}" for s in shares)
            print(f"  {name:24} {'/'.join(entry['codecs']):22} {entry['bytes_per_step'] / 1e3:6.0f} kB a step,"
                  f" loss against dense {percent} %, step rate {speed_up(found, model, name, SLOW_MBIT)}")  # fmt: skip
        for mbit in SWEEP_MBIT:
            for name in ("plan", "int8", "int4"):
                print(f"  {mbit:6g} Mbit/s {name:5} {speed_up(found, model, name, mbit)}")


def plot(results: Path, folder: Path) -> None:
    """Writes loss over steps, bytes and seconds of every model as one HTML page each."""
    import holoviews as hv

    hv.extension("bokeh")
    found = load(results)
    for model in MODELS:
        curves: dict[str, list[list[float]]] = {}
        for key, entry in found["losses"].items():
            if key.startswith(f"{model}|"):
                curves.setdefault(key.split("|")[1], []).append(entry["curve"])
        if not curves:
            continue
        panels: dict[str, list[hv.Curve]] = {"step": [], "MB between stages": []}
        for name, runs in curves.items():
            loss = np.mean(runs, axis=0)
            steps = 20 * np.arange(1, len(loss) + 1)
            entry = next(e for key, e in found["losses"].items() if key.startswith(f"{model}|{name}|"))
            seconds = step_seconds(found, model, name, SLOW_MBIT)
            scales = {"step": 1.0, "MB between stages": entry["bytes_per_step"] / 1e6}
            if seconds:
                scales[f"{seconds[1]} second"] = seconds[0]
            for axis, scale in scales.items():
                panels.setdefault(axis, []).append(hv.Curve((steps * scale, loss), axis, "loss", label=name))
        shown = [
            hv.Overlay(drawn).opts(width=520, height=380, title=f"{model}: loss by {axis}", legend_position="right")
            for axis, drawn in panels.items()
            if drawn
        ]
        path = folder / f"fusionllm_{model}.html"
        hv.save(hv.Layout(shown).cols(1).opts(shared_axes=False), path, resources="inline")


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["losses", "check", "times", "simulated", "report"])
    parser.add_argument("--model", choices=list(MODELS), default="gpt")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="variants, separated by commas")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plots", type=Path, help="folder for HTML pages")
    a = parser.parse_args()
    only = a.only.split(",") if a.only else None
    if a.part == "losses":
        with data_of(a.model) as data:
            run_losses(a.model, a.steps or STEPS[a.model], a.seeds, only, a.results, data)
    elif a.part == "check":
        with data_of(a.model) as data:
            worst = check(a.model, data, only)
        save(a.results, "check", a.model, worst)
        print(f"{a.model}: worst difference {worst:.2e}")
    elif a.part == "times":
        with data_of(a.model) as data:
            run_times(a.model, a.steps or 12, only, a.results, data)
    elif a.part == "simulated":
        run_simulated(a.model, a.results)
    else:
        report(a.results)
        if a.plots:
            a.plots.mkdir(parents=True, exist_ok=True)
            plot(a.results, a.plots)


if __name__ == "__main__":
    main()
