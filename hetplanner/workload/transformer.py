"""Decoder-only transformers (GPT-2 and Llama families): configuration and OP-DAG by formula, without torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hetplanner.schema import Name, Noun

Size = Annotated[int, Field(ge=1, le=1_000_000)]


class TransformerConfig(Noun):
    """Shape of a decoder-only transformer.

    `gpt2`: learned positions, LayerNorm with bias, biases everywhere, GELU MLP of width `ffn`.
    `llama`: rotary positions, RMSNorm, no biases, SwiGLU MLP (gate, up, down), grouped-query attention.
    """

    family: Literal["gpt2", "llama"] = "gpt2"
    name: Name = "transformer"
    vocab: Size
    max_seq_len: Size
    hidden: Size
    layers: Annotated[int, Field(ge=1, le=1000)]
    heads: Annotated[int, Field(ge=1, le=1024)]
    kv_heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    ffn: Size
    tie_embeddings: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    norm_eps: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.num_kv_heads}")
        return self

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads; equal to `heads` unless grouped."""
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads
