"""Decoder-only transformers (GPT-2 and Llama families): their shape; no torch."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from hetplanner.errors import InvalidInput
from hetplanner.schema import Name, Noun, checked

Size = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
BoundaryKind = Literal["bottleneck", "maxout"]
BOUNDARY_KINDS: tuple[str, ...] = get_args(BoundaryKind)


class BoundaryLayers(Noun):
    """Compression-aware layers: between every `every` layers and the next a narrow part and a part that widens again.

    `bottleneck`: norm, linear to hidden / factor, norm | linear to hidden.
    `maxout`: norm, the greatest of `factor` neighbouring features, norm | linear to hidden.

    A stage that ends at the bar sends hidden / factor elements a token. The layers stand at fixed places of the model,
    not where a plan happens to cut it: so the model, its initial weights and what it learns are the same in every plan.

    Source: Ryabinin et al. 2023 (SWARM, arXiv 2301.11913), compression-aware architectures.
    """

    kind: BoundaryKind
    factor: Literal[2, 4]
    every: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `KIND:FACTOR` or `KIND:FACTOR:EVERY`, such as bottleneck:4 or maxout:2:6. Raises InvalidInput."""
        kind, *numbers = text.split(":")
        if len(numbers) not in (1, 2) or not all(n.isascii() and n.isdecimal() and len(n) < 5 for n in numbers):
            raise InvalidInput(
                f"boundary_layers: must be kind:factor[:every], such as bottleneck:4:6, got {text!r:.60}"
            )
        fields = dict(zip(("factor", "every"), map(int, numbers), strict=False))
        return checked(cls, {"kind": kind, **fields}, "boundary_layers")

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.kind}:{self.factor}" + (f":{self.every}" if self.every > 1 else "")

    def is_behind(self, layer: int, layers: int) -> bool:
        """Whether one stands behind this layer of so many; none does behind the last."""
        return (layer + 1) % self.every == 0 and layer + 1 < layers


class TransformerConfig(Noun):
    """Shape of a decoder-only transformer.

    `gpt2`: learned positions, LayerNorm with bias, biases everywhere, GELU MLP of width `ffn`.
    `llama`: rotary positions, RMSNorm, no biases, SwiGLU MLP (gate, up, down), grouped-query attention. With `qkv_bias`
        queries, keys and values have biases, as in Qwen2.

    Attributes:
        boundary_layers: compression-aware layers, where stages may end.
        shared_layers: so many consecutive layers share one set of weights (Lan et al. 2020, ALBERT, section 3.1).
    """

    family: Literal["gpt2", "llama"] = "gpt2"
    name: Name = "transformer"
    vocab: Size
    max_seq_len: Size
    hidden: Size
    layers: Annotated[int, Field(strict=True, ge=1, le=1000)]
    heads: Annotated[int, Field(strict=True, ge=1, le=1024)]
    kv_heads: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    ffn: Size
    tie_embeddings: bool = True
    dropout: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    norm_eps: Annotated[float, Field(strict=True, gt=0, lt=1)] = 1e-5
    rope_theta: Annotated[float, Field(strict=True, gt=0)] = 10_000.0
    qkv_bias: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    boundary_layers: BoundaryLayers | None = None
    shared_layers: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.num_kv_heads}")
        if self.qkv_bias and self.family == "gpt2":
            raise ValueError("qkv_bias: is of family llama; gpt2 has biases everywhere, leave it out")
        return self

    @model_validator(mode="after")
    def _boundary_layers_fit(self) -> Self:
        if self.boundary_layers and self.hidden % self.boundary_layers.factor:
            factor = self.boundary_layers.factor
            raise ValueError(f"hidden must be a multiple of boundary_layers.factor, got {self.hidden} and {factor}")
        return self

    @property
    def has_qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.qkv_bias or self.family == "gpt2"

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads; equal to `heads` unless grouped."""
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def narrow_width(self) -> int:
        """Width of what crosses a boundary with compression-aware layers."""
        return self.hidden // (self.boundary_layers.factor if self.boundary_layers else 1)

    def owner_of(self, layer: int) -> int:
        """The layer whose weights this layer uses: the first of those that share."""
        return layer - layer % self.shared_layers
