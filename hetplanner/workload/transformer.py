"""Decoder-only transformers (GPT-2 and Llama families): configuration and OP-DAG by formula; no torch."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from hetplanner.errors import InvalidInput
from hetplanner.schema import Name, Noun, checked
from hetplanner.workload.model import Op, OpGraph, OpKind

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
    `llama`: rotary positions, RMSNorm, no biases, SwiGLU MLP (gate, up, down), grouped-query attention.

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
    boundary_layers: BoundaryLayers | None = None
    shared_layers: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.num_kv_heads}")
        return self

    @model_validator(mode="after")
    def _boundary_layers_fit(self) -> Self:
        if self.boundary_layers and self.hidden % self.boundary_layers.factor:
            factor = self.boundary_layers.factor
            raise ValueError(f"hidden must be a multiple of boundary_layers.factor, got {self.hidden} and {factor}")
        return self

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


def transformer_graph(config: TransformerConfig, *, seq_len: int, dtype_bytes: int) -> OpGraph:
    """The OP-DAG of a decoder-only transformer, per sample of `seq_len` tokens.

    Ops: `embedding`; `layer.<i>.attention` and `layer.<i>.mlp`, each with its norm in front and its residual
    addition; `final_norm`; `head` (logits); `loss` (mean cross-entropy, float32). Compression-aware layers are
    `layer.<i>.narrow` and `layer.<i + 1>.widen`, so the boundary between two layers lies where a token is narrowest.

    The arithmetic, with T tokens, h hidden, k = kv_heads · head_dim, f ffn, V vocab, b bytes an element:

    * A matmul of (m × k) by (k × n) is 2·m·n·k FLOPs. Scores are causal: only the T(T+1)/2 pairs that a token
      may see are counted, 2·h FLOPs each for the scores and again for the weighted values.
    * Elementwise work is small and counted by round numbers per element: LayerNorm 8, RMSNorm 4, softmax 5,
      GELU 8, SiLU and product 6, rotation 6, residual and bias 1, greatest of several features 1.
    * Backward is two matmuls (gradient of the input, of the weight) for each one forward, elementwise work
      twice; so backward = 2 × forward, except for the embedding (a scatter-add) and the loss (softmax minus
      target).
    * Kept from forward to backward are the inputs of every matmul and non-linear function and the norms'
      float32 statistics. Attention keeps q, k, v, its output and the float32 log-sum-exp a row, never the
      T × T scores (as `scaled_dot_product_attention` does); dropout keeps one byte an element of the residual
      branch; the greatest of several features keeps its place as an int64.

    Args:
        config: the model's shape.
        seq_len: tokens in a sample.
        dtype_bytes: bytes of an element of weights and activations.

    Source: Radford et al. 2019 and Touvron et al. 2023 (shapes); Kaplan et al. 2020, section 2.1 (FLOPs);
        Korthikanti et al. 2022, section 4 (kept activations); Dao et al. 2022 (scores not kept).
    """
    shape = _Shape(config, seq_len, dtype_bytes)
    ops = [shape.embedding()]
    behind = config.boundary_layers
    for layer in range(config.layers):
        ops.append(shape.attention(layer, reads=ops[-1].name))
        ops.append(shape.mlp(layer, reads=ops[-1].name))
        if behind and behind.is_behind(layer, config.layers):
            ops.append(shape.narrow(layer, reads=ops[-1].name))
            ops.append(shape.widen(layer + 1, reads=ops[-1].name))
    ops.append(shape.final_norm(reads=ops[-1].name))
    ops += [shape.head(), shape.loss()]
    return OpGraph(ops=tuple(ops))


class _Shape:
    """Formulas of one transformer at one sequence length; see `transformer_graph` for the letters."""

    def __init__(self, config: TransformerConfig, seq_len: int, dtype_bytes: int) -> None:
        self.config = config
        self.llama = config.family == "llama"
        self.T, self.b = seq_len, dtype_bytes
        self.h, self.f, self.V = config.hidden, config.ffn, config.vocab
        self.k = config.num_kv_heads * config.head_dim
        self.norm_params, self.norm_flops, self.norm_kept = self._norm(self.h)
        self.mask_kept = self.T * self.h if config.dropout else 0

    def _norm(self, width: int) -> tuple[int, int, int]:
        """Parameters, forward FLOPs and kept bytes of a norm.

        It keeps its input, and per token in float32 the reciprocal deviation, for LayerNorm also the mean.
        """
        kept = self.T * width * self.b + self.T * 4 * (1 if self.llama else 2)
        return (width if self.llama else 2 * width), (4 if self.llama else 8) * self.T * width, kept

    def embedding(self) -> Op:
        positions = 0 if self.llama else self.config.max_seq_len * self.h
        return Op(
            name="embedding",
            kind="embedding",
            num_params=self.V * self.h + positions,
            forward_flops=0 if self.llama else self.T * self.h,  # adds the position
            backward_flops=(1 if self.llama else 2) * self.T * self.h,  # adds into the rows
            activation_bytes=8 * self.T + self.mask_kept,  # token ids, int64
            output_bytes=self.T * self.h * self.b,
        )

    def attention(self, layer: int, reads: str) -> Op:
        T, h, k, heads = self.T, self.h, self.k, self.config.heads
        weights = h * (h + 2 * k) + h * h
        biases = 0 if self.llama else (h + 2 * k) + h
        pairs = T * (T + 1) // 2
        matmuls = 2 * T * weights + 2 * 2 * h * pairs
        small = self.norm_flops + 5 * heads * pairs + T * biases + T * h + (6 * T * (h + k) if self.llama else 0)
        # Norm output, q, k, v and attention output in the dtype, log-sum-exp in float32.
        kept = self.norm_kept + T * (h + (h + 2 * k) + h) * self.b + 4 * T * heads + self.mask_kept
        return self._block("attention", layer, reads, weights + biases, matmuls + small, kept)

    def mlp(self, layer: int, reads: str) -> Op:
        T, h, f = self.T, self.h, self.f
        weights = (3 if self.llama else 2) * h * f
        biases = 0 if self.llama else f + h
        small = self.norm_flops + (6 if self.llama else 8) * T * f + T * biases + T * h
        # Norm output; then gate, up, SiLU(gate) and the product, or the GELU's input and output.
        kept = self.norm_kept + T * (h + (4 if self.llama else 2) * f) * self.b + self.mask_kept
        return self._block("mlp", layer, reads, weights + biases, 2 * T * weights + small, kept)

    def _block(self, kind: OpKind, layer: int, reads: str, params: int, flops: int, kept: int) -> Op:
        owner = self.config.owner_of(layer)
        op = self._in_layer(kind, layer, reads, self.norm_params + params, flops, kept, self.h)
        return op if owner == layer else op.replace(tied=f"layer.{owner}.{kind}")

    def narrow(self, layer: int, reads: str) -> Op:
        T, h, w = self.T, self.h, self.config.narrow_width
        params, flops, kept = (a + b for a, b in zip(self._norm(h), self._norm(w), strict=True))
        assert self.config.boundary_layers is not None
        if self.config.boundary_layers.kind == "maxout":
            return self._in_layer("narrow", layer, reads, params, flops + T * h, kept + 8 * T * w, w)
        bias = 0 if self.llama else w
        flops += 2 * T * h * w + T * bias
        return self._in_layer("narrow", layer, reads, params + h * w + bias, flops, kept + T * h * self.b, w)

    def widen(self, layer: int, reads: str) -> Op:
        T, h, w = self.T, self.h, self.config.narrow_width
        bias = 0 if self.llama else h
        flops = 2 * T * w * h + T * bias
        return self._in_layer("widen", layer, reads, w * h + bias, flops, T * w * self.b, h)

    def _in_layer(self, kind: OpKind, layer: int, reads: str, params: int, flops: int, kept: int, wide_out: int) -> Op:
        return Op(
            name=f"layer.{layer}.{kind}",
            kind=kind,
            layer=layer,
            inputs=(reads,),
            num_params=params,
            forward_flops=flops,
            backward_flops=2 * flops,
            activation_bytes=kept,
            output_bytes=self.T * wide_out * self.b,
        )

    def final_norm(self, reads: str) -> Op:
        return Op(
            name="final_norm",
            kind="norm",
            inputs=(reads,),
            num_params=self.norm_params,
            forward_flops=self.norm_flops,
            backward_flops=2 * self.norm_flops,
            activation_bytes=self.norm_kept,
            output_bytes=self.T * self.h * self.b,
        )

    def head(self) -> Op:
        flops = 2 * self.T * self.h * self.V
        return Op(
            name="head",
            kind="head",
            inputs=("final_norm",),
            num_params=self.V * self.h,
            tied="embedding" if self.config.tie_embeddings else None,
            forward_flops=flops,
            backward_flops=2 * flops,
            activation_bytes=self.T * self.h * self.b,
            output_bytes=self.T * self.V * self.b,
        )

    def loss(self) -> Op:
        return Op(
            name="loss",
            kind="loss",
            inputs=("head",),
            forward_flops=5 * self.T * self.V,
            backward_flops=2 * self.T * self.V,
            activation_bytes=4 * self.T * self.V + 8 * self.T,  # float32 log-probabilities, int64 targets
            output_bytes=4,
        )
