"""The tensor half of the codecs: float32 tensors to bytes and back, exactly as long as `Codec.wire_bytes` says.

Rule for what is not finite: `none`, `fp16` and `bf16` keep NaN and infinities as they are, `topk` keeps them among the
largest; `int8` and `int4` turn every block that holds one into NaN, so that a diverging run shows. Finite values beyond
the range of a 16-bit float become its greatest.

Shape legend: N elements, K blocks, S elements a block, M elements kept.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetplanner.codecs.spec import SEGMENT, VALUE_BYTES, Codec, position_bytes

PIECE = 2**16
"""Elements that a block codec works on at a time."""


class TensorCodec(Protocol):
    """Encodes a contiguous float32 tensor into a byte buffer and back."""

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Writes `x` (float32, contiguous, any shape) to `out` (uint8, 1-D, of the declared length)."""

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """float32 [N] from bytes; may be a view of `data`."""


class Dense:
    """No compression: every element in the workload's own number format; what is out of its range becomes infinite."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Copies."""
        out.view(self.dtype).copy_(x.reshape(-1))

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """A view, or widens."""
        return data.view(self.dtype).float()


class Half:
    """16-bit floats. fp16: relative error at most 2^-11, below 6.1e-5 absolute error at most 2^-25; bf16: 2^-8."""

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        self.dtype = dtype

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Rounds to nearest; finite values out of range are clamped."""
        x = x.reshape(-1)
        half = out.view(self.dtype)
        half.copy_(x)
        most = torch.finfo(self.dtype).max
        low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)
        # Written so that a NaN, of which nothing is greater or less, is looked at as well.
        if not (-most <= low and high <= most):
            half.copy_(torch.where(torch.isinf(x), x, x.clamp(-most, most)))

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Widens."""
        return data.view(self.dtype).float()


