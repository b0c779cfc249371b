"""The OP-DAG of a decoder-only transformer by formula; no torch."""

from collections import Counter

from hetplanner.workload.fine_tuning import FineTuning, LinearLayer, adapted_layers, linear_layers
from hetplanner.workload.model import Op, OpGraph, OpKind
from hetplanner.workload.transformer import TransformerConfig

RESIDUAL_BYTES = 4
"""Of an element of the residual stream, of norms' inputs and of their gradients: float32 in every format."""

LOSS_ELEMENTS = 2**20
"""Logits whose loss is computed at once: whole tokens, at least one."""


def transformer_graph(
    config: TransformerConfig, *, seq_len: int, dtype_bytes: int, fine_tuning: FineTuning | None = None
) -> OpGraph:
    """The OP-DAG of a decoder-only transformer, per sample of `seq_len` tokens.

    Ops: `embedding`; `layer.<i>.attention` and `layer.<i>.mlp`, each with its norm in front and its residual
    addition; `final_norm`; `head` (logits); `loss` (mean cross-entropy, float32). Compression-aware layers are
    `layer.<i>.narrow` and `layer.<i + 1>.widen`, so the boundary between two layers lies where a token is narrowest.

    The arithmetic, with T tokens, h hidden, k = kv_heads · head_dim, f ffn, V vocab, r rank, b bytes an element:

    * A matmul of (m × k) by (k × n) is 2·m·n·k FLOPs. Scores are causal: only the T(T+1)/2 pairs that a token
      may see are counted, 2·h FLOPs each for the scores and again for the weighted values.
    * Elementwise work is small and counted by round numbers per element: LayerNorm 8, RMSNorm 4, softmax 5,
      GELU 8, SiLU and product 6, rotation 6, residual and bias 1, greatest of several features 1, adapter's sum 2.
    * Backward is two matmuls (gradient of the input, of the weight) for each one forward, elementwise work
      twice; so backward = 2 × forward, except for the embedding (a scatter-add) and the loss (softmax minus
      target).
    * A frozen matmul has the gradient of its input alone, a frozen norm likewise, a frozen bias none. An adapter is
      two matmuls, 2·T·r·(in + out) FLOPs. Where nothing in front is trained there is no gradient of the input:
      an op in front of the first trained weight has no backward at all, and what comes first in an op neither.
    * Kept from forward to backward are the inputs of every matmul and non-linear function and the norms'
      float32 statistics. The residual stream is float32, so norms keep their input in 4 bytes; RMSNorm keeps it
      scaled, too. Attention keeps q, k, v, its output and the float32 log-sum-exp a row, never
      the T × T scores (as `scaled_dot_product_attention` does); dropout keeps a mask of the residual branch in its
      dtype; the greatest of several features keeps its place as an int64; the loss keeps the logits.
    * Working bytes are those of a backward beside what is kept: gradients of the residual stream and of the widest
      tensors, until they are used up. The gradient of the largest weight is there before it is added to the others.
    * A frozen matmul keeps no input. An adapter keeps that of its layer, and T·r elements between its two matrices.

    Args:
        config: the model's shape.
        seq_len: tokens in a sample.
        dtype_bytes: bytes of an element of weights and activations.
        fine_tuning: what is trained; None for all.

    Source: Radford et al. 2019 and Touvron et al. 2023 (shapes); Kaplan et al. 2020, section 2.1 (FLOPs);
        Korthikanti et al. 2022, section 4 (kept activations); Dao et al. 2022 (scores not kept); Hu et al. 2021
        (LoRA, arXiv 2106.09685).
    """
    shape = _Shape(config, seq_len, dtype_bytes, fine_tuning)
    shape.add(shape.embedding())
    behind = config.boundary_layers
    for layer in range(config.layers):
        shape.add(shape.attention(layer))
        shape.add(shape.mlp(layer))
        if behind and behind.is_behind(layer, config.layers):
            shape.add(shape.narrow(layer))
            shape.add(shape.widen(layer + 1))
    for op in (shape.final_norm, shape.head, shape.loss):
        shape.add(op())
    return OpGraph(ops=tuple(shape.ops))


