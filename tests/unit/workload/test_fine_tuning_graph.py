"""What is trained of a transformer by formula: weights, FLOPs and kept bytes against PEFT and autograd."""

import peft
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from hetplanner.errors import InvalidInput
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.presets import preset
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

TOKENS, LAYERS, HIDDEN, VOCAB, RANK = 8, 3, 256, 32, 4
SIZES = {"vocab": VOCAB, "max_seq_len": TOKENS, "hidden": HIDDEN, "layers": LAYERS, "heads": 4, "ffn": 704}


def workload(family, **tuning):
    config = TransformerConfig(family=family, tie_embeddings=family == "gpt2", **SIZES)
    fine_tuning = FineTuning(**tuning) if tuning else None
    return Workload(
        name="tiny", transformer=config, fine_tuning=fine_tuning, global_batch=1, micro_batch=1, seq_len=TOKENS,
        dtype="float32",
    )  # fmt: skip


def theirs(family, attention="sdpa"):
    """The same model of transformers, without what its own code keeps beyond need."""
    common = {"vocab_size": VOCAB, "attn_implementation": attention}
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_positions=TOKENS, n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_inner=704, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, activation_function="gelu_pytorch_tanh", **common,
        )  # fmt: skip
    else:
        config = transformers.LlamaConfig(
            max_position_embeddings=TOKENS, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4,
            intermediate_size=704, **common,
        )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def with_adapters(model, targets):
    is_gpt2 = hasattr(model, "transformer")  # whose linear layers are stored the other way round
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(targets), fan_in_fan_out=is_gpt2)
    return peft.get_peft_model(model, config)


def with_frozen_layers(model, count):
    base = model.base_model
    layers = base.h if hasattr(base, "h") else base.layers
    for part in (base.get_input_embeddings(), *([base.wpe] if hasattr(base, "wpe") else []), *layers[:count]):
        part.requires_grad_(False)
    return model


def run(model):
    """FLOPs forward and backward by torch's counter, and bytes that autograd saves."""
    tokens = torch.zeros((1, TOKENS), dtype=torch.int64)
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        with FlopCounterMode(display=False) as forward:
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    kept = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in known)
    return forward.get_total_flops(), backward.get_total_flops(), kept


def ours(w):
    ops = w.graph.ops
    totals = ((op.forward_flops, op.backward_flops, op.activation_bytes) for op in ops)
    return tuple(map(sum, zip(*totals, strict=True)))


TARGETS = [
    ("gpt2", ("c_attn",)), ("gpt2", ("c_fc",)), ("gpt2", ("c_proj",)), ("gpt2", ("c_attn", "c_fc", "c_proj")),
    ("llama", ("q_proj", "v_proj")), ("llama", ("o_proj",)), ("llama", ("gate_proj",)), ("llama", ("up_proj",)),
    ("llama", ("down_proj",)),
    ("llama", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "targets"), TARGETS)
def test_adapters_cost_what_peft_and_torch_make_of_them(family, targets):
    w = workload(family, adapters=Adapters(rank=RANK, alpha=8.0, targets=targets))
    model = with_adapters(theirs(family, "eager"), targets)
    assert w.graph.num_trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert w.graph.num_params == sum(p.numel() for p in model.parameters())
    forward, backward, _ = run(model)
    kept = run(with_adapters(theirs(family), targets))[2]
    # Elementwise work and the half of the scores that no token sees are the rest.
    assert ours(w) == (
        pytest.approx(forward, rel=0.02), pytest.approx(backward, rel=0.02), pytest.approx(kept, rel=0.05)
    )  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_frozen_layers_cost_what_torch_makes_of_them(family, count):
    w = workload(family, **({"frozen_layers": count} if count else {}))
    model = theirs(family, "eager")
    if count:
        with_frozen_layers(model, count)
    assert w.graph.num_trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    forward, backward, _ = run(model)
    assert ours(w)[:2] == (pytest.approx(forward, rel=0.02), pytest.approx(backward, rel=0.02))
    kept = run(with_frozen_layers(theirs(family), count) if count else theirs(family))[2]
    assert ours(w)[2] == pytest.approx(kept, rel=0.05)


