"""Our GPT-2-style and Llama-style transformers, one `nn.Module` per op of the OP-DAG.

A stage is a list of these modules. Each reads the tensor of the op before it; `embedding` reads tokens,
`loss` reads labels too. Weights have no storage here: they become views into one flat buffer (see `build`),
which `initial` fills.

Shape legend: B sequences in a micro-batch, T tokens, C hidden width, H heads, K key/value heads, E head width,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.runtime.device_group import cross_entropy, sharded_weights
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup, part_range
from hetplanner.runtime.model.cross_entropy import summed_cross_entropy
from hetplanner.runtime.model.precision import lowered
from hetplanner.runtime.rng import RngKey, stable_seed
from hetplanner.workload.fine_tuning import Adapters, LinearLayer, adapted_layers
from hetplanner.workload.transformer import TransformerConfig

ADAPTER_LEAVES = ("lora_A", "lora_B")
"""What PEFT calls an adapter's two weights."""


def drop(x: Tensor, share: float, key: RngKey | None, op_index: int, group: DeviceGroup = ALONE) -> Tensor:
    """Dropout drawn from (seed, step, micro-batch, op); `key` None leaves `x` alone (evaluation).

    Members of a group draw for all tokens and take their own part, so that they drop what one device drops.
    """
    if share == 0.0 or key is None:
        return x
    generator = torch.Generator(x.device).manual_seed(stable_seed(key.seed, key.step, key.micro_batch, op_index))
    kept = torch.empty_like(x) if group.degree == 1 else x.new_empty(group.whole_shape(x.shape))
    mine = group.own_part(kept.bernoulli_(1.0 - share, generator=generator))
    if group.degree > 1:
        mine = mine.clone()  # backward keeps it: not that of all tokens
    return x * mine.div_(1.0 - share)


def unfilled(*shape: int) -> nn.Parameter:
    """A weight without storage; `build` gives it a view into the stage's flat buffer.

    torch's own layers would draw initial values here, which are thrown away (and cost 0.6 s on the meta device).
    """
    return nn.Parameter(torch.empty(shape, device="meta"))


