"""Tokens of each expert, counted by two ranks, are those of transformers' own router."""

from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.capturing.capture import capture_config
from tests.support.models.architectures import ARCHITECTURES
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed


def test_loads_of_two_stages_are_those_of_transformers(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model("mixtral", **ARCHITECTURES["mixtral"])
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    config.save_pretrained(tmp_path / "model")
    workload = capture_config(tmp_path / "model", micro_batch=2, global_batch=8, seq_len=16)
    plan = chain_plan([4], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    settings = TrainConfig(steps=1)
    begun = StageModel(workload, 0, len(workload.graph.ops), settings.seed).named_weights()
    assert model.load_state_dict(begun, strict=False).unexpected_keys == []
    train(plan, settings, tmp_path / "run")
    found, batches, expected = Run(tmp_path / "run").read_all().expert_loads(), open_batches(settings, workload), {}
    for m in range(workload.num_micro_batches):
        inputs, *_ = batches.draw(0, m)
        routed = model(input_ids=inputs, output_router_logits=True, labels=inputs).router_logits
        for layer, logits in enumerate(routed):
            taken = logits.topk(config.num_experts_per_tok, dim=-1).indices.flatten()
            counts = torch.bincount(taken, minlength=config.num_local_experts)
            expected[layer] = expected.get(layer, 0) + counts
    assert list(found.values()) == [counts.tolist() for counts in expected.values()]
    assert sum(found["model.layers.0.mlp"]) == 8 * 16 * config.num_experts_per_tok
    shown = CliRunner().invoke(app, ["runs", "show", str(tmp_path / "run")])
    assert "Tokens of experts" in shown.output
    assert "model.layers.1.mlp" in shown.output
