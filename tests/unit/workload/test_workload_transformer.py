"""Parameters, FLOPs and bytes of transformers against published counts and independent arithmetic."""

import pytest

from hetplanner.workload.presets import preset
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.transformer_graph import transformer_graph

GPT2 = TransformerConfig(vocab=50257, max_seq_len=1024, hidden=768, layers=12, heads=12, ffn=3072)
LLAMA = TransformerConfig(
    family="llama", vocab=1000, max_seq_len=64, hidden=64, layers=2, heads=8, kv_heads=2, ffn=96, tie_embeddings=False
)


def ops(config, seq_len=16, dtype_bytes=2):
    return {op.name: op for op in transformer_graph(config, seq_len=seq_len, dtype_bytes=dtype_bytes).ops}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-1b", 1_235_814_400),
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
    ],
)
def test_parameter_counts_are_the_published_ones(name, parameters):
    assert preset(name).graph.num_params == parameters


def test_ops_stand_in_order_and_read_the_one_before():
    graph = transformer_graph(GPT2.replace(layers=2), seq_len=16, dtype_bytes=2)
    assert [op.name for op in graph.ops] == [
        "embedding",
        "layer.0.attention",
        "layer.0.mlp",
        "layer.1.attention",
        "layer.1.mlp",
        "final_norm",
        "head",
        "loss",
    ]
    for before, op in zip(graph.ops, graph.ops[1:], strict=False):
        assert op.inputs == (before.name,)
    assert graph.num_layers == 2
    assert graph.tied_groups == {"embedding": (0, 6)}


def test_an_untied_head_owns_its_weight():
    tied, untied = ops(GPT2)["head"], ops(GPT2.replace(tie_embeddings=False))["head"]
    assert (tied.tied, untied.tied) == ("embedding", None)
    assert tied.num_params == untied.num_params == 50257 * 768


@pytest.mark.parametrize(("config", "norm"), [(GPT2, 2 * 768), (LLAMA, 64)])
def test_a_layers_parameters_are_its_modules(config, norm):
    found = ops(config)
    h, f, kv = config.hidden, config.ffn, config.num_kv_heads * config.head_dim
    if config.family == "gpt2":
        attention, mlp = (3 * h * h + 3 * h) + (h * h + h), (h * f + f) + (f * h + h)
    else:
        attention, mlp = h * h + 2 * h * kv + h * h, 3 * h * f
    assert found["layer.0.attention"].num_params == norm + attention
    assert found["layer.0.mlp"].num_params == norm + mlp
    assert found["final_norm"].num_params == norm


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "llama-8b"])
def test_flops_are_near_two_a_parameter_and_token_plus_causal_attention(name):
    workload = preset(name)
    config, tokens = workload.transformer, workload.seq_len
    # Weights of matmuls; the embedding is a look-up, the head multiplies whether tied or not.
    matmul = sum(op.num_params for op in workload.graph.ops if op.name != "embedding")
    attention = config.layers * 2 * config.hidden * (tokens + 1)  # 4 h FLOPs for the half of the pairs
    forward = sum(op.forward_flops for op in workload.graph.ops) / tokens
    assert forward == pytest.approx(2 * matmul + attention, rel=0.02)
    assert forward > 2 * matmul + attention


def test_backward_is_twice_forward_but_for_embedding_and_loss():
    for op in ops(GPT2).values():
        if op.name not in ("embedding", "loss"):
            assert op.backward_flops == 2 * op.forward_flops
    assert 0 < ops(GPT2)["loss"].backward_flops < ops(GPT2)["loss"].forward_flops


def test_bytes_scale_with_dtype_and_length():
    half, full = ops(GPT2, 32, 2), ops(GPT2, 32, 4)
    for name in ("embedding", "layer.3.mlp", "final_norm", "head"):
        assert full[name].output_bytes == 2 * half[name].output_bytes
    assert half["layer.3.mlp"].output_bytes == 32 * 768 * 2
    assert half["head"].output_bytes == 32 * 50257 * 2
    assert half["loss"].output_bytes == full["loss"].output_bytes == 4
    twice = ops(GPT2, 64, 2)
    for name, op in half.items():
        # No T × T scores are kept, so what is kept grows linearly.
        assert twice[name].activation_bytes == 2 * op.activation_bytes


def test_kept_activations_of_a_gpt2_layer():
    found = ops(GPT2, 16, 4)
    rows, h, f = 16, 768, 3072
    statistics = rows * 2 * 4
    assert found["layer.0.attention"].activation_bytes == (rows * (h + h + 3 * h + h) * 4 + statistics + rows * 12 * 4)
    assert found["layer.0.mlp"].activation_bytes == rows * (h + h + f + f) * 4 + statistics


def test_dropout_keeps_a_mask_of_the_residual_branch():
    with_dropout, without = ops(GPT2.replace(dropout=0.1)), ops(GPT2)
    for name, width in (("embedding", 4), ("layer.0.attention", 2), ("layer.0.mlp", 2)):
        assert with_dropout[name].activation_bytes - without[name].activation_bytes == 16 * 768 * width
