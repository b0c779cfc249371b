"""Quantisation by block: int8 and int4.

Shape legend: N elements, K blocks, S elements a block.
"""

import torch
from torch import Tensor

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_dense import load_kernels

PIECE = 2**18
"""Elements that tensor operations on the processor work on at a time, so that what lies between stays in the cache."""


class Blocks:
    """Symmetric absolute-maximum quantisation by block: error at most half of (block maximum / levels).

    On the wire: K float32 scales, then N signed bytes (int8) or N / 2 bytes that hold two elements each (int4: the
    first in the low half, 8 added). Source: Dettmers et al. 2022 (block-wise quantisation).

    Args:
        codec: int8 or int4.
        compiled: tensors on the processor go through compiled loops.
    """

    def __init__(self, codec: Codec, *, compiled: bool = True) -> None:
        self.codec, self.block, self.compiled = codec, codec.block, compiled
        self.levels = 127 if codec.name == "int8" else 7

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Quantises."""
        x = x.detach().reshape(-1)
        start = self.codec.scale_bytes(x.numel())
        scale_K, data = out[:start].view(torch.float32), out[start:]
        if self._is_compiled(x):
            kernels = load_kernels()
            if self.codec.name == "int8":
                kernels.to_bytes(x.numpy(), self.block, scale_K.numpy(), data.view(torch.int8).numpy())
            else:
                kernels.to_nibbles(x.numpy(), self.block, scale_K.numpy(), data.numpy())
        elif self.codec.name == "int8":
            self._quantise(x, scale_K, data.view(torch.int8))
        else:
            bytes_N = torch.empty(x.numel(), dtype=torch.int8, device=x.device)
            self._quantise(x, scale_K, bytes_N)
            _pack_nibbles(bytes_N, data)

    def _is_compiled(self, x: Tensor) -> bool:
        # Two elements share a byte: with odd blocks they would share it over the edge of a block.
        return self.compiled and x.device.type == "cpu" and (self.codec.name == "int8" or self.block % 2 == 0)

    def _quantise(self, x: Tensor, scale_K: Tensor, bytes_N: Tensor) -> None:
        n, full = x.numel(), x.numel() // self.block * self.block
        step = max(1, PIECE // self.block) * self.block if x.device.type == "cpu" else max(full, 1)
        scratch = torch.empty(min(step, full), device=x.device)
        for first in range(0, full, step):
            end = min(first + step, full)
            scales = scale_K[first // self.block : end // self.block]
            piece = x[first:end].view(-1, self.block)
            self._quantise_blocks(piece, scales, bytes_N[first:end], scratch[: end - first].view_as(piece))
        if full < n:
            rest = x[full:].view(1, -1)
            self._quantise_blocks(rest, scale_K[-1:], bytes_N[full:], torch.empty_like(rest))

    def _quantise_blocks(self, x_KS: Tensor, scale_K: Tensor, bytes_N: Tensor, scratch_KS: Tensor) -> None:
        # torch.aminmax along a dimension is ten times slower than the two apart.
        greatest_K = torch.maximum(x_KS.amax(dim=1), x_KS.amin(dim=1).neg_())
        # By a tensor: some devices multiply by the inverse of a number instead, which rounds twice.
        greatest_K.div_(torch.full_like(greatest_K, self.levels))
        # A block of zeros has scale 0, without sign. Infinities become the one NaN: inf / inf is up to the device.
        scale_K.copy_(torch.where(greatest_K < torch.inf, greatest_K.abs(), torch.nan))
        # Divided, not multiplied by the inverse, which overflows where the scale is subnormal.
        divisor_K = torch.where(scale_K > 0, scale_K, 1.0)
        quantised_KS = torch.div(x_KS, divisor_K[:, None], out=scratch_KS).round_()
        # A subnormal scale is so coarse that quotients leave the range; a scale that is no number marks its block.
        if x_KS.device.type != "cpu" or not bool((scale_K >= torch.finfo(torch.float32).tiny).all()):
            quantised_KS.masked_fill_(torch.isnan(scale_K)[:, None], 0.0).clamp_(-self.levels, self.levels)
        bytes_N.view(quantised_KS.shape).copy_(quantised_KS)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Multiplies by the scales."""
        first = self.codec.scale_bytes(num_elements)
        scale_K = data[:first].view(torch.float32)
        if self.codec.name == "int8":
            out_N = data[first:].view(torch.int8).float()
        elif self._is_compiled(data):
            out_N = torch.empty(num_elements)
            load_kernels().from_nibbles(data[first:].numpy(), self.block, scale_K.numpy(), out_N.numpy())
            return out_N
        else:
            out_N = _unpacked_nibbles(data[first:], num_elements)
        full = num_elements // self.block
        out_N[: full * self.block].view(-1, self.block).mul_(scale_K[:full, None])
        if full < len(scale_K):
            out_N[full * self.block :].mul_(scale_K[-1])
        return out_N


def _pack_nibbles(values_N: Tensor, out: Tensor) -> None:
    """-7 .. 7 as 1 .. 15, two a byte."""
    unsigned_N = values_N.add(8).view(torch.uint8)
    low, high = unsigned_N[::2], unsigned_N[1::2]
    out.copy_(low)
    out[: len(high)].bitwise_or_(high << 4)


def _unpacked_nibbles(data: Tensor, num_elements: int) -> Tensor:
    out_N = torch.empty(num_elements, dtype=torch.float32, device=data.device)
    out_N[::2] = data & 15
    out_N[1::2] = (data >> 4)[: num_elements // 2]
    return out_N.sub_(8)