class Linear(nn.Module):
    """x · weightᵀ (+ bias)."""

    def __init__(self, wide_in: int, wide_out: int, bias: bool, group: DeviceGroup = ALONE) -> None:
        super().__init__()
        self.group, self.wide_out = group, wide_out
        self.weight = unfilled(wide_out, wide_in)
        self.bias = unfilled(wide_out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Projects the last axis."""
        if self.group.divides_samples:
            return sharded_weights.linear(x, self.weight, self.bias, self.wide_out, self.group)
        return F.linear(x, lowered(self.weight), None if self.bias is None else lowered(self.bias))


class Norm(nn.Module):
    """LayerNorm with bias for GPT-2, RMSNorm for Llama."""

    def __init__(self, config: TransformerConfig, width: int | None = None) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = unfilled(width or config.hidden)
        self.bias = unfilled(width or config.hidden) if config.family == "gpt2" else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis."""
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Rows(nn.Module):
    """A table whose rows are looked up."""

    def __init__(self, num_rows: int, width: int, group: DeviceGroup = ALONE) -> None:
        super().__init__()
        self.group, self.num_rows = group, num_rows
        self.weight = unfilled(num_rows, width)

    def forward(self, index: Tensor) -> Tensor:
        """The rows of these indices."""
        if self.group.divides_samples:
            return sharded_weights.rows(index, self.weight, self.num_rows, self.group)
        return F.embedding(index, self.weight)


@dataclass(frozen=True, slots=True)
class DocumentMask:
    """What a token sees where several documents are packed into a sequence: its own document alone.

    Rotary positions need nothing: what they give depends on distances alone.

    Attributes:
        seen_B1TT: whether a token (next to last axis) sees another (last axis).
        position_BT: of each token in its document, from 0.
    """

    seen_B1TT: Tensor
    position_BT: Tensor

    @staticmethod
    def of(documents_BT: Tensor) -> DocumentMask:
        """From which document each token is of; tokens of one stand together."""
        T = documents_BT.shape[1]
        place_T = torch.arange(T, device=documents_BT.device)
        is_same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
        begins_BT = F.pad(documents_BT[:, 1:] != documents_BT[:, :-1], (1, 0))
        begin_BT = torch.where(begins_BT, place_T, 0).cummax(dim=1).values
        seen_BTT = is_same_BTT & (place_T[:, None] >= place_T)
        return DocumentMask(seen_BTT[:, None], place_T - begin_BT)


class Adapter(nn.Module):
    """A low-rank adapter: x · Aᵀ · Bᵀ times its scale.

    Source: Hu et al. 2021 (LoRA, arXiv 2106.09685).
    """

    def __init__(self, layer: LinearLayer, adapters: Adapters) -> None:
        super().__init__()
        self.scale, self.first_row, self.end_row = adapters.scale, layer.first_row, layer.first_row + layer.wide_out
        self.lora_A = unfilled(adapters.rank, layer.wide_in)
        self.lora_B = unfilled(layer.wide_out, adapters.rank)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """`y`, which the linear layer gave for `x`, with the adapter's rows added; `y` is used up."""
        added = F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale
        if added.shape == y.shape:
            return y + added
        y[..., self.first_row : self.end_row] += added
        return y


class OpModule(nn.Module):
    """Base of all ops' modules.

    Args:
        config: of the model.
        op_index: of the op.
        adapters: beside some of the linear layers.
        group: whose members share the op; each holds its part of the weights.

    Attributes:
        layer_half: as `LinearLayer` calls it; '' for ops that are no half of a layer.
    """

    layer_half: ClassVar[str] = ""

    def __init__(
        self, config: TransformerConfig, op_index: int, adapters: Adapters | None = None, group: DeviceGroup = ALONE
    ) -> None:
        super().__init__()
        self.config, self.group = config, group
        self.op_index = op_index
        self._adapters_of: dict[str, list[str]] = {}  # by attribute of a linear layer: attributes of its adapters
        if adapters is not None:
            for layer in adapted_layers(config, adapters):
                if layer.half == self.layer_half:
                    self.add_module(layer.target, Adapter(layer, adapters))
                    self._adapters_of.setdefault(layer.module, []).append(layer.target)
        self._add_layers(config)

    def _add_layers(self, config: TransformerConfig) -> None:
        """Makes the op's own layers and weights; only the loss has none."""
        return

    def project(self, name: str, x: Tensor) -> Tensor:
        """What a linear layer gives, its adapters included."""
        y: Tensor = getattr(self, name)(x)
        for target in self._adapters_of.get(name, ()):
            y = getattr(self, target)(x, y)
        return y

    def column_parallel(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """What linear layers give that are divided by rows: of all tokens, this member's rows of each."""
        if self.group.tensor_degree == 1:
            return tuple(self.project(name, x) for name in names)
        layers: list[Linear] = [getattr(self, name) for name in names]
        biases = [None if layer.bias is None else lowered(layer.bias) for layer in layers]
        return self.group.column_parallel(x, [lowered(layer.weight) for layer in layers], biases)

    def row_parallel(self, name: str, x: Tensor) -> Tensor:
        """What a linear layer gives that is divided by columns: the members' sum, of this one's tokens."""
        if self.group.tensor_degree == 1:
            return self.project(name, x)
        layer: Linear = getattr(self, name)
        y = self.group.scattered_sum(F.linear(x, lowered(layer.weight)))
        return y if layer.bias is None else y + lowered(layer.bias)

    def linear(self, wide_in: int, wide_out: int) -> Linear:
        """The family's linear layer: GPT-2 has biases, Llama has none."""
        return Linear(wide_in, wide_out, bias=self.config.family == "gpt2", group=self.group)


class Embedding(OpModule):
    """Token rows, for GPT-2 with learned positions added: [B, T] int64 → [B, T, C]."""

    def _add_layers(self, config: TransformerConfig) -> None:
        self.tokens = Rows(config.vocab, config.hidden, self.group)
        self.positions = Rows(config.max_seq_len, config.hidden, self.group) if config.family == "gpt2" else None

    def forward(self, tokens_BT: Tensor, key: RngKey | None = None, mask: DocumentMask | None = None) -> Tensor:
        """Looks the tokens up; positions count from the beginning of each document."""
        x_BTC = self._rows(tokens_BT)
        if self.positions is not None:
            if mask is None and self.group.divides_samples:
                x_BTC = x_BTC + self.positions(torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None])
            elif mask is None:
                x_BTC = x_BTC + self.group.own_tokens(self.positions.weight[None, : tokens_BT.shape[1]])
            else:
                x_BTC = x_BTC + self.positions(self.group.own_tokens(mask.position_BT))
        return drop(x_BTC, self.config.dropout, key, self.op_index, self.group)

    def _rows(self, tokens_BT: Tensor) -> Tensor:
        """Of this member's tokens: each member adds the rows of its words."""
        if self.group.tensor_degree == 1:
            rows: Tensor = self.tokens(tokens_BT)
            return rows
        first, end = part_range(self.config.vocab, self.group.index, self.group.degree)
        is_elsewhere_BT = (tokens_BT < first) | (tokens_BT >= end)
        rows = self.tokens((tokens_BT - first).masked_fill(is_elsewhere_BT, 0))
        return self.group.scattered_sum(rows.masked_fill(is_elsewhere_BT[..., None], 0.0))


class Attention(OpModule):
    """Norm, causal self-attention, projection, residual: [B, T, C] → [B, T, C]."""

    layer_half = "attention"

    def _add_layers(self, config: TransformerConfig) -> None:
        kv_width = config.num_kv_heads * config.head_dim
        self.norm_in = Norm(config)
        self.qkv = Linear(config.hidden, config.hidden + 2 * kv_width, bias=config.has_qkv_bias, group=self.group)
        self.out = self.linear(config.hidden, config.hidden)

    def forward(self, x_BTC: Tensor, key: RngKey | None = None, mask: DocumentMask | None = None) -> Tensor:
        """One attention half of a layer; a token sees those before it, of its own document."""
        c = self.config
        (wide,) = self.column_parallel(self.norm_in(x_BTC), "qkv")
        B, T, _ = wide.shape
        H, K = c.heads // self.group.tensor_degree, c.num_kv_heads // self.group.tensor_degree
        wide = wide.view(B, T, H + 2 * K, c.head_dim).transpose(1, 2)
        q_BHTE, k_BKTE, v_BKTE = wide.split((H, K, K), dim=1)
        if c.family == "llama":
            turn = rotation(T, c.head_dim, c.rope_theta, x_BTC.device)
            q_BHTE, k_BKTE = rotated(q_BHTE, *turn), rotated(k_BKTE, *turn)
            v_BKTE = v_BKTE.clone()  # a view would keep queries and keys, which are needed rotated only
        grouped = c.num_kv_heads != c.heads
        seen = None if mask is None else mask.seen_B1TT
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, attn_mask=seen, is_causal=seen is None, enable_gqa=grouped
        )
        y_BTC = self.row_parallel("out", y_BHTE.transpose(1, 2).reshape(B, T, H * c.head_dim))
        return x_BTC + drop(y_BTC, c.dropout, key, self.op_index, self.group)


