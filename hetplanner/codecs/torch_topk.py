"""Top-k: the largest elements by magnitude, and the gradients that go back at their positions.

Shape legend: N elements, M elements kept.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetplanner.arrays import IntArray
from hetplanner.codecs.spec import SEGMENT, VALUE_BYTES, Codec, position_bytes
from hetplanner.codecs.torch_dense import Half, load_kernels

MAGNITUDE = 0x7FFFFFFF
"""All bits of a float32 but the sign. So cut, floats order as integers do, and what is not a number comes last."""
SAMPLES = 2**16
"""Elements that are looked at to guess the threshold."""


class TopK:
    """The largest elements by magnitude, in fp16; all others become 0. Of equal ones the first are kept.

    On the wire, for M kept elements: their positions ascending in the shortest form (16 bits each behind the number in
    every segment of 65,536 elements; a bitmap; 32 bits each), 16-bit and 32-bit positions in front of the M values, a
    bitmap behind them. What is not a number counts as the largest.

    Source: Tang et al. 2024 (FusionLLM's AdaTopK) for the use, the encoding is ours.

    Attributes:
        position_M: what was kept of the last tensor encoded or decoded; int64, ascending.

    Args:
        codec: with the ratio.
        compiled: tensors on the processor go through compiled loops.
    """

    def __init__(self, codec: Codec, *, compiled: bool = True) -> None:
        self.codec, self.compiled = codec, compiled
        self.position_M = torch.empty(0, dtype=torch.int64)

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Selects and packs."""
        x = x.detach().reshape(-1)
        kept = self.codec.kept(x.numel())
        if self._is_compiled(x):
            self.position_M = torch.from_numpy(_largest(x.numpy(), kept))
        else:
            self.position_M = _largest_by_sorting(x, kept)
        values, places = self._parts(out, x.numel())
        AtPositions(self.position_M, compiled=self.compiled).encode(x, values)
        self._write_positions(places, x.numel())

    def _is_compiled(self, x: Tensor) -> bool:
        return self.compiled and x.device.type == "cpu"

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Scatters."""
        values, places = self._parts(data, num_elements)
        self.position_M = self._read_positions(places, num_elements)
        return AtPositions(self.position_M, compiled=self.compiled).decode(values, num_elements)

    def _write_positions(self, places: Tensor, num_elements: int) -> None:
        match self._form(num_elements):
            case "bitmap" if self._is_compiled(places):
                load_kernels().set_bits(self.position_M.numpy(), places.numpy())
            case "bitmap":
                kept_N = torch.zeros(8 * len(places), dtype=torch.uint8, device=places.device)
                kept_N[self.position_M] = 1
                places.copy_((kept_N.view(-1, 8) << _shifts(places)).sum(dim=1, dtype=torch.uint8))
            case "wide":
                places.view(torch.int32).copy_(self.position_M)
            case "narrow":
                counts, low_M = self._narrow(places, num_elements)
                if len(counts):
                    counts.copy_(torch.bincount(self.position_M // SEGMENT, minlength=len(counts)))
                low_M.copy_(self.position_M % SEGMENT)

    def _read_positions(self, places: Tensor, num_elements: int) -> Tensor:
        match self._form(num_elements):
            case "bitmap" if self._is_compiled(places):
                position = torch.empty(self.codec.kept(num_elements) + 8, dtype=torch.int64)
                return position[: load_kernels().find_bits(places.numpy(), position.numpy())]
            case "bitmap":
                return (places[:, None] >> _shifts(places) & 1).flatten().nonzero()[:, 0]
            case "wide":
                return places.view(torch.int32).long() & 0xFFFFFFFF
        counts, low_M = self._narrow(places, num_elements)
        position_M = low_M.long() & 0xFFFF
        if len(counts):
            position_M += torch.repeat_interleave(
                torch.arange(len(counts), device=places.device) * SEGMENT, counts, output_size=len(low_M)
            )
        return position_M

    def _narrow(self, places: Tensor, num_elements: int) -> tuple[Tensor, Tensor]:
        """How many are kept in every segment (nothing where there is but one), and their places in it."""
        end = len(places) - 2 * self.codec.kept(num_elements)
        return places[:end].view(torch.int32), places[end:].view(torch.int16)

    def _form(self, num_elements: int) -> str:
        sizes = position_bytes(num_elements, self.codec.kept(num_elements))
        return sizes._fields[sizes.index(min(sizes))]

    def _parts(self, data: Tensor, num_elements: int) -> tuple[Tensor, Tensor]:
        """The kept values and their positions within a message; 32-bit numbers lie in front, aligned."""
        size = VALUE_BYTES * self.codec.kept(num_elements)
        if self._form(num_elements) == "bitmap":
            return data[:size], data[size:]
        return data[len(data) - size :], data[: len(data) - size]


class AtPositions:
    """Elements at positions that both sides know, in fp16; all others become 0. So top-k's gradients travel.

    Only what the forward pass sent has a gradient, so nothing is lost by leaving the others out.
    """

    def __init__(self, position_M: Tensor, *, compiled: bool = True) -> None:
        self.position_M, self.half = position_M, Half(compiled=compiled)

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Gathers."""
        self.half.encode(x.detach().reshape(-1)[self.position_M], out)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Scatters. Raises IndexError when a position lies outside."""
        out_N = torch.zeros(num_elements, dtype=torch.float32, device=data.device)
        value_M = self.half.decode(data, len(self.position_M))
        if data.device.type != "cpu" or not self.half.compiled:
            out_N[self.position_M] = value_M
        elif not load_kernels().scatter(value_M.numpy(), self.position_M.numpy(), out_N.numpy()):
            raise IndexError(f"top-k: a position lies outside of {num_elements} elements")
        return out_N


def _shifts(places: Tensor) -> Tensor:
    """Of the eight elements that share a byte; the first is the highest bit."""
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=places.device)


def _largest(x_N: NDArray[np.float32], kept: int) -> IntArray:
    """Positions of the largest elements by magnitude, ascending; on the processor.

    A sample says below which magnitude hardly any of them can be; the exact selection then has few to choose from. If
    the guess was wrong it has all: the sample decides about time, never about what is kept.
    """
    if kept == len(x_N):
        return np.arange(kept)
    candidates = _candidates(x_N, kept)
    if candidates is None:
        candidates = np.arange(len(x_N))
    magnitude_C = np.empty(len(candidates), dtype=np.int32)
    load_kernels().magnitudes_at(x_N, candidates, magnitude_C)
    # numpy's selection is ten times as fast as torch's on a processor.
    least = np.partition(magnitude_C, len(candidates) - kept)[len(candidates) - kept]
    position_M = np.empty(kept, dtype=np.int64)
    load_kernels().choose(magnitude_C, candidates, int(least), position_M)
    return position_M


def _candidates(x_N: NDArray[np.float32], kept: int) -> IntArray | None:
    """Positions, ascending, among which all of the largest are; None if a sample does not tell them."""
    if len(x_N) < 2 * SAMPLES:
        return None
    # Odd, so that it does not walk along one column of a matrix.
    sample = x_N[:: len(x_N) // SAMPLES | 1].view(np.int32) & np.int32(MAGNITUDE)
    wanted = len(sample) * kept / len(x_N)
    # Four standard deviations more than the share that is kept: missed once in 30,000 tensors.
    rank = len(sample) - math.ceil(wanted + 4.0 * math.sqrt(wanted + 1.0))
    if rank < 0:
        return None
    threshold = int(np.partition(sample, rank)[rank])
    position = np.empty(int(kept * (1.1 + 9.0 / math.sqrt(wanted + 1.0))) + 1024, dtype=np.int64)
    count = load_kernels().at_least(x_N, threshold, position)
    return position[:count] if kept <= count <= len(position) else None


def _largest_by_sorting(x: Tensor, kept: int) -> Tensor:
    """The same by tensor operations, for any device."""
    magnitude_N = x.view(torch.int32) & MAGNITUDE
    if kept == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    least = magnitude_N.topk(kept, sorted=False).values.min()
    above_N, equal_N = magnitude_N > least, magnitude_N == least
    # Of the equal smallest ones the first are kept, as many as there is room for.
    room = kept - above_N.sum()
    return (above_N | (equal_N & (equal_N.cumsum(0) <= room))).nonzero()[:, 0]
