"""Folders of adapters that a plan does not fit, one line each; and what adapters do to a stage."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.schema import checked
from hetplanner.weights.adapters import ADAPTER_CONFIG, ADAPTER_FILE, adapter_config, adapter_parts, check_adapter
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.workload import Workload
from tests.support.models import model_folders
from tests.support.plans.factories import tiny_workload

ADAPTERS = Adapters(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))


def tuned(folder: Path, adapters: Adapters | None = ADAPTERS) -> Workload:
    workload = workload_from_config(folder, micro_batch=2, seq_len=16, dtype="float32")
    return workload.replace(fine_tuning=FineTuning(adapters=adapters) if adapters else None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folders.model_folder(tmp_path / "model", "llama")


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    workload, path = tuned(model), tmp_path / "adapter"
    path.mkdir()
    parts = [part for (part,) in adapter_parts(workload).values()]
    save_file({part.name: torch.zeros(part.shape) for part in parts}, path / ADAPTER_FILE)
    (path / ADAPTER_CONFIG).write_text(json.dumps(adapter_config(workload, "models/llama")))
    return path


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config | changes))


def refused(folder: Path, workload: Workload, match: str) -> None:
    with pytest.raises(InvalidInput, match=match) as caught:
        check_adapter(str(folder), workload)
    assert "\n" not in str(caught.value)


def test_a_folder_of_the_plan_s_adapters_fits(folder: Path, model: Path) -> None:
    found = check_adapter(str(folder), tuned(model))
    assert found.parts.keys() == adapter_parts(tuned(model)).keys()
    change_config(folder, rank_pattern={}, use_dora=False, layers_to_transform=None, revision=None)
    check_adapter(str(folder), tuned(model))


def test_an_adapter_of_another_model_is_refused(folder: Path, model: Path, tmp_path: Path) -> None:
    deeper = model_folders.model_folder(tmp_path / "deeper", "llama", changes={"num_hidden_layers": 3})
    refused(folder, tuned(deeper), r"adapter \(of the base model 'models/llama'\): tensor .*layers.2.* is missing")
    flatter = model_folders.model_folder(tmp_path / "flatter", "llama", changes={"num_hidden_layers": 1})
    refused(folder, tuned(flatter), "of the base model 'models/llama'.*is not in the plan's model")
    wider = model_folders.model_folder(tmp_path / "wider", "llama", changes={"hidden_size": 48})
    refused(folder, tuned(wider), r"of the base model 'models/llama'.*has shape \[4, 32\], the plan's model \[4, 48\]")


def test_other_adapters_than_the_plan_s_are_refused(folder: Path, model: Path) -> None:
    refused(folder, tuned(model, ADAPTERS.replace(rank=2)), "r is 4, the plan's adapters have 2; plan with")
    refused(folder, tuned(model, ADAPTERS.replace(alpha=2.0)), "lora_alpha is 8.0, the plan's adapters have 2; plan")
    refused(
        folder, tuned(model, ADAPTERS.replace(targets=("q_proj",))), "target_modules are q_proj, v_proj, the plan's"
    )
    refused(folder, tuned(model, None), "holds an adapter, and the plan trains none")
    change_config(folder, use_dora=True)
    refused(folder, tuned(model), "use_dora: must be False, is True")
    change_config(folder, peft_type="IA3")
    refused(folder, tuned(model), "peft_type must be LORA, is 'IA3'")


def test_a_folder_that_is_not_whole_is_refused(folder: Path, model: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nothing", tuned(model), "nothing: does not exist; give a folder with adapter_config.json")
    tensors = load_file(folder / ADAPTER_FILE)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, folder / ADAPTER_FILE)
    refused(folder, tuned(model), "of the plan's model is missing")
    (folder / ADAPTER_FILE).unlink()
    refused(folder, tuned(model), "adapter_model.safetensors is missing")


def test_an_adapter_wants_the_weights_that_it_lies_beside(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="adapter: lies beside a model's weights"):
        checked(TrainConfig, {"adapter": str(folder)}, "train")


# -- a stage --------------------------------------------------------------------------------------


def with_adapters(targets: tuple[str, ...] = ("c_attn", "c_proj")) -> Workload:
    return tiny_workload().replace(fine_tuning=FineTuning(adapters=Adapters(rank=2, alpha=4.0, targets=targets)))


def test_adapters_begin_without_effect_and_are_the_same_whatever_the_cut() -> None:
    workload, plain = with_adapters(), tiny_workload()
    ops = len(workload.graph.ops)
    whole, base = StageModel(workload, 0, ops, 3), StageModel(plain, 0, ops, 3)
    tokens = torch.arange(64).view(2, 32) % 256
    assert torch.equal(whole.forward(None, (tokens, tokens)), base.forward(None, (tokens, tokens)))
    named = whole.named_weights()
    lora_a = named["layer.1.attention.c_attn.lora_A"]
    assert lora_a.shape == (2, 32)
    assert 0 < lora_a.abs().max() <= 32**-0.5
    assert not named["layer.1.attention.c_attn.lora_B"].any()
    cut = workload.boundaries[1]
    for stage in (StageModel(workload, 0, cut, 3), StageModel(workload, cut, ops, 3)):
        assert all(torch.equal(values, named[name]) for name, values in stage.named_weights().items())


def test_only_trained_weights_have_gradients_and_states() -> None:
    workload = with_adapters()
    ops = len(workload.graph.ops)
    model = StageModel(workload, 0, ops, 0)
    assert model.flat.numel() == workload.graph.num_trained
    assert model.flat.numel() + model.frozen.numel() == workload.graph.num_params
    assert model.tied == {}
    optimizer = StageOptimizer(workload, 0, ops, TrainConfig(), model.flat, model.flat_grad)
    assert {part: states.numel() for part, states in optimizer.states.items()} == dict.fromkeys(
        ("mean", "square"), model.flat.numel()
    )


@pytest.mark.parametrize("recompute", [False, True])
def test_nothing_goes_backward_in_front_of_the_first_trained_weight(recompute: bool) -> None:
    workload = tiny_workload().replace(fine_tuning=FineTuning(frozen_layers=2))
    ops, cut = len(workload.graph.ops), workload.boundaries[2]
    front, back = StageModel(workload, 0, cut, 0), StageModel(workload, cut, ops, 0)
    assert (front.goes_backward, back.trains_in_front, back.goes_backward) == (False, False, True)
    assert front.flat.numel() == 0
    tokens, key = torch.arange(64).view(2, 32) % 256, RngKey(0, 0, 0)
    first, second = StageRunner(front, recompute=recompute), StageRunner(back, recompute=recompute)
    x = first.forward(0, None, (tokens, tokens), key)
    second.forward(0, x, (tokens, tokens), key)
    assert second.backward(0, None) is None, "no gradient is sent back"
    assert back.flat_grad.any()
    assert first.backward(0, torch.empty(0)) is None
    optimizer = StageOptimizer(workload, 0, cut, TrainConfig(), front.flat, front.flat_grad)
    optimizer.step(1e-3)
    assert optimizer.states == {}
