"""Stages that begin with the weights of a model folder compute what transformers computes with it."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.runtime.model import pretrained
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.pretrained import load_pretrained
from hetplanner.weights.check import check_weights
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.workload import Workload
from tests.support.models import model_folders
from tests.support.models.captured_models import captured_here

FORMULAS = ("gpt2", "llama", "mistral", "qwen2")
CASES = [(kind, "formula") for kind in FORMULAS] + [(kind, "captured") for kind in model_folders.CONFIGS]
MOST_RELATIVE = 1e-5


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple]:
    """Architecture, its folder, and the workload of its config, by formula or captured."""
    kind, how = request.param
    path = model_folders.model_folder(tmp_path_factory.mktemp("model") / kind, kind)
    seq_len = None if kind in ("vit", "resnet") else 16
    if how == "formula":
        workload = workload_from_config(path, micro_batch=2, seq_len=seq_len, dtype="float32")
    else:
        with captured_here():
            workload = capture_config(path, micro_batch=2, seq_len=seq_len)
    return kind, how, path, workload


def example(kind: str, workload: Workload) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    if kind in ("vit", "resnet"):
        return torch.randn(workload.program.inputs), torch.randint(0, 10, workload.program.labels)
    return torch.randint(0, 96, (2, 16)), torch.randint(0, 96, (2, 16))


@torch.no_grad()
def logits_by_stages(path: Path, workload: Workload, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Three stages in front of the loss, each with its own share of the weights."""
    weights = check_weights(str(path), workload)
    end = len(workload.graph.ops) - 1
    inner = [cut for cut in workload.boundaries if cut < end]
    cuts = [0, inner[len(inner) // 3], inner[2 * len(inner) // 3], end]
    models = []
    for first, last in pairwise(cuts):
        models.append(StageModel(workload, first, last, seed=0))
        assert load_pretrained(models[-1:], weights) > 0
    x = None
    for model in models:
        x = model.forward(x, batch)
    return x


def test_a_window_as_long_as_the_sequence_is_none(tmp_path: Path) -> None:
    path = model_folders.model_folder(tmp_path / "mistral", "mistral", changes={"sliding_window": 16})
    workload = workload_from_config(path, micro_batch=2, dtype="float32")
    assert workload.seq_len == 16
    batch = example("mistral", workload)
    with torch.no_grad():
        expected = model_folders.loaded(path, "mistral")(batch[0]).logits.flatten()
    found = logits_by_stages(path, workload, batch)
    assert (found - expected).abs().max() <= MOST_RELATIVE * expected.abs().max()


def test_logits_by_stages_are_those_of_from_pretrained(case: tuple) -> None:
    kind, how, path, workload = case
    batch = example(kind, workload)
    found = logits_by_stages(path, workload, batch)
    with torch.no_grad():
        expected = model_folders.loaded(path, kind)(batch[0]).logits.flatten()
    assert expected.std() > 1e-3
    assert (found - expected).abs().max() <= MOST_RELATIVE * expected.abs().max()
    if how == "captured":  # the same kernels
        assert torch.equal(found, expected)


def test_a_rank_reads_the_tensors_of_its_stages_alone(case: tuple) -> None:
    _, _, path, workload = case
    weights = check_weights(str(path), workload)
    end = len(workload.graph.ops)
    cut = workload.boundaries[len(workload.boundaries) // 2]
    whole = load_pretrained([StageModel(workload, 0, end, seed=0)], weights)
    stages = [StageModel(workload, 0, cut, seed=0), StageModel(workload, cut, end, seed=0)]
    read = [load_pretrained([stage], weights) for stage in stages]
    sizes = [4 * m.flat.numel() + sum(t.nbytes for t in m.running.values()) for m in stages]
    assert read == sizes, "a stage reads what it holds, no more"
    twice = sum(read) - whole
    assert twice == sum(4 * (end - first) for first, end in stages[1].tied.values())


def test_other_element_types_widen_exactly_and_small_pieces_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_folders.model_folder(tmp_path / "m", "llama", shard="1GB")
    workload = workload_from_config(path, micro_batch=2, seq_len=16, dtype="float32")
    file = path / "model.safetensors"
    halves = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(halves, file)
    model = StageModel(workload, 0, len(workload.graph.ops), seed=0)
    load_pretrained([model], check_weights(str(path), workload))
    table = model.named_weights()["embedding.tokens.weight"]
    assert torch.equal(table, halves["model.embed_tokens.weight"].float())
    before = model.flat.clone()
    model.flat.zero_()
    monkeypatch.setattr(pretrained, "PIECE_BYTES", 100)
    load_pretrained([model], check_weights(str(path), workload))
    assert torch.equal(model.flat, before)


def test_an_untied_head_and_a_base_model_load_too(tmp_path: Path) -> None:
    path = model_folders.model_folder(tmp_path / "m", "gpt2", changes={"tie_word_embeddings": False}, shard="1GB")
    workload = workload_from_config(path, micro_batch=2, seq_len=16, dtype="float32")
    batch = example("gpt2", workload)
    with torch.no_grad():
        expected = model_folders.loaded(path, "gpt2")(batch[0]).logits.flatten()
    assert torch.allclose(logits_by_stages(path, workload, batch), expected, atol=1e-6)

    tied = model_folders.model_folder(tmp_path / "tied", "gpt2", shard="1GB")
    workload = workload_from_config(tied, micro_batch=2, seq_len=16, dtype="float32")
    expected = logits_by_stages(tied, workload, batch)
    file = tied / "model.safetensors"
    state = load_file(file)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 24, 24).tril().bool()  # as the files of the hub's gpt2 have it
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    save_file(bare, file)
    assert torch.equal(logits_by_stages(tied, workload, batch), expected)


def test_a_file_that_changes_after_the_check_is_named(tmp_path: Path) -> None:
    path = model_folders.model_folder(tmp_path / "m", "llama", shard="1GB")
    workload = workload_from_config(path, micro_batch=2, seq_len=16, dtype="float32")
    weights = check_weights(str(path), workload)
    os.truncate(path / "model.safetensors", 1000)
    model = StageModel(workload, 0, len(workload.graph.ops), seed=0)
    with pytest.raises(InvalidInput, match=r"model\.safetensors: is damaged, or no safetensors file"):
        load_pretrained([model], weights)
