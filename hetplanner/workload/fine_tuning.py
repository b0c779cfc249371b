"""Fine-tuning: which weights of a model are trained, and low-rank adapters beside the frozen ones; no torch.

A captured model says itself which of its weights are frozen (`Program.frozen`): adapters are then part of it.
"""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from hetplanner.errors import InvalidInput
from hetplanner.schema import Name, Noun, checked
from hetplanner.workload.transformer import TransformerConfig

USUAL_TARGETS: dict[str, tuple[str, ...]] = {"gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}
"""By family the linear layers that PEFT puts adapters beside."""


class Adapters(Noun):
    """Low-rank adapters: y = W x + alpha / rank · B A x with A of (rank, in) and B of (out, rank).

    Only A and B are trained. A begins as Kaiming-uniform values, B as zeros.

    Attributes:
        rank: rows of A.
        alpha: scale times rank.
        targets: linear layers by the names that transformers and PEFT have for them, such as q_proj or c_attn.

    Source: Hu et al. 2021 (LoRA, arXiv 2106.09685).
    """

    rank: Annotated[int, Field(strict=True, ge=1, le=4096)]
    alpha: Annotated[float, Field(strict=True, gt=0, le=1e6)]
    targets: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]

    @property
    def scale(self) -> float:
        """What B A x is multiplied by."""
        return self.alpha / self.rank

    @classmethod
    def parse(cls, text: str, family: str) -> Self:
        """From `RANK`, `RANK:ALPHA` or `RANK:ALPHA:TARGET,TARGET`, such as 8:16:q_proj,v_proj.

        Alpha is twice the rank if it is not given. Targets are then those that PEFT has for the family.

        Raises:
            InvalidInput: if the text says something else.
        """
        rank, *rest = text.split(":")
        try:
            fields = {"rank": int(rank), "alpha": float(rest[0]) if rest and rest[0] else 2.0 * int(rank)}
        except ValueError:
            fields = {}
        if not fields or len(rest) > 2:
            raise InvalidInput(f"adapters: must be rank[:alpha[:target,target]], such as 8:16, got {text!r:.60}")
        named = tuple(part.strip() for part in rest[1].split(",")) if len(rest) == 2 and rest[1] else ()
        return checked(cls, fields | {"targets": named or USUAL_TARGETS[family]}, "adapters")

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.rank}:{self.alpha:g}:{','.join(self.targets)}"


class FineTuning(Noun):
    """What of a transformer by formula is trained: adapters alone, or all behind some frozen layers.

    A weight that is tied to a frozen one is frozen, too: the head with the embedding, a layer with that whose weights
    it shares. Adapters of layers that share their weights are shared.

    Attributes:
        adapters: beside linear layers; all other weights are frozen.
        frozen_layers: without adapters: the embedding and so many layers from the front are frozen.
    """

    adapters: Adapters | None = None
    frozen_layers: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.adapters is not None) == (self.frozen_layers > 0):
            raise ValueError("either adapters or frozen_layers must be given: with adapters all layers are frozen")
        return self

    def __str__(self) -> str:
        """In words, such as 'adapters of rank 8'."""
        if self.adapters is not None:
            return f"adapters of rank {self.adapters.rank}"
        return f"the first {self.frozen_layers} layers frozen" if self.frozen_layers > 1 else "the first layer frozen"


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer of a transformer by formula, as transformers has it.

    Attributes:
        target: the last part of its name there, such as q_proj.
        half: kind of the op that has it: attention or mlp.
        module: our module's attribute, such as qkv.
        first_row: of that module's weight; query, key and value stand under one another in ours.
        wide_in, wide_out: features.
    """

    target: str
    half: str
    module: str
    first_row: int
    wide_in: int
    wide_out: int

    def adapter_elements(self, rank: int) -> int:
        """Weights of its adapter."""
        return rank * (self.wide_in + self.wide_out)


def linear_layers(config: TransformerConfig) -> tuple[LinearLayer, ...]:
    """The linear layers of each of a transformer's layers.

    GPT-2 calls two of them c_proj; as PEFT does, the name means both.
    """
    h, f, k = config.hidden, config.ffn, config.num_kv_heads * config.head_dim
    if config.family == "gpt2":
        return (
            LinearLayer("c_attn", "attention", "qkv", 0, h, h + 2 * k),
            LinearLayer("c_proj", "attention", "out", 0, h, h),
            LinearLayer("c_fc", "mlp", "up", 0, h, f),
            LinearLayer("c_proj", "mlp", "down", 0, f, h),
        )
    return (
        LinearLayer("q_proj", "attention", "qkv", 0, h, h),
        LinearLayer("k_proj", "attention", "qkv", h, h, k),
        LinearLayer("v_proj", "attention", "qkv", h + k, h, k),
        LinearLayer("o_proj", "attention", "out", 0, h, h),
        LinearLayer("gate_proj", "mlp", "gate", 0, h, f),
        LinearLayer("up_proj", "mlp", "up", 0, h, f),
        LinearLayer("down_proj", "mlp", "down", 0, f, h),
    )


def adapted_layers(config: TransformerConfig, adapters: Adapters) -> tuple[LinearLayer, ...]:
    """Those of a layer that have an adapter.

    Raises:
        ValueError: a target that the family does not have.
    """
    layers = linear_layers(config)
    known = sorted({layer.target for layer in layers})
    for target in adapters.targets:
        if target not in known:
            raise ValueError(
                f"adapters.targets: {config.family} has no linear layer {target!r:.60}; it has {', '.join(known)}"
            )
    return tuple(layer for layer in layers if layer.target in adapters.targets)
