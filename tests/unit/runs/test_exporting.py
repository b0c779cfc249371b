"""Models by formula that began at random: their folder has a config of our own; transformers computes the same."""

from pathlib import Path

import pytest
import torch
import transformers

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.exporting import export_model
from hetplanner.runs.run import Run
from hetplanner.runtime.checkpoint.save import MODEL_FILE, write_info
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.model.build import StageModel
from hetplanner.weights.config import config_of
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, image_workload, tiny_workload

GPT2 = tiny_workload().transformer
LLAMA = GPT2.replace(family="llama", kv_heads=max(1, GPT2.heads // 2), norm_eps=1e-6, rope_theta=5e3)
FAMILIES = {
    "gpt2": GPT2,
    "gpt2 untied": GPT2.replace(tie_embeddings=False),
    "llama": LLAMA,
    "qwen2": LLAMA.replace(qkv_bias=True),
}


def finished_run(folder: Path, workload: Workload) -> tuple[Run, StageModel]:
    """A run directory as the runtime leaves it, without telemetry."""
    folder.mkdir()
    save_plan(chain_plan([4], [4], workload=workload), folder / "plan.json")
    save_config(TrainConfig(steps=3), folder / "run.json")
    model = StageModel(workload, 0, len(workload.graph.ops), seed=5)
    model.flat.add_(0.05 * torch.randn(model.flat.shape, generator=torch.Generator().manual_seed(1)))
    save_tensors(model.saved_tensors(), folder / MODEL_FILE, {"format": "pt"})
    write_info(workload, [3, 3], folder)
    return Run(folder, "r", folder), model


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_every_tensor_and_computes_the_same(family: str, tmp_path: Path) -> None:
    workload = tiny_workload(global_batch=8).replace(transformer=FAMILIES[family])
    run, model = finished_run(tmp_path / "run", workload)
    assert export_model(run, tmp_path / "out") == 3
    assert workload_from_config(tmp_path / "out").transformer.replace(name="x") == FAMILIES[family].replace(name="x")
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(0, workload.transformer.vocab, (2, workload.seq_len))
    with torch.no_grad():
        expected, found = model.stage_ops.logits(tokens), theirs.eval()(input_ids=tokens).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_what_transformers_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    shared = tiny_workload(global_batch=8)
    shared = shared.replace(transformer=shared.transformer.replace(shared_layers=2))
    run, _ = finished_run(tmp_path / "run", shared)
    with pytest.raises(InvalidInput, match=r"has shared layers, which no model of transformers has"):
        export_model(run, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"was captured from code, so no config\.json is known"):
        config_of(image_workload())
    (tmp_path / "run" / MODEL_FILE).unlink()
    with pytest.raises(InvalidInput, match="has no model yet"):
        export_model(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