class Blocks:
    """Symmetric absolute-maximum quantisation by block: error at most half of (block maximum / levels).

    On the wire: K float32 scales, then N signed bytes (int8) or N / 2 bytes that hold two elements each (int4: the
    first in the low half). Source: Dettmers et al. 2022 (block-wise quantisation).
    """

    def __init__(self, codec: Codec) -> None:
        self.codec, self.block = codec, codec.block
        self.levels = 127 if codec.name == "int8" else 7

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Quantises."""
        x = x.reshape(-1)
        n, full = x.numel(), x.numel() // self.block * self.block
        start = self.codec.scale_bytes(n)
        scale_K = out[:start].view(torch.float32)
        bytes_N = out[start:].view(torch.int8) if self.codec.name == "int8" else torch.empty(n, dtype=torch.int8)
        # Piece by piece, so that what lies between stays in the cache.
        step = max(1, PIECE // self.block) * self.block
        for first in range(0, full, step):
            end = min(first + step, full)
            scales = scale_K[first // self.block : end // self.block]
            self._encode_blocks(x[first:end].view(-1, self.block), scales, bytes_N[first:end])
        if full < n:
            self._encode_blocks(x[full:].view(1, -1), scale_K[-1:], bytes_N[full:])
        if self.codec.name == "int4":
            _pack_nibbles(bytes_N, out[start:])

    def _encode_blocks(self, x_KS: Tensor, scale_K: Tensor, bytes_N: Tensor) -> None:
        # torch.aminmax along a dimension is ten times slower than the two apart.
        greatest_K = torch.maximum(x_KS.amax(dim=1), x_KS.amin(dim=1).neg_())
        # A block of zeros has scale 0; inf / inf would depend on the processor, so infinities become NaN here.
        greatest_K.masked_fill_(torch.isinf(greatest_K), torch.nan)
        scale_K.copy_(greatest_K.div_(self.levels))
        # Divided, not multiplied by the inverse, which overflows where the scale is subnormal.
        divisor_K = torch.where(scale_K > 0, scale_K, 1.0)
        quantised_KS = (x_KS / divisor_K[:, None]).round_().clamp_(-self.levels, self.levels)
        bytes_N.view(quantised_KS.shape).copy_(quantised_KS)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Multiplies by the scales."""
        first = self.codec.scale_bytes(num_elements)
        scale_K = data[:first].view(torch.float32)
        if self.codec.name == "int8":
            out_N = data[first:].view(torch.int8).float()
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
    out_N = torch.empty(num_elements, dtype=torch.float32)
    out_N[::2] = data & 15
    out_N[1::2] = (data >> 4)[: num_elements // 2]
    return out_N.sub_(8)


class TopK:
    """The largest elements by magnitude, in fp16; all others become 0. Of equal ones the first are kept.

    On the wire, for M kept elements: their positions ascending in the shortest form (16 bits each behind the number in
    every segment of 65,536 elements; a bitmap; 32 bits each), 16-bit and 32-bit positions in front of the M values, a
    bitmap behind them. What is not a number counts as the largest.

    Source: Tang et al. 2024 (FusionLLM's AdaTopK) for the use, the encoding is ours.

    Attributes:
        position_M: what was kept of the last tensor encoded or decoded; int64, ascending.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.position_M = torch.empty(0, dtype=torch.int64)

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Selects and packs."""
        x = x.reshape(-1)
        position_M = _largest(x, self.codec.kept(x.numel()))
        self.position_M = torch.from_numpy(position_M)
        values, places = self._parts(out, x.numel())
        AtPositions(self.position_M).encode(x, values)
        match self._form(x.numel()):
            case "bitmap":
                kept_N = np.zeros(x.numel(), dtype=bool)
                kept_N[position_M] = True
                places[:] = np.packbits(kept_N)
            case "wide":
                places.view(np.uint32)[:] = position_M
            case "narrow":
                ends = np.searchsorted(position_M, np.arange(1, self._segments(x.numel())) * SEGMENT)
                counts = places[: len(places) - 2 * len(position_M)].view(np.uint32)
                if len(counts):
                    counts[:] = np.diff(ends, prepend=0, append=len(position_M))
                places[4 * len(counts) :].view(np.uint16)[:] = position_M % SEGMENT

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Scatters."""
        values, places = self._parts(data, num_elements)
        self.position_M = torch.from_numpy(self._positions(places, num_elements))
        return AtPositions(self.position_M).decode(values, num_elements)

    def _positions(self, places: NDArray[np.uint8], num_elements: int) -> NDArray[np.int64]:
        match self._form(num_elements):
            case "bitmap":
                return np.flatnonzero(np.unpackbits(places, count=num_elements).view(bool))
            case "wide":
                return places.view(np.uint32).astype(np.int64)
        counts = places[: len(places) - 2 * self.codec.kept(num_elements)].view(np.uint32)
        position_M = places[4 * len(counts) :].view(np.uint16).astype(np.int64)
        if len(counts):
            position_M += np.repeat(np.arange(len(counts)) * SEGMENT, counts)
        return position_M

    def _form(self, num_elements: int) -> str:
        sizes = position_bytes(num_elements, self.codec.kept(num_elements))
        return sizes._fields[sizes.index(min(sizes))]

    @staticmethod
    def _segments(num_elements: int) -> int:
        return -(-num_elements // SEGMENT)

    def _parts(self, data: Tensor, num_elements: int) -> tuple[Tensor, NDArray[np.uint8]]:
        """The kept values and their positions within a message; 32-bit numbers lie in front, aligned."""
        size = VALUE_BYTES * self.codec.kept(num_elements)
        if self._form(num_elements) == "bitmap":
            return data[:size], data[size:].numpy()
        return data[len(data) - size :], data[: len(data) - size].numpy()


class AtPositions:
    """Elements at positions that both sides know, in fp16; all others become 0. So top-k's gradients travel.

    Only what the forward pass sent has a gradient, so nothing is lost by leaving the others out.
    """

    def __init__(self, position_M: Tensor) -> None:
        self.position_M = position_M

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Gathers."""
        Half().encode(x.reshape(-1)[self.position_M], out)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Scatters."""
        out_N = torch.zeros(num_elements, dtype=torch.float32)
        out_N[self.position_M] = Half().decode(data, len(self.position_M))
        return out_N


def _largest(x: Tensor, kept: int) -> NDArray[np.int64]:
    """Positions of the largest elements by magnitude, ascending; numpy's selection is ten times as fast as torch's."""
    # Without the sign bit, floats order as integers do, and what is not a number comes last.
    magnitude_N = x.detach().numpy().view(np.int32) & np.int32(0x7FFFFFFF)
    if kept == len(magnitude_N):
        return np.arange(kept)
    least = np.partition(magnitude_N, len(magnitude_N) - kept)[len(magnitude_N) - kept]
    position = np.flatnonzero(magnitude_N >= least)
    if len(position) > kept:
        # As many of the equal smallest ones go as are too many, the last first.
        equal = np.flatnonzero(magnitude_N[position] == least)
        position = np.delete(position, equal[kept - len(position) :])
    return position


def tensor_codec(codec: Codec) -> TensorCodec:
    """The tensor half of a codec."""
    match codec.name:
        case "none":
            return Dense()
        case "fp16" | "bf16":
            return Half(torch.float16 if codec.name == "fp16" else torch.bfloat16)
        case "int8" | "int4":
            return Blocks(codec)
        case "topk":
            return TopK(codec)
