"""Modules of ops, their weights and their initial values; data; sampling."""

from pathlib import Path

import pytest
import torch

from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel, boundary_elements
from hetplanner.runtime.model.layout import model_weights
from hetplanner.runtime.model.modules import drop
from hetplanner.runtime.model.sample import generate, load_model
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.presets import preset
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

GPT = {"vocab": 300, "max_seq_len": 24, "hidden": 32, "layers": 2, "heads": 2, "ffn": 48}
LLAMA = GPT | {"family": "llama", "heads": 4, "kv_heads": 2}
SHAPES = {
    "gpt tied": GPT,
    "gpt untied": GPT | {"tie_embeddings": False},
    "gpt grouped": GPT | {"heads": 4, "kv_heads": 1},
    "llama tied": LLAMA,
    "llama untied": LLAMA | {"tie_embeddings": False},
    "gpt bottleneck": GPT | {"layers": 3, "boundary_layers": {"kind": "bottleneck", "factor": 4, "every": 2}},
    "gpt maxout": GPT | {"boundary_layers": {"kind": "maxout", "factor": 2}},
    "llama bottleneck": LLAMA | {"boundary_layers": {"kind": "bottleneck", "factor": 2}},
    "llama maxout": LLAMA | {"layers": 3, "boundary_layers": {"kind": "maxout", "factor": 4}},
    "gpt shared": GPT | {"layers": 5, "shared_layers": 2},
    "llama all shared, bottleneck": LLAMA
    | {"layers": 4, "shared_layers": 4, "boundary_layers": {"kind": "bottleneck", "factor": 2, "every": 2}},
}


def workload(**shape: object) -> Workload:
    config = TransformerConfig(**shape)
    return Workload(name="t", transformer=config, global_batch=4, micro_batch=2, seq_len=16, dtype="float32")


def whole(w: Workload, seed: int = 0) -> StageModel:
    return StageModel(w, 0, len(w.graph.ops), seed)


@pytest.mark.parametrize("name", SHAPES)
def test_modules_hold_exactly_the_parameters_of_the_graph(name: str) -> None:
    w = workload(**SHAPES[name])
    for i, op in enumerate(w.graph.ops):
        stage = StageModel(w, i, i + 1, 0)
        assert sum(p.numel() for p in stage.parameters) == op.num_params, op.name
        assert stage.flat.numel() == op.num_params
    model = whole(w)
    assert model.flat.numel() == w.graph.num_params
    assert sum(weight.num_elements for weight in model_weights(w)) == w.graph.num_params


@pytest.mark.parametrize("name", SHAPES)
def test_initial_weights_and_outputs_do_not_depend_on_the_cut(name: str) -> None:
    w = workload(**SHAPES[name])
    model, full = whole(w, seed=5), whole(w, seed=5).named_weights()
    tokens, labels = torch.randint(0, 256, (2, 2, 16))
    expected = model.forward(None, (tokens, labels))
    for cut in range(1, len(w.graph.ops)):
        front, back = StageModel(w, 0, cut, 5), StageModel(w, cut, len(w.graph.ops), 5)
        saved = front.saved_tensors() | back.saved_tensors()
        assert list(saved) == list(full)
        assert all(torch.equal(saved[k], full[k]) for k in full)
        middle = front.forward(None, (tokens, labels))
        assert middle.shape == (boundary_elements(w, cut),)
        assert torch.equal(back.forward(middle, (tokens, labels)), expected)
    assert not torch.equal(whole(w, seed=6).flat, model.flat)


def test_a_tied_weight_on_two_stages_is_one_weight_twice() -> None:
    w = workload(**GPT)
    front, back = StageModel(w, 0, 3, 1), StageModel(w, 3, len(w.graph.ops), 1)
    (a, b), (c, d) = front.tied["embedding"], back.tied["embedding"]
    assert torch.equal(front.flat[a:b], back.flat[c:d])
    assert "head.weight" not in back.saved_tensors()
    assert front.own_end == a
    assert back.own_end == c


