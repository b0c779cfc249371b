"""config.json of a workload's model, as transformers reads it."""

from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

TRANSIENT = ("_name_or_path", "transformers_version", "torch_dtype", "quantization_config", "auto_map")
"""Fields of a config that say where it came from, or name code."""


def config_of(workload: Workload) -> dict[str, Any]:
    """The content of config.json; weights are float32.

    Raises:
        InvalidInput: transformers has no such model, or nothing tells its config.
    """
    ours = workload.transformer
    if ours is None:
        if workload.huggingface is None:
            raise InvalidInput(
                f"model {workload.name}: was captured from code, so no config.json is known; capture it from a config,"
                " or begin it with --init-from"
            )
        fields = {name: value for name, value in workload.huggingface.config.items() if name not in TRANSIENT}
        return fields | {"dtype": "float32"}
    if ours.boundary_layers or ours.shared_layers > 1:
        what = "compression-aware layers" if ours.boundary_layers else "shared layers"
        raise InvalidInput(f"model {workload.name}: has {what}, which no model of transformers has")
    return (_gpt2 if ours.family == "gpt2" else _llama)(ours) | {"dtype": "float32"}


def _gpt2(c: TransformerConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.vocab,
        "n_positions": c.max_seq_len,
        "n_embd": c.hidden,
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_inner": c.ffn,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": c.norm_eps,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": c.dropout,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _llama(c: TransformerConfig) -> dict[str, Any]:
    kind = (
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
        if c.qkv_bias
        else {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False}
    )
    return kind | {
        "vocab_size": c.vocab,
        "max_position_embeddings": c.max_seq_len,
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.num_kv_heads,
        "intermediate_size": c.ffn,
        "hidden_act": "silu",
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }
