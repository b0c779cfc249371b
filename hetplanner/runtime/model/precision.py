"""Number formats: what a workload's dtype means for computing, for messages and for the size of gradients.

Weights, gradients in the flat buffer and the optimiser's moments are float32 whatever the dtype; bfloat16 and float16
are what autocast computes in and what a dense boundary message carries.
tf32 is float32 but for matrix products on GPUs.

Autocast copies a weight whenever it is used, and every micro-batch in flight keeps its own copies for its backward.
`lowered` gives them one copy, which they share.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import Dense, TensorCodec, tensor_codec
from hetplanner.dtypes import DType

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def is_lowered(dtype: DType) -> bool:
    """Whether tensors have 16 bits where torch holds that to be safe."""
    return TORCH_DTYPES[dtype] != torch.float32


def set_matrix_products(dtype: DType) -> None:
    """Lets this process's GPUs round the factors of float32 matrix products to TF32, or keeps them from it."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def autocast(dtype: DType, device_type: str = "cpu") -> AbstractContextManager[object]:
    """Computes in `dtype` where torch holds that to be safe; nothing changes for float32 and tf32."""
    if not is_lowered(dtype):
        return nullcontext()
    return torch.autocast(device_type, dtype=TORCH_DTYPES[dtype])


class _Lowered(torch.autograd.Function):
    """A copy in another dtype that exists already. Its gradient is added to the weight's without a conversion."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.weight = weight
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        if ctx.weight.grad is None:
            return gradients[0].to(ctx.weight.dtype), None
        ctx.weight.grad.add_(gradients[0])
        return None, None


def lowered(weight: Tensor) -> Tensor:
    """A weight as autocast would give it to a matrix product; itself where autocast is off.

    The copy is an attribute of the weight. It is renewed when the weight has changed, which its version tells.
    """
    device_type = weight.device.type
    if weight.is_meta or not torch.is_autocast_enabled(device_type):
        return weight
    dtype = torch.get_autocast_dtype(device_type)
    copy: Tensor | None = getattr(weight, "low_precision_copy", None)
    if copy is None or copy.dtype != dtype:
        copy = weight.detach().to(dtype)
    elif weight.low_precision_version != weight._version:  # type: ignore[attr-defined]
        copy.copy_(weight.detach())
    weight.low_precision_copy, weight.low_precision_version = copy, weight._version  # type: ignore[attr-defined]
    result: Tensor = _Lowered.apply(weight, copy)
    return result


def boundary_codec(codec: Codec, dtype: DType) -> TensorCodec:
    """The tensor half of a boundary's codec.

    What is dense travels in the workload's own dtype. In float16 nothing is clamped on the way: a gradient that
    overflows has to be seen, so that the loss scale shrinks.
    """
    if codec.name == "none" or (codec.name == "fp16" and dtype == "float16"):
        return Dense(TORCH_DTYPES[dtype])
    return tensor_codec(codec)


class LossScale:
    """The factor that keeps float16 gradients away from 0: halved by an overflow, doubled after a quiet while.

    All ranks call `update` with the same words, so that they hold the same factor.

    Attributes:
        value: of the *mean* loss; a power of two.
        quiet_steps: steps since it changed.

    Source: Micikevicius et al. 2018 (arXiv 1710.03740, section 3.2); the numbers are `torch.amp.GradScaler`'s.
    """

    FIRST, GROWTH_STEPS, LEAST = 2.0**16, 2000, 2.0**-24

    def __init__(self) -> None:
        self.value, self.quiet_steps = self.FIRST, 0

    def update(self, *, overflowed: bool) -> None:
        """Takes note of a step."""
        if overflowed:
            self.value, self.quiet_steps = max(self.LEAST, self.value / 2), 0
            return
        self.quiet_steps += 1
        if self.quiet_steps == self.GROWTH_STEPS:
            self.value, self.quiet_steps = self.value * 2, 0
