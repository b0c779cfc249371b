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
from hetplanner.runtime.device_group.group import DeviceGroup, Piece, block_ranges, part_range, taken
from hetplanner.runtime.device_group.regathering import Regathering
from hetplanner.runtime.model.precision import lowered
from hetplanner.workload.capturing.division import Step

Ranges = Sequence[tuple[int, int]]


class MemberStep:
    """A step of a member, called with the arguments that its node has.

    Args:
        step: of the program.
        group: the member's.
        regathering: what keeps tokens that are collected.
        feeds_products: whether only products read the value, which autocast lowers anyway.
    """

    def __init__(
        self, step: Step, group: DeviceGroup, regathering: Regathering, *, feeds_products: bool = False
    ) -> None:
        self.step, self.group, self.regathering, self.feeds_products = step, group, regathering, feeds_products
        self.ranges = block_ranges(step.blocks, group.index, group.degree)
        self.piece = Piece(step.shape, step.axis, step.blocks)
        calls: dict[str, Callable[..., Tensor]] = {
            "enter": self._enter, "own part": self._own_part, "sum": self._sum, "gather": self._gather,
            "rows": self._rows, "collect": self._collect, "whole": self._collect, "loss": self._loss,
        }  # fmt: skip
        self._call = calls[step.kind]

    def __call__(self, *arguments: Any) -> Tensor:
        """Does it."""
        return self._call(*arguments)

    def _enter(self, x: Tensor) -> Tensor:
        out: Tensor = _Enter.apply(x, self.group)
        return out

    def _own_part(self, x: Tensor) -> Tensor:
        if not self.step.has_gradient:
            return taken(x, self.step.axis, self.ranges)
        out: Tensor = _OwnPart.apply(x, self.step.axis, self.ranges, self.group)
        return out

    def _sum(self, partial: Tensor, bias: Tensor | None = None) -> Tensor:
        layout = self.step.out
        if layout is None:
            out: Tensor = _Sum.apply(partial, self.group)
        else:
            out = self.group.scattered_sum(partial, Piece(self.step.shape, layout.axis, layout.blocks))
        return out if bias is None else out + lowered(bias).to(out.dtype)

    def _gather(self, part: Tensor) -> Tensor:
        out: Tensor = _Gather.apply(part, self.step.axis, self.step.blocks, self.group)
        return out

    def _rows(self, weight_rC: Tensor, index: Tensor, padding: int = -1) -> Tensor:
        first, end = part_range(self.step.blocks[0], self.group.index, self.group.degree)
        own = index - first
        is_here = (own >= 0) & (own < end - first)
        own_padding = padding - first if first <= padding < end else None
        found = F.embedding(torch.where(is_here, own, 0), weight_rC, own_padding)
        return self._sum(found * is_here[..., None])

    def _collect(self, part: Tensor) -> Tensor:
        if self.feeds_products and torch.is_autocast_enabled(part.device.type):
            part = part.to(torch.get_autocast_dtype(part.device.type))
        piece, group = self.piece, self.group
        out: Tensor = _Collect.apply(part, piece, group, self.step.kind == "whole")
        self.regathering.note(out, part, lambda own: group.whole_of(own, piece))
        return out

    def _loss(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        first_word = part_range(self.step.blocks[0], self.group.index, self.group.degree)[0]
        logits_NV = logits_NV.clone()  # it is overwritten
        return summed_cross_entropy(logits_NV, labels_N, first_word, self.group)


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
        return taken(x, axis, ranges).clone()

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


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, piece: Piece, group: DeviceGroup, is_whole: bool) -> Tensor:
        ctx.piece, ctx.group, ctx.is_whole = piece, group, is_whole
        return group.whole_of(part, piece)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        piece, group = ctx.piece, ctx.group
        if ctx.is_whole:  # all members have the same gradient
            return taken(gradients[0], piece.axis, piece.ranges(group.index, group.degree)), None, None, None
        return group.own_sum(gradients[0], piece), None, None, None


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
        return taken(gradients[0], ctx.axis, ctx.ranges), None, None, None
