"""Real ranks fine-tune a model as transformers, PEFT and torch.optim do in one process: all of it, adapters, or layers
behind frozen ones.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F  # noqa: N812

from hetplanner.elastic.coordinator.decisions import Ledger
from hetplanner.elastic.protocol.identity import Version
from hetplanner.plan.files.checkpoints import checkpoint_folder, rank_file
from hetplanner.plan.files.stage_checkpoints import FOLDER
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.exporting import export_model
from hetplanner.runs.run import Run
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.data import open_batches
from hetplanner.swarm.initial_state import with_initial_weights
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.peer.state import load_checkpoint, state_sizes
from hetplanner.weights.adapters import adapter_parts, adapters_of
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.huggingface import workload_from_config
from tests.support.models.model_folders import loaded, model_folder, plain_losses
from tests.support.plans.factories import chain_plan
from tests.support.swarms.swarm_runs import events_of, small_spec, start_swarm
from tests.support.swarms.swarm_runs import losses_of as losses_by_step
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS = 30
SETTINGS: dict[str, Any] = {"steps": STEPS, "learning_rate": 1e-3, "warmup_steps": 2, "checkpoint_every": 15}
WAYS: dict[str, tuple[str, FineTuning | str | None]] = {
    "all of gpt2": ("gpt2", None),
    "adapters of gpt2": ("gpt2", FineTuning(adapters=Adapters(rank=4, alpha=8.0, targets=("c_attn", "c_proj")))),
    "adapters of llama": (
        "llama",
        FineTuning(adapters=Adapters(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "down_proj"))),
    ),
    "adapters of captured qwen2": ("qwen2", "4:8:q_proj,v_proj,down_proj"),
    "gpt2 behind a frozen stage": ("gpt2", FineTuning(frozen_layers=3)),
}
"""Architecture and what is trained; of a captured model adapters in words."""


@dataclass
class Tuned:
    """A run of 2 x 2 ranks, and what it began with."""

    kind: str
    source: Path
    plan: Plan
    run_dir: Path


@pytest.fixture(scope="module", params=WAYS)
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    kind, tuning = WAYS[request.param]
    folder = tmp_path_factory.mktemp("tuned")
    depth = {"n_layer": 4} if kind == "gpt2" else {}
    source = model_folder(folder / "source", kind, changes={"vocab_size": 256} | depth)
    sizes = {"micro_batch": 2, "global_batch": 8, "seq_len": 16}
    if isinstance(tuning, str):
        workload = capture_config(source, adapters=tuning, **sizes)
    else:
        workload = workload_from_config(source, dtype="float32", **sizes).replace(fine_tuning=tuning)
    plan = chain_plan([2, 2], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    train(plan, TrainConfig(init_from=str(source), **SETTINGS), folder / "run")
    return Tuned(kind, source, plan, folder / "run")


def plain_model(tuned: Tuned) -> Any:
    """The same model by transformers, with PEFT's adapters or with frozen layers."""
    workload, model = tuned.plan.problem.workload, loaded(tuned.source, tuned.kind).train()
    tuning, adapters = workload.fine_tuning, adapters_of(workload)
    if tuning is not None and adapters is None:
        transformer = model.transformer
        for part in (transformer.wte, transformer.wpe, *transformer.h[: tuning.frozen_layers]):
            part.requires_grad_(False)
    if adapters is not None:
        targets = list(adapters.targets)
        wanted = peft.LoraConfig(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=targets)
        model = peft.get_peft_model(model, wanted)
        begun = StageModel(workload, 0, len(workload.graph.ops), SETTINGS.get("seed", 0)).named_weights()
        theirs = dict(model.named_parameters())
        with torch.no_grad():
            for name, (part,) in adapter_parts(workload).items():
                theirs[part.name.replace(".weight", ".default.weight")].copy_(begun[name])
    return model


def expected_losses(tuned: Tuned) -> list[float]:
    return plain_losses(plain_model(tuned), tuned.plan.problem.workload, TrainConfig(**SETTINGS))


def losses_of(run_dir: Path) -> list[float]:
    return [loss for _, loss in Run(run_dir).read_all().losses()]


def test_losses_are_those_of_one_plain_process(tuned: Tuned) -> None:
    expected, losses = expected_losses(tuned), losses_of(tuned.run_dir)
    assert expected[-1] < expected[0]
    assert losses == pytest.approx(expected, rel=1e-5)


def test_frozen_weights_stay_and_have_no_state(tuned: Tuned) -> None:
    workload = tuned.plan.problem.workload
    end, begun = load_model(tuned.run_dir), loaded(tuned.source, tuned.kind)
    rank = tuned.plan.rank_at(1, 0)
    with safe_open(checkpoint_folder(tuned.run_dir, STEPS) / rank_file(rank), framework="pt") as file:
        assert file.get_slice("stage.1.mean").get_shape() == file.get_slice("stage.1.weights").get_shape()
    if workload.graph.num_trained == workload.graph.num_params:
        return
    name = "embedding.tokens.weight" if workload.program is None else "model.embed_tokens.weight"
    assert torch.equal(end.named_weights()[name], begun.get_input_embeddings().weight), "frozen"
    assert end.flat.numel()
    assert end.frozen.numel()