class Mlp(OpModule):
    """Norm, feed-forward, residual: [B, T, C] → [B, T, C]. GELU for GPT-2, SwiGLU for Llama."""

    layer_half = "mlp"

    def _add_layers(self, config: TransformerConfig) -> None:
        self.norm_in = Norm(config)
        self.gate = self.linear(config.hidden, config.ffn) if config.family == "llama" else None
        self.up = self.linear(config.hidden, config.ffn)
        self.down = self.linear(config.ffn, config.hidden)

    def forward(self, x_BTC: Tensor, key: RngKey | None = None) -> Tensor:
        """One feed-forward half of a layer."""
        y = self.norm_in(x_BTC)
        if self.gate is None:
            (up,) = self.column_parallel(y, "up")
            wide = F.gelu(up, approximate="tanh")
        else:
            up, gate = self.column_parallel(y, "up", "gate")
            wide = F.silu(gate) * up
        return x_BTC + drop(self.row_parallel("down", wide), self.config.dropout, key, self.op_index, self.group)


class Narrow(OpModule):
    """The first half of a compression-aware layer: [B, T, C] → [B, T, C / factor].

    Norm, a linear layer (bottleneck) or the greatest of `factor` neighbouring features (maxout), norm. Nothing of the
    residual stream goes past it: it would have to be sent.

    Source: Ryabinin et al. 2023 (SWARM, arXiv 2301.11913), compression-aware architectures.
    """

    def _add_layers(self, config: TransformerConfig) -> None:
        assert config.boundary_layers is not None
        is_linear = config.boundary_layers.kind == "bottleneck"
        self.norm_in = Norm(config)
        self.squeeze = self.linear(config.hidden, config.narrow_width) if is_linear else None
        self.norm_out = Norm(config, config.narrow_width)

    def forward(self, x_BTC: Tensor, key: RngKey | None = None) -> Tensor:
        """What a stage that ends here sends."""
        y_BTC = self.norm_in(x_BTC)
        if self.squeeze is not None:
            return self.norm_out(self.squeeze(y_BTC))
        return self.norm_out(y_BTC.unflatten(-1, (self.config.narrow_width, -1)).max(dim=-1).values)


