"""Codecs that keep every element: float32 as it is, and 16-bit floats; and what every tensor codec can do."""

from functools import cache
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor


class TensorCodec(Protocol):
    """Encodes a contiguous float32 tensor into a byte buffer on the same device, and back."""

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Writes `x` (float32, contiguous, any shape) to `out` (uint8, 1-D, of the declared length)."""

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """float32 [N] from bytes; may be a view of `data`."""


@cache
def load_kernels() -> ModuleType:
    """The compiled loops; numba is imported when they are first wanted."""
    from hetplanner.codecs import kernels

    return kernels


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
    """16-bit floats. fp16: relative error at most 2^-11, below 6.1e-5 absolute error at most 2^-25; bf16: 2^-8.

    Args:
        dtype: torch.float16 or torch.bfloat16.
        compiled: tensors on the processor go through a compiled loop.
    """

    def __init__(self, dtype: torch.dtype = torch.float16, *, compiled: bool = True) -> None:
        self.dtype, self.compiled = dtype, compiled

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Rounds to nearest; finite values out of range are clamped."""
        x, half = x.detach().reshape(-1), out.view(self.dtype)
        if self._round(x, half):
            most = torch.finfo(self.dtype).max
            half.copy_(torch.where(torch.isinf(x), x, x.clamp(-most, most)))

    def _round(self, x: Tensor, half: Tensor) -> bool:
        """Rounds. Returns whether something may be out of range."""
        if x.device.type != "cpu":
            return True  # to look would wait for the device
        if self.compiled and (self.dtype is torch.bfloat16 or load_kernels().can_halve()):
            rounded = load_kernels().to_half if self.dtype is torch.float16 else load_kernels().to_brain
            infinity = 0x7C00 if self.dtype is torch.float16 else 0x7F80
            return bool(rounded(x.numpy(), half.view(torch.uint16).numpy()) >= infinity)
        half.copy_(x)
        low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)
        most = torch.finfo(self.dtype).max
        # Written so that a NaN, of which nothing is greater or less, is looked at as well.
        return not (-most <= low and high <= most)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Widens."""
        return data.view(self.dtype).float()
