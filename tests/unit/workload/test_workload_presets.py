import json

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.workload.huggingface import has_formulas, workload_from_config
from hetplanner.workload.load import load_workload
from hetplanner.workload.presets import CAPTURED_PRESETS, preset, preset_names
from tests.support.processes.imported import imported

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_ctx": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "initializer_range": 0.02,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InvalidInput) as caught:
        call(*args, **kwargs)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("name", [n for n in preset_names() if n not in CAPTURED_PRESETS])
def test_a_preset_is_a_whole_workload(name):
    workload = preset(name)
    assert workload.name == workload.transformer.name == name
    assert workload.graph.num_layers == workload.transformer.layers
    assert workload.num_micro_batches >= 16
    assert workload.transformer.dropout == 0


@pytest.mark.parametrize("name", CAPTURED_PRESETS)
def test_a_captured_preset_can_be_trained(name):
    workload = preset(name)
    assert workload.name == name
    assert workload.program is not None
    assert (workload.seq_len, workload.dtype) == (1, "float32")
    assert workload.num_micro_batches >= 8
    assert {op.kind for op in workload.graph.ops} >= {"convolution", "norm", "activation", "pooling", "head", "loss"}
    longer = preset(name, global_batch=2 * workload.global_batch, dtype="bfloat16")
    assert longer.graph.ops[0].output_bytes == workload.graph.ops[0].output_bytes / 2
    assert preset(name, micro_batch=workload.micro_batch) == workload
    fewer = preset(name, micro_batch=1)
    assert (fewer.program.inputs[0], fewer.micro_batch) == (1, 1)
    assert fewer.with_micro_batch(workload.micro_batch) == workload
    for change, says in (
        ({"micro_batch": 3}, "global_batch must be a multiple of micro_batch"),
        ({"layers": 3}, "layers: cannot be changed"),
        ({"seq_len": 2}, "seq_len: cannot be changed"),
    ):
        assert says in refused(preset, name, **change)


def test_resnet101_is_the_papers():
    graph = preset("resnet101").graph
    assert (graph.num_params, graph.num_layers) == (44_549_160, 33)
    assert sum(op.forward_flops for op in graph.ops) == pytest.approx(2 * 7.8e9, rel=0.02)  # 7.8e9 multiply-adds


def test_presets_need_no_torch():
    assert imported("from hetplanner.workload.presets import preset; preset('resnet101').graph", "torch") == []


def test_the_tiny_presets_fit_the_byte_level_data():
    for name in ("tiny-gpt", "tiny-llama", "small-gpt"):
        workload = preset(name)
        assert (workload.transformer.vocab, workload.dtype) == (256, "float32")
        assert workload.graph.num_params < 10e6
        assert 4 <= workload.transformer.layers <= 8


def test_gpt3_xl_is_as_dt_fm_trained_it():
    workload = preset("gpt3-xl")
    config = workload.transformer
    assert (config.layers, config.hidden, config.heads, config.vocab) == (24, 2048, 16, 50257)
    assert (workload.seq_len, workload.global_batch, workload.micro_batch) == (2048, 1024, 1)
    assert workload.dtype == "float16"
    assert 1.2e9 < workload.graph.num_params < 1.4e9
    assert preset("gpt3-xl", layers=96).graph.num_layers == 96


def test_overrides():
    workload = preset("gpt2", layers=3, global_batch=6, micro_batch=3, seq_len=128, dtype="float32", recompute=True)
    assert workload.num_micro_batches == 2
    assert workload.tokens_per_step == 768
    assert (workload.seq_len, workload.dtype, workload.recompute) == (128, "float32", True)
    assert workload.transformer.layers == 3
    assert preset("gpt2").transformer.layers == 12


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"layers": 0}, "gpt2: layers: must be greater than or equal to 1, got 0"),
        ({"layers": 10**9}, "gpt2: layers: must be less than or equal to 1000"),
        ({"global_batch": 7, "micro_batch": 2}, "global_batch must be a multiple of micro_batch, got 7 and 2"),
        ({"global_batch": -1}, "gpt2: global_batch"),
        ({"seq_len": 1025}, "seq_len must be at most the model's max_seq_len 1024, got 1025"),
        ({"dtype": "int8"}, "gpt2: dtype: must be 'float32', 'tf32', 'bfloat16' or 'float16', got 'int8'"),
        ({"micro_batch": 1.5}, "gpt2: micro_batch"),
    ],
)
def test_bad_overrides(overrides, says):
    assert says in refused(preset, "gpt2", **overrides)


def test_an_unknown_name_lists_the_nearest():
    assert "unknown preset 'gpt2xl'; nearest are gpt2-xl" in refused(preset, "gpt2xl")
    assert "known are tiny-gpt, " in refused(preset, "%%%")
    assert "hetplanner workload presets" in refused(preset, "%%%")


# -- config.json ----------------------------------------------------------------------------------


def test_gpt2_config():
    workload = workload_from_config(GPT2)
    assert workload.graph.num_params == 124_439_808
    assert workload.transformer.dropout == 0.1
    assert (workload.seq_len, workload.dtype, workload.name) == (1024, "float16", "gpt2")
    assert workload_from_config(GPT2 | {"n_inner": 100}).transformer.ffn == 100


def test_llama_config():
    workload = workload_from_config(LLAMA)
    assert workload.graph.num_params == 8_030_261_248
    assert (workload.seq_len, workload.dtype) == (2048, "bfloat16")
    assert workload.transformer.replace(name="x") == preset("llama-8b").transformer.replace(name="x")