class _Shape:
    """Formulas of one transformer at one sequence length; see `transformer_graph` for the letters."""

    def __init__(self, config: TransformerConfig, seq_len: int, dtype_bytes: int, tuning: FineTuning | None) -> None:
        self.config, self.tuning = config, tuning
        self.llama = config.family == "llama"
        self.T, self.b = seq_len, dtype_bytes
        self.h, self.f, self.V = config.hidden, config.ffn, config.vocab
        self.k = config.num_kv_heads * config.head_dim
        self.mask_kept = self.T * self.h * self.b if config.dropout else 0
        self.residual = RESIDUAL_BYTES * self.T * self.h
        self.cast = self.T * self.h * self.b if self.b < RESIDUAL_BYTES else 0  # a gradient in the dtype of products
        adapters = tuning.adapters if tuning else None
        self.rank = adapters.rank if adapters else 0
        self.adapted = adapted_layers(config, adapters) if adapters else ()
        self.linears = linear_layers(config)
        self.ops: list[Op] = []
        self.flows = False
        """Whether the next op's input has a gradient: something in front of it is trained."""

    def add(self, op: Op) -> None:
        """Appends the next op."""
        self.ops.append(op)
        self.flows = self.flows or op.trained > 0

    def trains(self, layer: int) -> bool:
        """Whether a layer's own weights are trained, adapters aside."""
        return self.tuning is None or (not self.rank and layer >= self.tuning.frozen_layers)

    def embedding(self) -> Op:
        positions = 0 if self.llama else self.config.max_seq_len * self.h
        trained = self.tuning is None
        return Op(
            name="embedding",
            kind="embedding",
            num_params=self.V * self.h + positions,
            num_trained=None if trained else 0,
            forward_flops=0 if self.llama else self.T * self.h,  # adds the position
            backward_flops=(1 if self.llama else 2) * self.T * self.h * trained,  # adds into the rows
            # Token ids, int64; the residual stream's mask.
            activation_bytes=(8 * self.T + self.residual * bool(self.mask_kept)) * trained,
            working_bytes=self.residual * trained,
            largest_weight=self.V * self.h * trained,
            output_bytes=self.T * self.h * self.b,
        )

    def attention(self, layer: int) -> Op:
        T, h, k, heads = self.T, self.h, self.k, self.config.heads
        half = _Half(self, "attention", layer)
        half.norm(h)
        *first, last = (linear for linear in self.linears if linear.half == "attention")
        half.linears(first, h, bias=h + 2 * k if self.config.has_qkv_bias else 0)
        pairs = T * (T + 1) // 2
        half.work(2 * 2 * h * pairs + 5 * heads * pairs + (6 * T * (h + k) if self.llama else 0))
        # q, k, v and attention output in the dtype, log-sum-exp in float32.
        half.keep(T * (h + 2 * k) * self.b + 4 * T * heads)
        is_output_kept = half.flows
        half.keep(T * h * self.b)
        half.linears([last], h, bias=0 if self.llama else h, is_input_kept=is_output_kept)
        return half.op(working=(h + 2 * (h + 2 * k)) * T * self.b)

    def mlp(self, layer: int) -> Op:
        T, h, f = self.T, self.h, self.f
        half = _Half(self, "mlp", layer)
        half.norm(h)
        *first, last = (linear for linear in self.linears if linear.half == "mlp")
        if self.llama:
            gate, up = (half.linear_flows(linear) for linear in first)
            half.linears(first, h, bias=0)
            half.work(6 * T * f)
            # Gate for SiLU; for the product's gradients each its other factor.
            half.kept += T * f * self.b * (2 * gate + up)
        else:
            half.linears(first, h, bias=f)
            half.work(8 * T * f)
            half.keep(T * f * self.b)
        half.linears([last], f, bias=0 if self.llama else h)
        return half.op(working=(2 if self.llama else 1) * T * f * self.b + self.cast)

    def narrow(self, layer: int) -> Op:
        T, h, w = self.T, self.h, self.config.narrow_width
        half = _Half(self, "narrow", layer)
        half.norm(h)
        assert self.config.boundary_layers is not None
        if self.config.boundary_layers.kind == "maxout":
            half.work(T * h)
            half.keep(8 * T * w)
        else:
            half.linears([LinearLayer("", "narrow", "", 0, h, w)], h, bias=0 if self.llama else w)
        half.norm(w)
        return half.op(w, working=2 * RESIDUAL_BYTES * T * w)

    def widen(self, layer: int) -> Op:
        half, w = _Half(self, "widen", layer), self.config.narrow_width
        half.linears([LinearLayer("", "widen", "", 0, w, self.h)], w, bias=0 if self.llama else self.h)
        return half.op(working=self.T * w * self.b + self.cast)

    def final_norm(self) -> Op:
        half = _Half(self, "norm", self.config.layers)
        half.norm(self.h)
        return half.op(working=self.residual).replace(name="final_norm", layer=None)

    def head(self) -> Op:
        flops = 2 * self.T * self.h * self.V
        # A weight that is tied to a frozen one is frozen.
        trained = self.tuning is None or (not self.rank and not self.config.tie_embeddings)
        return Op(
            name="head",
            kind="head",
            inputs=("final_norm",),
            num_params=self.V * self.h,
            num_trained=None if trained else 0,
            tied="embedding" if self.config.tie_embeddings else None,
            forward_flops=flops,
            backward_flops=(1 + trained) * flops,
            activation_bytes=self.T * self.h * self.b * trained,
            working_bytes=(self.residual + self.cast) * (self.flows or trained),
            largest_weight=self.V * self.h * trained,
            output_bytes=self.T * self.V * self.b,
        )

    def loss(self) -> Op:
        return Op(
            name="loss",
            kind="loss",
            inputs=("head",),
            forward_flops=5 * self.T * self.V,
            backward_flops=2 * self.T * self.V,
            activation_bytes=self.T * self.V * self.b + 8 * self.T,  # logits, int64 targets
            output_bytes=4,
        )