def test_gradients_land_in_the_flat_buffer() -> None:
    model = whole(workload(**GPT))
    tokens, labels = torch.randint(0, 256, (2, 2, 16))
    model.forward(None, (tokens, labels)).backward()
    assert model.flat_grad.abs().sum() > 0
    storage = model.flat_grad.untyped_storage().data_ptr()
    assert all(p.grad.untyped_storage().data_ptr() == storage for p in model.parameters)


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_attention_is_causal_and_positions_matter(shape: dict[str, object]) -> None:
    model = whole(workload(**shape))
    tokens = torch.randint(0, 256, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 256
    logits = model.stage_ops.logits
    a, b = logits(tokens), logits(changed)
    assert torch.allclose(a[:, :10], b[:, :10], atol=1e-6)
    assert not torch.allclose(a[:, 10:], b[:, 10:])
    same = torch.full((1, 16), 7)
    same[0, 1] = 9
    moved = torch.full((1, 16), 7)
    moved[0, 5] = 9
    assert not torch.allclose(logits(same)[0, -1], logits(moved)[0, -1], atol=1e-7)


def test_dropout_depends_on_seed_step_micro_batch_and_op_alone() -> None:
    x = torch.ones(2000)
    base = drop(x, 0.25, RngKey(1, 2, 3), 4)
    assert torch.equal(base, drop(x, 0.25, RngKey(1, 2, 3), 4))
    others = [(RngKey(9, 2, 3), 4), (RngKey(1, 9, 3), 4), (RngKey(1, 2, 9), 4), (RngKey(1, 2, 3), 9)]
    assert not any(torch.equal(base, drop(x, 0.25, key, op)) for key, op in others)
    assert base.mean() == pytest.approx(1.0, abs=0.05)
    assert drop(x, 0.25, None, 4) is x


def test_a_small_vocabulary_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match="vocab must be at least 256"):
        open_batches(TrainConfig(), workload(**GPT | {"vocab": 100}))


# -- data ---------------------------------------------------------------------------------------------


def test_batches_are_a_pure_function_of_seed_step_and_micro_batch() -> None:
    w = preset("tiny-gpt")
    batches, again = (open_batches(TrainConfig(), w) for _ in range(2))
    a, b = batches.draw(3, 5), again.draw(3, 5)
    assert torch.equal(a[0], b[0])
    assert a[0].shape == (w.micro_batch, w.seq_len)
    assert torch.equal(a[0][:, 1:], a[1][:, :-1]), "labels are the next tokens"
    others = [open_batches(TrainConfig(seed=s), w).draw(t, m) for s, t, m in ((1, 3, 5), (0, 4, 5), (0, 3, 6))]
    assert not any(torch.equal(a[0], d) for d, *_ in others)
    assert not torch.equal(a[0], batches.draw(3, 5, "validation")[0])
    validation = [open_batches(TrainConfig(seed=s), w).draw(0, 5, "validation")[0] for s in (0, 1)]
    assert torch.equal(*validation), "runs of unlike seeds are validated on the same text"
    assert list(batches.sample_ids(3, 5)) == list(again.sample_ids(3, 5))


# -- sampling ------------------------------------------------------------------------------


def test_reference_learns_and_generates_the_same_text_for_the_same_seed() -> None:
    w = workload(**GPT | {"layers": 1})
    model, losses = train_reference(w, TrainConfig(steps=25, learning_rate=1e-2))
    assert losses[-1] < losses[0] - 0.5
    text = generate(model, "é", 40, temperature=1.0, seed=3)
    assert text.startswith("é")
    assert text == generate(model, "é", 40, temperature=1.0, seed=3)
    assert text != generate(model, "é", 40, temperature=1.0, seed=4)
    assert generate(model, "", 0) == "\n"
    with pytest.raises(InvalidInput, match="must be 0 or more"):
        generate(model, "x", 5, temperature=-1.0)


def test_loading_without_a_saved_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no saved model"):
        load_model(tmp_path)
