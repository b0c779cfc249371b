"""Tiny configurations of transformers' architectures, and how each is cut in two and trained."""

from functools import cache
from pathlib import Path
from typing import Any

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import train

_TEXT = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = _TEXT | {"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
_NEOX = _TEXT | {"intermediate_size": 64, "max_position_embeddings": 64}
_GPT2 = {"vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_BART = {"vocab_size": 256, "d_model": 32, "max_position_embeddings": 64} | {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64))
}
_PICTURE = {"image_size": 16, "num_channels": 3, "num_labels": 10}
_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "patch_size": 8}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gptj": _GPT2 | {"rotary_dim": 4},
    "opt": _NEOX | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": _TEXT | {"n_layer": 2, "n_head": 4},
    "gpt_neox": _NEOX,
    "falcon": _TEXT,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 8},
    "gemma": _LLAMA | {"head_dim": 8},
    "phi": _LLAMA,
    "stablelm": _LLAMA,
    "olmo": _LLAMA,
    "mixtral": _LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": _LLAMA | {"num_experts": 4, "num_experts_per_tok": 2},
    "mamba": {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "bert": _NEOX | {"is_decoder": True},
    "bert (hidden tokens)": _NEOX | {"vocab_size": 260},
    "roberta": _NEOX | {"vocab_size": 260},
    "distilbert": {"vocab_size": 260, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "vit": _VIT | _PICTURE,
    "deit": _VIT | _PICTURE,
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]} | _PICTURE | {"image_size": 32},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 4} | _PICTURE,
    "swin": _PICTURE | {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4},
    "t5": {"vocab_size": 256, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "bart": _BART,
}
"""By `model_type`, the other fields of `config.json`; a remark in brackets is left out."""
MASKED = ("bert (hidden tokens)", "roberta", "distilbert")
MASK_TOKEN = 259


@cache
def captured(name: str) -> Workload:
    """An architecture as a workload of four micro-batches. Raises InvalidInput."""
    seq_len = None if "image_size" in ARCHITECTURES[name] else 16
    factory = config_factory(
        {"model_type": name.partition(" ")[0], **ARCHITECTURES[name]},
        name,
        micro_batch=2,
        seq_len=seq_len,
        mask_token=MASK_TOKEN if name in MASKED else None,
    )
    return capture_workload(factory, name, global_batch=8, task=factory.task)


def losses_in_two_stages(workload: Workload, steps: int, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of two ranks with a half each, and of one process."""
    plan = chain_plan([4], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    config = TrainConfig(steps=steps, learning_rate=1e-3)
    _, expected = train_reference(workload, config)
    return train(plan, config, folder).losses(), expected