class _Half:
    """An op of a layer, part by part, in the order in which they compute.

    Attributes:
        flows: whether what was computed last has a gradient.
    """

    def __init__(self, shape: _Shape, kind: OpKind, layer: int) -> None:
        self.shape, self.kind, self.layer = shape, kind, layer
        # Of those that share weights all are frozen with the first.
        self.owner = shape.config.owner_of(layer) if kind in ("attention", "mlp") else layer
        self.trained = shape.trains(self.owner)
        self.is_branch = kind in ("attention", "mlp")
        self.flows = shape.flows
        self.params = self.adapter_params = self.forward = self.backward = self.kept = self.largest_weight = 0

    def norm(self, width: int) -> None:
        """It keeps its input, and per token in float32 the reciprocal deviation, for LayerNorm also the mean.

        RMSNorm keeps the scaled input for the gradient of its weight.
        """
        llama, T = self.shape.llama, self.shape.T
        flops = (4 if llama else 8) * T * width
        self.params += width if llama else 2 * width
        self.forward += flops
        self.backward += flops * (self.flows + self.trained)
        self.flows = self.flows or self.trained
        self.keep(RESIDUAL_BYTES * T * width * (1 + (llama and self.trained)) + T * 4 * (1 if llama else 2))

    def linear_flows(self, linear: LinearLayer) -> bool:
        """Whether the output of a linear layer behind what was computed last has a gradient."""
        return self.flows or self.trained or linear in self.shape.adapted

    def linears(self, layers: list[LinearLayer], wide_in: int, *, bias: int, is_input_kept: bool = False) -> None:
        """Linear layers of one input, with their adapters.

        Args:
            layers: side by side.
            wide_in: features of the input.
            bias: features that have one.
            is_input_kept: whether it is kept already.
        """
        T, rank = self.shape.T, self.shape.rank
        adapted = [linear for linear in layers if linear in self.shape.adapted]
        for linear in layers:
            flops = 2 * T * linear.wide_in * linear.wide_out
            self.params += linear.wide_in * linear.wide_out
            self.forward += flops
            self.backward += flops * (self.flows + self.trained)
        if self.trained:
            sizes: Counter[str] = Counter()
            for linear in layers:
                sizes[linear.module] += linear.wide_in * linear.wide_out  # one weight, as wide as all of the module's
            self.largest_weight = max(self.largest_weight, *sizes.values())
        for linear in adapted:
            inner, outer, added = 2 * T * rank * linear.wide_in, 2 * T * rank * linear.wide_out, 2 * T * linear.wide_out
            self.adapter_params += linear.adapter_elements(rank)
            self.forward += inner + outer + added
            self.backward += inner * (1 + self.flows) + 2 * outer + added
            self.kept += T * rank * self.shape.b
        self.params += bias
        self.forward += T * bias
        self.backward += 2 * T * bias * self.trained
        if (self.trained or adapted) and not is_input_kept:
            self.kept += T * wide_in * self.shape.b
        self.flows = self.flows or self.trained or bool(adapted)

    def work(self, flops: int) -> None:
        """Work without weights; its backward is twice its forward."""
        self.forward += flops
        self.backward += 2 * flops * self.flows

    def keep(self, num_bytes: int) -> None:
        """Bytes that a backward needs, if there is one."""
        self.kept += num_bytes * self.flows

    def op(self, wide_out: int | None = None, *, working: int) -> Op:
        """What the parts are together; attention and MLP have their residual addition behind them.

        Args:
            wide_out: features of the output; None for the model's width.
            working: bytes of a backward beside the residual stream's gradient.
        """
        shape = self.shape
        if self.is_branch:
            self.forward += shape.T * shape.h
            self.backward += 2 * shape.T * shape.h * self.flows
            self.keep(shape.mask_kept)
        return Op(
            name=f"layer.{self.layer}.{self.kind}",
            kind=self.kind,
            layer=self.layer,
            inputs=(shape.ops[-1].name,),
            num_params=self.params + self.adapter_params,
            num_trained=None if self.trained else self.adapter_params,
            tied=None if self.owner == self.layer else f"layer.{self.owner}.{self.kind}",
            forward_flops=self.forward,
            backward_flops=self.backward,
            activation_bytes=self.kept,
            working_bytes=(shape.residual + working) * self.flows,
            largest_weight=self.largest_weight,
            output_bytes=shape.T * (shape.h if wide_out is None else wide_out) * shape.b,
        )
