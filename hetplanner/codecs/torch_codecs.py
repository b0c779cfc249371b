"""The tensor half of the codecs: float32 tensors to bytes and back, exactly as long as `Codec.wire_bytes` says.

Rule for what is not finite: `none` and `fp16` keep NaN and infinities as they are; `int8` turns every block that
holds one into NaN, so that a diverging run shows. Finite values beyond fp16's range become ±65504.

Shape legend: N elements, K blocks, S elements a block.
"""

from typing import Protocol

import torch
from torch import Tensor

from hetplanner.codecs.spec import Codec

FP16_MAX = 65504.0


class TensorCodec(Protocol):
    """Encodes a contiguous float32 tensor into a byte buffer and back."""

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Writes `x` (float32, contiguous, any shape) to `out` (uint8, 1-D, of the declared length)."""

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """float32 [N] from bytes; may be a view of `data`."""


class Dense:
    """No compression."""

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Copies."""
        out.view(torch.float32).copy_(x.reshape(-1))

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """A view."""
        return data.view(torch.float32)


class Half:
    """fp16: relative error at most 2^-11, below 6.1e-5 absolute error at most 2^-25."""

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Rounds to nearest; finite values out of range are clamped."""
        half = out.view(torch.float16)
        half.copy_(x.reshape(-1))
        if torch.isinf(half).any():
            x = x.reshape(-1)
            half.copy_(torch.where(torch.isinf(x), x, x.clamp(-FP16_MAX, FP16_MAX)))

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Widens."""
        return data.view(torch.float16).float()


class Int8:
    """Symmetric absolute-maximum quantisation by block: error at most half of (block maximum / 127).

    On the wire: K float32 scales, then N signed bytes. Source: Dettmers et al. 2022 (block-wise quantisation).
    """

    LEVELS = 127

    def __init__(self, block: int) -> None:
        self.block = block

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Quantises."""
        x = x.reshape(-1)
        n, full = x.numel(), x.numel() // self.block * self.block
        num_blocks = -(-n // self.block)
        scale_K, bytes_N = out[: 4 * num_blocks].view(torch.float32), out[4 * num_blocks :].view(torch.int8)
        if full:
            self._encode_blocks(x[:full].view(-1, self.block), scale_K[: full // self.block], bytes_N[:full])
        if full < n:
            self._encode_blocks(x[full:].view(1, -1), scale_K[-1:], bytes_N[full:])

    def _encode_blocks(self, x_KS: Tensor, scale_K: Tensor, bytes_N: Tensor) -> None:
        low_K, high_K = torch.aminmax(x_KS, dim=1)
        greatest_K = torch.maximum(high_K, low_K.neg_())
        # A block of zeros has scale 0; inf / inf would depend on the processor, so infinities become NaN here.
        greatest_K.masked_fill_(torch.isinf(greatest_K), torch.nan)
        scale_K.copy_(greatest_K.div_(self.LEVELS))
        inverse_K = torch.where(scale_K > 0, 1.0 / scale_K, 0.0).clamp_(max=torch.finfo(torch.float32).max)
        quantised_KS = (x_KS * inverse_K[:, None]).round_().clamp_(-self.LEVELS, self.LEVELS)
        bytes_N.view(quantised_KS.shape).copy_(quantised_KS)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Multiplies by the scales."""
        num_blocks = -(-num_elements // self.block)
        full = num_elements // self.block
        scale_K, bytes_N = data[: 4 * num_blocks].view(torch.float32), data[4 * num_blocks :].view(torch.int8)
        out_N = bytes_N.float()
        out_N[: full * self.block].view(-1, self.block).mul_(scale_K[:full, None])
        if full < num_blocks:
            out_N[full * self.block :].mul_(scale_K[-1])
        return out_N


def tensor_codec(codec: Codec) -> TensorCodec:
    """The tensor half of a codec."""
    if codec.name == "int8":
        return Int8(codec.block)
    return Half() if codec.name == "fp16" else Dense()