class Widen(OpModule):
    """The second half of a compression-aware layer: [B, T, C / factor] → [B, T, C]."""

    def _add_layers(self, config: TransformerConfig) -> None:
        self.spread = self.linear(config.narrow_width, config.hidden)

    def forward(self, x_BTW: Tensor, key: RngKey | None = None) -> Tensor:
        """The residual stream of the next layer."""
        return self.spread(x_BTW)


class FinalNorm(OpModule):
    """The norm in front of the head: [B, T, C] → [B, T, C]."""

    def _add_layers(self, config: TransformerConfig) -> None:
        self.norm_in = Norm(config)

    def forward(self, x_BTC: Tensor, key: RngKey | None = None) -> Tensor:
        """Normalises."""
        return self.norm_in(x_BTC)


class Head(OpModule):
    """Logits: [B, T, C] → [B, T, V]. Its weight may be the embedding's (tied)."""

    def _add_layers(self, config: TransformerConfig) -> None:
        self.weight = unfilled(config.vocab, config.hidden)

    def forward(self, x_BTC: Tensor, key: RngKey | None = None) -> Tensor:
        """Projects on the vocabulary."""
        if self.group.divides_samples:
            return sharded_weights.linear(x_BTC, self.weight, None, self.config.vocab, self.group)
        if self.group.degree == 1:
            return F.linear(x_BTC, lowered(self.weight))
        return self.group.column_parallel(x_BTC, [lowered(self.weight)], [None])[0]


class Loss(OpModule):
    """Cross-entropy in nats, *summed* over the micro-batch's tokens: [B, T, V] and [B, T] → scalar.

    The sum (not the mean) makes the gradient of a global batch a plain sum over micro-batches, however
    unequal their shares; the optimiser divides by the number of tokens once.
    """

    def forward(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        """Adds up the tokens' losses in float32."""
        logits_NV, labels_N = logits_BTV.flatten(0, 1), labels_BT.flatten()
        if self.group.tensor_degree == 1:
            return sharded_weights.over_samples(summed_cross_entropy(logits_NV, labels_N), self.group)
        return cross_entropy.summed_cross_entropy(logits_NV, labels_N, self._first_word, self.group)

    def count_correct(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        """How many labels have the greatest logit; of equal ones the first counts."""
        if self.group.tensor_degree == 1:
            return sharded_weights.over_samples(logits_BTV.argmax(dim=-1).eq(labels_BT).sum(), self.group)
        logits_NV, labels_N = logits_BTV.flatten(0, 1), labels_BT.flatten()
        return cross_entropy.count_correct(logits_NV, labels_N, self._first_word, self.group)

    @property
    def _first_word(self) -> int:
        return part_range(self.config.vocab, self.group.index, self.group.degree)[0]


MODULES: dict[str, type[OpModule]] = {
    "embedding": Embedding,
    "attention": Attention,
    "mlp": Mlp,
    "narrow": Narrow,
    "widen": Widen,
    "norm": FinalNorm,
    "head": Head,
    "loss": Loss,
}
"""The module of every kind of op we can train; a new kind of op is one entry here."""


@lru_cache(maxsize=8)
def rotation(length: int, width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of rotary positions, each [T, E]; halves, not pairs, are turned (as Hugging Face does).

    Source: Su et al. 2021, RoFormer.
    """
    rate_E2 = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle_TE2 = torch.arange(length, dtype=torch.float32)[:, None] * rate_E2
    angle_TE = torch.cat((angle_TE2, angle_TE2), dim=1)
    return angle_TE.cos().to(device), angle_TE.sin().to(device)


def rotated(x: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """`x` [..., T, E] turned by its positions."""
    half_1, half_2 = x.chunk(2, dim=-1)
    return x * cos_TE + torch.cat((-half_2, half_1), dim=-1) * sin_TE
