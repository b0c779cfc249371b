"""What members do between the calls of a captured model whose layers they divide.

Each step is the counterpart of one in :class:`hetplanner.workload.capturing.division.Step`: backward, what was taken
whole gets the sum of the members' gradients, and what was made whole hands its gradient on to each.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3 (operators f and g).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.runtime.device_group.cross_entropy import summed_cross_entropy
from hetplanner.runtime.device_group.group import DeviceGroup, Piece, block_ranges, joined, part_range
from hetplanner.runtime.device_group.regathering import Regathering
from hetplanner.runtime.model.precision import lowered
from hetplanner.workload.capturing.division import Step

Ranges = Sequence[tuple[int, int]]


def step_call(
    step: Step, group: DeviceGroup, regathering: Regathering, *, feeds_products: bool = False
) -> Callable[..., Tensor]:
    """What a member calls for a step, with the arguments that its node has.

    Args:
        step: of the program.
        group: the member's.
        regathering: what keeps tokens that are collected.
        feeds_products: whether only products read the value, which autocast lowers anyway.
    """
    ranges = block_ranges(step.blocks, group.index, group.degree)
    piece = Piece(step.shape, step.axis, step.blocks)

    def enter(x: Tensor) -> Tensor:
        out: Tensor = _Enter.apply(x, group)
        return out

    def own_part(x: Tensor) -> Tensor:
        if not step.has_gradient:
            return take(x, step.axis, ranges)
        out: Tensor = _OwnPart.apply(x, step.axis, ranges, group)
        return out

    def total(partial: Tensor, bias: Tensor | None = None) -> Tensor:
        out = summed(partial)
        return out if bias is None else out + lowered(bias).to(out.dtype)

    def summed(partial: Tensor) -> Tensor:
        out: Tensor
        if step.out is None:
            out = _Sum.apply(partial, group)
        else:
            out = _ScatteredSum.apply(partial, Piece(step.shape, step.out.axis, step.out.blocks), group)
        return out

    def gather(part: Tensor) -> Tensor:
        out: Tensor = _Gather.apply(part, step.axis, step.blocks, group)
        return out

    def rows(weight_rC: Tensor, index: Tensor, padding: int = -1) -> Tensor:
        first, end = part_range(step.blocks[0], group.index, group.degree)
        own = index - first
        is_here = (own >= 0) & (own < end - first)
        padding = padding - first if first <= padding < end else -1
        found = F.embedding(torch.where(is_here, own, 0), weight_rC, padding if padding >= 0 else None)
        return summed(found * is_here[..., None])

    def collect(part: Tensor) -> Tensor:
        if feeds_products and torch.is_autocast_enabled(part.device.type):
            part = part.to(torch.get_autocast_dtype(part.device.type))
        out: Tensor = _Collect.apply(part, piece, group, step.kind == "whole")
        regathering.note(out, part, lambda own: _collected(own, piece, group))
        return out

    def loss(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        first_word = part_range(step.blocks[0], group.index, group.degree)[0]
        logits_NV = logits_NV.clone()  # it is overwritten
        return summed_cross_entropy(logits_NV, labels_N, first_word, group)

    calls: dict[str, Callable[..., Tensor]] = {
        "enter": enter, "own part": own_part, "sum": total, "gather": gather, "rows": rows, "collect": collect,
        "whole": collect, "loss": loss,
    }  # fmt: skip
    return calls[step.kind]


def take(x: Tensor, axis: int, ranges: Ranges) -> Tensor:
    """A member's elements along an axis."""
    parts = [x.narrow(axis, first, end - first) for first, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _placed(part: Tensor, shape: torch.Size, axis: int, ranges: Ranges) -> Tensor:
    """The whole with a member's part in its place, and 0 elsewhere."""
    whole, done = part.new_zeros(shape), 0
    for first, end in ranges:
        whole.narrow(axis, first, end - first).copy_(part.narrow(axis, done, end - first))
        done += end - first
    return whole


def _total(x: Tensor, group: DeviceGroup) -> Tensor:
    return group.all_reduce(x.detach().clone(memory_format=torch.contiguous_format))


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: DeviceGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _total(gradients[0], ctx.group), None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, ranges: Ranges, group: DeviceGroup) -> Tensor:
        ctx.shape, ctx.axis, ctx.ranges, ctx.group = x.shape, axis, ranges, group
        return take(x, axis, ranges).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.group.all_reduce(_placed(gradients[0], ctx.shape, ctx.axis, ctx.ranges)), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: DeviceGroup) -> Tensor:
        return _total(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _ScatteredSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, piece: Piece, group: DeviceGroup) -> Tensor:
        ctx.piece, ctx.group = piece, group
        return _own_sum(partial, piece, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _collected(gradients[0], ctx.piece, ctx.group), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, piece: Piece, group: DeviceGroup, is_whole: bool) -> Tensor:
        ctx.piece, ctx.group, ctx.is_whole = piece, group, is_whole
        return _collected(part, piece, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        piece, group = ctx.piece, ctx.group
        if ctx.is_whole:  # all members have the same gradient
            return take(gradients[0], piece.axis, piece.ranges(group.index, group.degree)), None, None, None
        return _own_sum(gradients[0], piece, group), None, None, None


def _collected(part: Tensor, piece: Piece, group: DeviceGroup) -> Tensor:
    return joined(group.parts_of_all(part.detach()), piece)


def _own_sum(partial: Tensor, piece: Piece, group: DeviceGroup) -> Tensor:
    assert piece.axis is not None
    parts = [take(partial.detach(), piece.axis, piece.ranges(index, group.degree)) for index in range(group.degree)]
    return group.sum_of_parts(torch.stack(parts))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, axis: int, blocks: tuple[int, ...], group: DeviceGroup) -> Tensor:
        ctx.axis, ctx.ranges = axis, block_ranges(blocks, group.index, group.degree)
        axis = ctx.axis = axis % part.ndim
        most = -(-sum(blocks) // group.degree)
        padded = F.pad(part.detach().movedim(axis, 0), (0, 0) * (part.ndim - 1) + (0, most - part.shape[axis]))
        flat = padded.reshape(1, most, -1)
        found = group.all_gather(flat)[0].view(group.degree, most, *padded.shape[1:])
        ends = [part_range(sum(blocks), index, group.degree) for index in range(group.degree)]
        parts = [part[: last - first] for part, (first, last) in zip(found, ends, strict=True)]
        return torch.cat(parts).movedim(0, axis).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return take(gradients[0], ctx.axis, ctx.ranges), None, None, None