def test_nothing_in_front_of_the_first_trained_weight_has_a_backward():
    w = workload("gpt2", frozen_layers=2)
    graph, first = w.graph, w.graph.first_trained
    assert graph.ops[first].name == "layer.2.attention"
    assert all(op.backward_flops == op.activation_bytes == 0 for op in graph.ops[:first])
    assert [n > 0 for n in w.gradient_elements] == [k > first and k < len(graph.ops) for k in range(len(graph.ops) + 1)]
    full = workload("gpt2")
    assert full.graph.first_trained == 0
    assert full.gradient_elements == full.boundary_elements


def test_a_head_tied_to_the_frozen_embedding_is_frozen_and_an_untied_one_is_not():
    tied = preset("gpt2", freeze_layers=1).graph
    untied = preset("llama-8b", freeze_layers=1).graph
    assert (tied.ops[-2].trained, untied.ops[-2].trained) == (0, untied.ops[-2].num_params)


def test_layers_that_share_weights_are_frozen_together_and_share_adapters():
    shared = preset("tiny-gpt", shared_layers=3)
    frozen = {op.name: op.trained for op in shared.replace(fine_tuning=FineTuning(frozen_layers=1)).graph.ops}
    assert frozen["layer.2.mlp"] == 0 < frozen["layer.3.mlp"]
    adapters = preset("tiny-gpt", shared_layers=3, adapters="4").graph
    assert adapters.num_trained == 2 * 4 * (128 + 3 * 128)


@pytest.mark.parametrize(
    ("text", "family", "rank", "alpha", "targets"),
    [
        ("8", "gpt2", 8, 16.0, ("c_attn",)),
        ("8", "llama", 8, 16.0, ("q_proj", "v_proj")),
        ("4:32", "gpt2", 4, 32.0, ("c_attn",)),
        ("4:0.5:o_proj, up_proj", "llama", 4, 0.5, ("o_proj", "up_proj")),
    ],
)
def test_adapters_are_read_from_text(text, family, rank, alpha, targets):
    adapters = Adapters.parse(text, family)
    assert adapters == Adapters(rank=rank, alpha=alpha, targets=targets)
    assert Adapters.parse(str(adapters), family) == adapters


@pytest.mark.parametrize("text", ["", "x", "8:y", "8:16:a:b", "0:1", "8:-1", "1e3"])
def test_other_texts_are_refused_in_a_line(text):
    with pytest.raises(InvalidInput, match="adapters: ") as error:
        preset("gpt2", adapters=text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("gpt2", {"adapters": "8:16:q_proj"}, "it has c_attn, c_fc, c_proj"),
        ("gpt2", {"freeze_layers": 12}, "below the model's 12 layers"),
        ("gpt2", {"adapters": "8", "freeze_layers": 1}, "either adapters or frozen_layers"),
        ("tiny-resnet", {"adapters": "8"}, "a captured model says itself"),
        ("tiny-resnet", {"freeze_layers": 1}, "a captured model says itself"),
    ],
)
def test_what_cannot_be_is_refused(model, options, says):
    with pytest.raises(InvalidInput, match=says):
        preset(model, **options)


def test_a_config_of_hugging_face_takes_them_too():
    config = {"model_type": "gpt2", "vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    assert workload_from_config(config, adapters="4").fine_tuning.adapters.targets == ("c_attn",)
    assert workload_from_config(config, freeze_layers=1).fine_tuning.frozen_layers == 1


def test_no_fine_tuning_leaves_a_workload_as_it_was():
    assert preset("gpt2", adapters="none", freeze_layers=0) == preset("gpt2")
    assert "fine_tuning" not in preset("gpt2").model_dump(mode="json")
    assert preset("tiny-resnet", adapters="none", freeze_layers=0) == preset("tiny-resnet")
    assert preset("gpt2").trained_text == ""
    assert preset("gpt2", adapters="8").trained_text == "trains 295 k of 125 M weights (adapters of rank 8)"
