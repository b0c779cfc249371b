"""Tiny models of transformers, saved as their users have them: config.json and sharded safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.workload import Workload

TOKENS = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "max_position_embeddings": 24}  # fmt: skip
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 96, "n_positions": 24} | NO_DROPOUT,
    "llama": TOKENS | {"num_key_value_heads": 2, "rms_norm_eps": 1e-6},
    "opt": {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "max_position_embeddings": 24, "word_embed_proj_dim": 32, "dropout": 0.0, "attention_dropout": 0.0},
    "gpt_neox": TOKENS,
    "qwen2": TOKENS | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "mistral": TOKENS | {"num_key_value_heads": 2, "sliding_window": None},
    "bert": TOKENS | {"is_decoder": True},
    "mixtral": TOKENS | {"num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2,
                         "tie_word_embeddings": True},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
            "image_size": 16, "patch_size": 8, "num_channels": 1, "num_labels": 10},
    "resnet": {"depths": [1, 2], "hidden_sizes": [16, 32], "embedding_size": 8, "image_size": 32, "num_channels": 1,
               "num_labels": 10, "layer_type": "bottleneck"},
}  # fmt: skip
"""By `model_type`; all without dropout where that is not the default."""


def auto_class(kind: str) -> Any:
    """The class of transformers that trains such a model."""
    if kind in ("vit", "resnet"):
        return transformers.AutoModelForImageClassification
    return transformers.AutoModelForCausalLM


def model_folder(path: Path, kind: str, *, changes: Mapping[str, Any] | None = None, shard: str = "20KB") -> Path:
    """A model with random weights, norms and biases included, saved in shards.

    Args:
        path: made.
        kind: a key of `CONFIGS`.
        changes: of its config.
        shard: largest shard.
    """
    config = transformers.AutoConfig.for_model(kind, **(CONFIGS[kind] | dict(changes or {})))
    torch.manual_seed(7)
    model = auto_class(kind).from_config(config)
    with torch.no_grad():  # else biases would be 0 and norms 1, whatever is mistaken for what
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
        for name, statistics in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                statistics.add_(torch.rand_like(statistics))
    model.save_pretrained(path, max_shard_size=shard)
    return path


def loaded(path: Path, kind: str) -> Any:
    """The model as transformers loads it, for evaluation."""
    model = auto_class(kind).from_pretrained(path, dtype=torch.float32).eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # the kernels that are captured
    return model


def plain_losses(model: torch.nn.Module, workload: Workload, config: TrainConfig) -> list[float]:
    """A model trained by torch.optim alone, in one process, on the same samples; decay for all of two dimensions."""
    batches, trained = open_batches(config, workload), [w for w in model.parameters() if w.requires_grad]
    groups = [
        {"params": [w for w in trained if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in trained if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas), []
    for step in range(config.steps):
        total = 0.0
        for m in range(workload.num_micro_batches):
            inputs, labels, _ = batches.draw(step, m)
            output = model(inputs)
            logits = output.logits if hasattr(output, "logits") else output
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
            (loss / workload.tokens_per_step).backward()
            total += loss.item()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / workload.tokens_per_step)
    return losses