def test_mistral_is_llama_for_as_many_tokens_as_each_token_sees():
    data = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "max_position_embeddings")}
    data |= {"model_type": "mistral"}
    llama = workload_from_config(LLAMA | {"num_key_value_heads": 8}).transformer.replace(name="mistral")
    assert workload_from_config(data).transformer == llama.replace(max_seq_len=4096)
    whole = workload_from_config(data | {"sliding_window": None, "max_position_embeddings": 32_768})
    assert whole.transformer == llama.replace(max_seq_len=32_768)
    says = refused(workload_from_config, data, seq_len=4097)
    assert "seq_len must be at most" in says
    assert "4096" in says


def test_qwen2_is_llama_with_biases_and_its_other_variants_are_captured():
    data = LLAMA | {"model_type": "qwen2"}
    llama = workload_from_config(LLAMA)
    workload = workload_from_config(data)
    assert workload.transformer == llama.transformer.replace(name="qwen2", qkv_bias=True)
    shape = workload.transformer
    biases = shape.layers * (shape.hidden + 2 * shape.num_kv_heads * shape.head_dim)
    assert workload.graph.num_params == llama.graph.num_params + biases
    assert "qkv_bias" not in llama.model_dump(mode="json")["transformer"], "as files were"
    assert has_formulas(data)
    for variant in (
        {"use_sliding_window": True},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"head_dim": 96},
    ):
        assert not has_formulas(data | variant)
        assert not has_formulas(data | variant | {"model_type": "mistral", "attention_dropout": 0.1})
    assert "use_sliding_window: must be False" in refused(workload_from_config, data | {"use_sliding_window": True})


def test_the_rotary_base_of_newer_configs():
    data = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert workload_from_config(data | {"rope_parameters": parameters}).transformer.rope_theta == 5e5
    assert workload_from_config(data).transformer.rope_theta == 1e4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "config: model_type: must be 'gpt2' or 'llama' or 'mistral' or 'qwen2', got None"),
        ({"model_type": "bert"}, "config: model_type: must be 'gpt2' or 'llama' or 'mistral' or 'qwen2', got 'bert'"),
        ({k: v for k, v in GPT2.items() if k != "n_embd"}, "config: n_embd: required field is missing; add it"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "config: hidden_size: required field is missing"),
        (GPT2 | {"n_layer": 0}, "config: n_layer: must be a whole number above 0, got 0"),
        (GPT2 | {"n_layer": "12"}, "config: n_layer: must be a whole number above 0, got '12'"),
        (GPT2 | {"n_layer": True}, "config: n_layer: must be a whole number"),
        (GPT2 | {"n_head": 7}, "hidden must be a multiple of heads, got 768 and 7"),
        (GPT2 | {"n_embd": 10**9, "n_head": 1}, "must be less than or equal to 1000000"),
        (GPT2 | {"n_embd": 10**400}, "config: n_embd: must be at most 1e+15, got a number of 401 digits"),
        (GPT2 | {"resid_pdrop": 10**400}, "config: resid_pdrop: must be between -1e+300 and 1e+300, got 1000"),
        (GPT2 | {"layer_norm_epsilon": float("nan")}, "config: layer_norm_epsilon: must be between"),
        (LLAMA | {"hidden_size": 10**400, "head_dim": 64}, "config: hidden_size: must be at most 1e+15"),
        (GPT2 | {"activation_function": "relu"}, "config: activation_function: must be 'gelu_new'"),
        (GPT2 | {"resid_pdrop": 0.2}, "all dropout rates must be equal"),
        (GPT2 | {"add_cross_attention": True}, "config: add_cross_attention: must be False, got True"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3"}}, "config: rope_scaling: scaled rotary positions are not"),
        (LLAMA | {"rope_scaling": [1]}, "config: rope_scaling"),
        (LLAMA | {"head_dim": 77}, "config: head_dim: must be hidden_size / num_attention_heads = 128, got 77"),
        (LLAMA | {"attention_bias": True}, "config: attention_bias"),
        (LLAMA | {"attention_dropout": 0.1}, "config: attention_dropout: must be 0"),
        (LLAMA | {"num_key_value_heads": 7}, "heads must be a multiple of kv_heads, got 32 and 7"),
        (LLAMA | {"rms_norm_eps": "small"}, "config: rms_norm_eps: must be a number, got 'small'"),
        (LLAMA | {"rms_norm_eps": -1}, "norm_eps"),
        (LLAMA | {"tie_word_embeddings": 1}, "config: tie_word_embeddings: must be True or False, got 1"),
    ],
)
def test_configs_of_other_models_are_refused_by_name(data, says):
    assert says in refused(workload_from_config, data)


def test_model_is_a_presets_name_or_a_path(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_workload("gpt2", layers=2).transformer.layers == 2
    by_folder, by_file = load_workload(str(folder), layers=4), load_workload(str(folder / "config.json"), layers=4)
    assert by_folder == by_file
    assert by_folder.name == "my-llama"
    assert by_folder.transformer.layers == 4
    named = tmp_path / "other.json"
    named.write_text(json.dumps(GPT2 | {"_name_or_path": "someone/gpt2-other"}))
    assert load_workload(str(named), micro_batch=2).name == "gpt2-other"


def test_bad_paths(tmp_path):
    assert "config.json: no such file" in refused(load_workload, str(tmp_path))
    assert "no such file" in refused(load_workload, "nowhere/config.json")
    bad = tmp_path / "config.json"
    for text, says in (
        ("[]", "must be a JSON object"),
        ("{", "config.json:1: not JSON"),
        (json.dumps(GPT2 | {"notes": "x" * 2**21}), "at most 1.05 MB"),
    ):
        bad.write_text(text)
        assert says in refused(load_workload, str(bad))
    bad.write_text(json.dumps(GPT2))
    assert "config.json: seq_len must be at most" in refused(load_workload, str(bad), seq_len=5000)
    for name in ("", "two\nlines", "a\0b", "\0/"):
        refused(load_workload, name)
