"""Weights in the dtype that matrix products are computed in: one copy of each, which all micro-batches share.

Autocast copies a weight whenever it is used, and every micro-batch in flight keeps its own copies for its backward.
"""

from typing import Any

import torch
from torch import Tensor


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
