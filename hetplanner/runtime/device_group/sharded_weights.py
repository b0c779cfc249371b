"""Matrices of which each member of a group has some rows, where the members divide samples (ZeRO 2 and 3).

A matrix is gathered when it is used, forward and backward, and dropped again. The gradients of all members are added
up, and each member keeps those of its rows. With ZeRO 2 what was gathered is kept until the weights change. Vectors and
adapters are on every member.

`fully_shard` does the same exchanges. It is not used: its parameters are its own, and the buffers that reductions,
optimizers and checkpoints share would be copies of them.

Source: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), section 5.

Shape legend: R rows of a matrix, r those of a member, C width, N samples and tokens.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.runtime.device_group.group import DeviceGroup, part_range
from hetplanner.runtime.model.precision import lowered


def linear(x: Tensor, weight_rC: Tensor, bias_R: Tensor | None, num_rows: int, group: DeviceGroup) -> Tensor:
    """x · weightᵀ (+ bias) of this member's samples.

    Args:
        x: of this member's samples, [..., C].
        weight_rC: this member's rows.
        bias_R: whole.
        num_rows: R, of all members.
        group: of the members.
    """
    own_rC, device_type = lowered(weight_rC), x.device.type
    if torch.is_autocast_enabled(device_type):  # the product would lower it anyway
        x = x.to(torch.get_autocast_dtype(device_type))
    bias_R = None if bias_R is None else lowered(bias_R)
    out: Tensor = _Linear.apply(x, own_rC, bias_R, weight_rC, num_rows, group)
    return out


def rows(index: Tensor, weight_rC: Tensor, num_rows: int, group: DeviceGroup, padding: int = -1) -> Tensor:
    """Rows of a table, for this member's samples; arguments as of :func:`linear`; row `padding` has no gradient."""
    out: Tensor = _Rows.apply(index, weight_rC, num_rows, group, padding)
    return out


def whole(weight_rC: Tensor, num_rows: int, group: DeviceGroup) -> Tensor:
    """All rows, for a call that is none of the above; they are kept until its backward."""
    out: Tensor = _Whole.apply(weight_rC, num_rows, group)
    return out


def over_samples(number: Tensor, group: DeviceGroup) -> Tensor:
    """The sum of a number over all samples, on every member; the gradient of each is that of the sum."""
    if not group.divides_samples:
        return number
    out: Tensor = _OverSamples.apply(number, group)
    return out


def renew(weights: Iterable[Tensor], group: DeviceGroup) -> None:
    """With ZeRO 2, gathers the matrices anew that have changed and are kept whole; all members must call it."""
    for weight_rC in weights if group.sharding == "zero2" else ():
        for dtype in list(_copies(weight_rC)):
            num_rows = len(_copies(weight_rC)[dtype][1])
            _whole(weight_rC.detach().to(dtype), weight_rC, num_rows, group)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, own_rC: Tensor, bias_R: Tensor | None, weight_rC: Tensor, num_rows: int,
        group: DeviceGroup,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, own_rC)
        ctx.weight, ctx.num_rows, ctx.group = weight_rC, num_rows, group
        return F.linear(x, _whole(own_rC, weight_rC, num_rows, group), bias_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, own_rC), y_NR = ctx.saved_tensors, gradients[0].flatten(0, -2)
        of_x = of_own = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = (y_NR @ _whole(own_rC, ctx.weight, ctx.num_rows, ctx.group)).view(x.shape)
        if ctx.needs_input_grad[1]:
            of_own = _own_sum((y_NR.T @ x.flatten(0, -2)).float(), ctx.group)
        if ctx.needs_input_grad[2]:
            of_bias = y_NR.sum(0)
        return of_x, of_own, of_bias, None, None, None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index: Tensor, weight_rC: Tensor, num_rows: int, group: DeviceGroup, padding: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows, ctx.group, ctx.padding = num_rows, group, padding
        return F.embedding(index, _whole(weight_rC, weight_rC, num_rows, group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[1]:
            return None, None, None, None, None
        (index,) = ctx.saved_tensors
        of_rows_RC = torch.ops.aten.embedding_dense_backward(gradients[0], index, ctx.num_rows, ctx.padding, False)
        return None, _own_sum(of_rows_RC.float(), ctx.group), None, None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_rC: Tensor, num_rows: int, group: DeviceGroup) -> Tensor:
        ctx.group = group
        return _whole(weight_rC, weight_rC, num_rows, group).view(num_rows, *weight_rC.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        return _own_sum(gradients[0].float(), ctx.group) if ctx.needs_input_grad[0] else None, None, None


class _OverSamples(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor, group: DeviceGroup) -> Tensor:
        return group.all_reduce(number.clone(), dist.ReduceOp.SUM)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _whole(own_rC: Tensor, weight_rC: Tensor, num_rows: int, group: DeviceGroup) -> Tensor:
    """All rows [R, C], in the dtype of `own_rC`.

    With ZeRO 2 they are an attribute of the weight, renewed when it has changed, which its version tells.
    """
    if group.sharding == "zero3":
        return _gathered(own_rC, num_rows, group)
    copies = _copies(weight_rC)
    version, whole_RC = copies.pop(own_rC.dtype, (-1, own_rC))
    if version != weight_rC._version:
        del whole_RC
        whole_RC = _gathered(own_rC, num_rows, group)
    copies[own_rC.dtype] = weight_rC._version, whole_RC
    return whole_RC


def _copies(weight_rC: Tensor) -> dict[torch.dtype, tuple[int, Tensor]]:
    """Whole matrices that are kept of a weight, with its version when they were gathered."""
    if not hasattr(weight_rC, "whole_copies"):
        weight_rC.whole_copies = {}  # type: ignore[attr-defined]
    copies: dict[torch.dtype, tuple[int, Tensor]] = weight_rC.whole_copies  # type: ignore[attr-defined]
    return copies


def _gathered(own_rC: Tensor, num_rows: int, group: DeviceGroup) -> Tensor:
    if num_rows % group.degree == 0:
        return group.all_gather(own_rC.detach()[None])[0]
    most = -(-num_rows // group.degree)
    padded_rC = F.pad(own_rC.detach(), (0, 0, 0, most - own_rC.shape[0]))
    found_RC = group.all_gather(padded_rC[None])[0]
    ranges = (part_range(num_rows, i, group.degree) for i in range(group.degree))
    return torch.cat([part[: end - first] for part, (first, end) in zip(found_RC.split(most), ranges, strict=True)])


def _own_sum(gradient_RC: Tensor, group: DeviceGroup) -> Tensor:
    """This member's rows of the sum over all members, in float32."""
    num_rows, most = len(gradient_RC), -(-len(gradient_RC) // group.degree)
    ranges = [part_range(num_rows, i, group.degree) for i in range(group.degree)]
    if num_rows % group.degree:
        padded_RC = gradient_RC.new_zeros(group.degree * most, gradient_RC.shape[1])
        for i, (first, end) in enumerate(ranges):
            padded_RC[i * most : i * most + end - first] = gradient_RC[first:end]
        gradient_RC = padded_RC
    first, end = ranges[group.index]
    return group.reduce_scatter(gradient_RC[None])[0][: end - first]