def logits_of(model: Any, tuned: Tuned) -> torch.Tensor:
    inputs, *_ = open_batches(TrainConfig(), tuned.plan.problem.workload).draw(0, 0)
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=inputs).logits
    return logits


def test_what_is_exported_loads_with_from_pretrained_and_gives_the_same_logits(tuned: Tuned, tmp_path: Path) -> None:
    workload, run = tuned.plan.problem.workload, Run(tuned.run_dir)
    inputs, labels, _ = open_batches(TrainConfig(), workload).draw(0, 0)
    with torch.no_grad():
        loss = load_model(tuned.run_dir).forward(None, (inputs, labels))
    assert export_model(run, tmp_path / "out") == STEPS
    if (adapters := adapters_of(workload)) is None:
        logits = logits_of(loaded(tmp_path / "out", tuned.kind), tuned)
    else:
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
        model = peft.PeftModel.from_pretrained(loaded(tuned.source, tuned.kind), tmp_path / "out")
        logits = logits_of(model, tuned)
        assert export_model(run, tmp_path / "whole", merge=True) == STEPS
        merged = logits_of(loaded(tmp_path / "whole", tuned.kind), tuned)
        assert torch.allclose(merged, logits, rtol=1e-4, atol=1e-5)
        assert torch.allclose(merged, logits_of(model.merge_and_unload(), tuned), rtol=1e-5, atol=1e-6)
        assert f"rank {adapters.rank}" in (tmp_path / "out/README.md").read_text()
        assert not torch.allclose(logits, logits_of(loaded(tuned.source, tuned.kind), tuned)), "it has learnt"
    assert float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")) == pytest.approx(
        float(loss), rel=1e-6
    )


def test_adapters_of_a_checkpoint_are_exported_and_trained_on(tuned: Tuned, tmp_path: Path) -> None:
    workload = tuned.plan.problem.workload
    if adapters_of(workload) is None:
        return
    assert export_model(Run(tuned.run_dir), tmp_path / "half", 15) == 15
    begun = {"init_from": str(tuned.source), "adapter": str(tmp_path / "half")}
    run = train(tuned.plan, TrainConfig(**begun, **SETTINGS | {"steps": 1}), tmp_path / "run")
    theirs = peft.PeftModel.from_pretrained(loaded(tuned.source, tuned.kind), tmp_path / "half")
    config, total = TrainConfig(**SETTINGS), 0.0
    for m in range(workload.num_micro_batches):
        inputs, labels, _ = open_batches(config, workload).draw(0, m)
        with torch.no_grad():
            logits = theirs(input_ids=inputs).logits
        total += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
    assert run.losses() == pytest.approx([total / workload.tokens_per_step], rel=1e-5)


def test_a_swarm_trains_adapters_of_a_folder_as_one_plain_process_does(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "source", "gpt2", changes={"vocab_size": 256, "n_layer": 4})
    workload = workload_from_config(source, dtype="float32", micro_batch=2, global_batch=8, seq_len=16)
    workload = workload.replace(fine_tuning=WAYS["adapters of gpt2"][1])
    spec = small_spec(steps=4, micro_batches=4, stages=2, checkpoint_steps=2, silence_s=20.0, answer_s=30.0)
    config = TrainConfig(init_from=str(source), **SETTINGS | {"steps": 4, "checkpoint_every": None})
    middle = workload.boundaries[len(workload.boundaries) // 2]
    spec = with_initial_weights(spec.replace(workload=workload, first_ops=(0, middle), train=config), Ledger())
    run_dir = tmp_path / "run"
    with start_swarm(spec, run_dir, peers=2) as rehearsal:
        for name, sharding in (("peer-2", "zero3"), ("peer-3", "zero2")):
            rehearsal.start_peer(name, 40.0, degree=2, sharding=sharding)
        rehearsal.wait(240)
    plan = chain_plan([2, 2], [middle], workload=workload)
    expected = expected_losses(Tuned("gpt2", source, plan, run_dir))[:4]
    assert losses_by_step(run_dir) == pytest.approx(expected, rel=1e-5)
    digests = events_of(run_dir, "digests")
    assert [stage["different"] for stage in digests] == [1, 1], "replicas are equal"
    end = load_model(run_dir)
    assert torch.equal(end.named_weights()["embedding.tokens.weight"], loaded(source, "gpt2").transformer.wte.weight)
    engine = StageEngine(spec, torch.device("cpu"))
    for stage in range(2):
        engine.build(stage)
        saved = load_checkpoint(run_dir / FOLDER, stage, Version(0, 4), state_sizes(spec, stage))
        engine.load(saved)
        held = engine.model.named_weights()
        assert all(torch.equal(held[name], end.named_weights()[name]) for name in held)


def test_resumed_after_half_it_has_the_same_weights_to_the_bit(tuned: Tuned, tmp_path: Path) -> None:
    if adapters_of(tuned.plan.problem.workload) is None:
        return
    half = tmp_path / "half"
    train(tuned.plan, TrainConfig(init_from=str(tuned.source), **SETTINGS | {"steps": 15}), half)
    more = TrainConfig(init_from=str(tuned.source / "gone"), resume=str(half), **SETTINGS)
    train(tuned.plan, more, tmp_path / "more")
    one, other = load_model(tuned.run_dir).named_weights(), load_model(tmp_path / "more").named_weights()
    assert all(torch.equal(one[name], other[name]) for name in one)
