"""The members of a worker group, and what they exchange.

With tensor parallelism each layer is divided. Between the layers each member holds the same share of every sequence's
tokens (sequence parallelism). In front of a column-parallel product the tokens are gathered, behind a row-parallel one
the members' partial sums are added up, and each keeps its own tokens. The backward pass gathers the tokens again, so
that no member keeps those of others.

With ZeRO the samples of a micro-batch are divided, and so are the weights; see `sharded_weights`.

gloo's `all_to_all` takes a third of the time of its `reduce_scatter` and half of that of its `all_gather`, so on
processors both are made of it. Members add up in the order of their numbers: all runs give the same bits.

DTensor and `parallelize_module` do the same exchanges. They are not used: they divide a fused projection of queries,
keys and values by rows and not by heads, and each call of an operator costs them a dispatch.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198),
section 4.2.

Shape legend: B sequences, T tokens, t of them here, C width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.plan.model import Plan
from hetplanner.runtime.comm.connect import HUNG_PEER_S
from hetplanner.workload.tensor_degrees import Sharding


class Piece(NamedTuple):
    """A tensor of a message.

    Attributes:
        shape: of the whole.
        axis: that members divide; None: every member has the whole.
        blocks: along the axis, each of which is divided; none: it is one.
    """

    shape: tuple[int, ...]
    axis: int | None
    blocks: tuple[int, ...] = ()

    def ranges(self, index: int, degree: int) -> list[tuple[int, int]]:
        """First and end of a member's elements along the axis."""
        assert self.axis is not None
        return block_ranges(self.blocks or (self.shape[self.axis],), index, degree)

    def part_shape(self, index: int, degree: int) -> tuple[int, ...]:
        """Of a member's part."""
        if self.axis is None:
            return self.shape
        size = sum(end - first for first, end in self.ranges(index, degree))
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """One member's end.

    Attributes:
        index: of this member; 0 is the leader, which alone exchanges messages with other ranks.
        degree: number of members; 1: the device serves by itself, and nothing is exchanged.
        leader: number of its process.
        handle: torch's group of the members; None for a single device.
        on_device: the same on the devices' memory, if nccl carries it.
        sharding: what the members divide.
    """

    index: int = 0
    degree: int = 1
    leader: int = 0
    handle: dist.ProcessGroup | None = None
    on_device: dist.ProcessGroup | None = None
    sharding: Sharding = "tensor"

    @staticmethod
    def join(plan: Plan, process: int, *, own_gpus: bool) -> DeviceGroup:
        """The group of a process; all processes must call it at the same time.

        Args:
            plan: whose groups they are.
            process: number of this one.
            own_gpus: whether every process has a GPU of its own, so that nccl can join them.
        """
        mine = DeviceGroup(leader=process)
        timeout = timedelta(seconds=HUNG_PEER_S)
        for device, processes in zip(plan.ranks, plan.processes_of_rank, strict=True):
            if len(processes) == 1:
                continue
            handle = dist.new_group(list(processes), backend="gloo", timeout=timeout)
            on_device = dist.new_group(list(processes), backend="nccl") if own_gpus else None
            if process in processes:
                index, sharding = processes.index(process), plan.problem.sharding_of(device)
                mine = DeviceGroup(index, len(processes), processes[0], handle, on_device, sharding)
        return mine

    @property
    def is_leader(self) -> bool:
        """Whether this member exchanges messages with other ranks, and writes for the group."""
        return self.index == 0

    @property
    def tensor_degree(self) -> int:
        """Members that share each layer."""
        return self.degree if self.sharding == "tensor" else 1

    @property
    def divides_samples(self) -> bool:
        """Whether each member computes some samples of a micro-batch, and has a shard of each matrix."""
        return self.degree > 1 and self.sharding != "tensor"

    # -- tokens and samples -----------------------------------------------------------------------

    def divided_axis(self, axis: int | None) -> int | None:
        """The axis of a boundary's tensor along which members divide it.

        Args:
            axis: the one with tensor parallelism; None: every member has the whole.
        """
        return 0 if self.divides_samples and axis is not None else axis

    def whole_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Of a tensor of which each member has the shape's part, by tokens or by samples."""
        axis = self.divided_axis(1)
        return tuple(size * self.degree if i == axis else size for i, size in enumerate(shape))

    def own_part(self, x: Tensor) -> Tensor:
        """This member's tokens, or samples, of all of them: a view."""
        return self.own_samples(x) if self.divides_samples else self.own_tokens(x)

    def own_samples(self, x: Tensor) -> Tensor:
        """Where members divide samples (axis 0), this one's: a view."""
        return x.tensor_split(self.degree)[self.index] if self.divides_samples else x

    def own_tokens(self, x: Tensor) -> Tensor:
        """Where members divide tokens (axis 1), this one's: a view."""
        if self.tensor_degree == 1:
            return x
        here = x.shape[1] // self.degree
        return x[:, self.index * here : (self.index + 1) * here]

    def column_parallel(
        self, x_BtC: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """x · weightᵀ (+ bias) of all members' tokens, for each weight.

        Backward, the tokens are gathered once more: a member keeps its own alone.

        Args:
            x_BtC: this member's tokens.
            weights: this member's rows of each, [rows, C].
            biases: of the same rows.
        """
        if torch.is_autocast_enabled(x_BtC.device.type):  # the product would lower it anyway
            x_BtC = x_BtC.to(torch.get_autocast_dtype(x_BtC.device.type))
        out: tuple[Tensor, ...] = _ColumnParallel.apply(x_BtC, self, len(weights), *weights, *biases)
        return out

    def scattered_sum(self, partial: Tensor, piece: Piece | None = None) -> Tensor:
        """This member's part of the sum over all members; backward, all parts of the gradient are gathered.

        Args:
            partial: of the whole.
            piece: how members divide it; None: by tokens [B, T, C].
        """
        if self.tensor_degree == 1:
            return partial
        out: Tensor = _ScatteredSum.apply(partial, piece or Piece(tuple(partial.shape), 1), self)
        return out

    def own_sum(self, partial: Tensor, piece: Piece) -> Tensor:
        """This member's part of the sum over all members, without autograd."""
        assert piece.axis is not None
        ranges = (piece.ranges(index, self.degree) for index in range(self.degree))
        return self.sum_of_parts(torch.stack([taken(partial.detach(), piece.axis, each) for each in ranges]))

    def whole_of(self, part: Tensor, piece: Piece) -> Tensor:
        """The whole of all members' equal parts, on every member, without autograd."""
        return joined(self.parts_of_all(part.detach()), piece)

    def all_gather(self, x_BtC: Tensor) -> Tensor:
        """All members' tokens, without autograd."""
        B, t, C = x_BtC.shape
        return self.parts_of_all(x_BtC).transpose(0, 1).reshape(B, self.degree * t, C)

    def parts_of_all(self, part: Tensor) -> Tensor:
        """All members' tensors of one shape, in their order [members, ...], without autograd."""
        mine = part.contiguous()
        found = mine.new_empty(self.degree, *mine.shape)
        if mine.is_cuda and self.on_device is not None:
            dist.all_gather_into_tensor(found, mine, group=self.on_device)
        else:
            self._exchange(found, mine.expand(found.shape).contiguous())
        return found

    def reduce_scatter(self, partial_BTC: Tensor) -> Tensor:
        """This member's tokens of the sum over all members, without autograd."""
        B, T, C = partial_BTC.shape
        return self.sum_of_parts(partial_BTC.reshape(B, self.degree, T // self.degree, C).transpose(0, 1).contiguous())

    def sum_of_parts(self, parts: Tensor) -> Tensor:
        """The sum of what all members have for this one, without autograd.

        Args:
            parts: by member that wants it [members, ...], contiguous.
        """
        if parts.is_cuda and self.on_device is not None:
            out = parts.new_empty(parts.shape[1:])
            dist.reduce_scatter_tensor(out, parts, group=self.on_device)
            return out
        found = torch.empty_like(parts)
        self._exchange(found, parts)
        return found.sum(0)

    def _exchange(self, out: Tensor, parts: Tensor) -> None:
        """Part i of every member goes to member i; through host memory where nccl cannot carry it."""
        if not parts.is_cuda:
            dist.all_to_all_single(out, parts, group=self.handle)
            return
        taken = torch.empty(out.shape, dtype=out.dtype)
        dist.all_to_all_single(taken, parts.cpu(), group=self.handle)
        out.copy_(taken)

    # -- other exchanges --------------------------------------------------------------------------

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """The sum, or another reduction, over all members; in place on the processor."""
        if self.degree == 1:
            return x
        if x.is_cuda and self.on_device is not None:
            dist.all_reduce(x, op, group=self.on_device)
            return x
        here = x.cpu()
        dist.all_reduce(here, op, group=self.handle)
        return here.to(x.device)

    def summed(self, number: float) -> float:
        """The sum of a number over all members, the same bits on each."""
        if self.degree == 1:
            return number
        return float(self.all_reduce(torch.tensor([number], dtype=torch.float64)))

    def of_leader(self, number: float) -> float:
        """The leader's number."""
        if self.degree == 1:
            return number
        told = torch.tensor([number], dtype=torch.float64)
        dist.broadcast(told, src=self.leader, group=self.handle)
        return float(told)

    def barrier(self) -> None:
        """Waits for all members."""
        if self.degree > 1:
            dist.barrier(group=self.handle)

    # -- messages between ranks -------------------------------------------------------------------

    def scatter(
        self, whole: Tensor | None, pieces: Sequence[Piece], device: torch.device, *, is_gradient: bool
    ) -> Tensor:
        """A message's part for this member, 1-D.

        Args:
            whole: float32, 1-D, on the leader; not looked at on the others.
            pieces: tensors of the message.
            device: on which the part shall be.
            is_gradient: where members divide samples, the leader alone gets the gradient of what every member has
                whole, so that it counts once.
        """
        if self.is_leader:
            assert whole is not None
            parts = [self.part_of(whole, pieces, i, is_gradient=is_gradient).cpu() for i in range(self.degree)]
            works = [dist.isend(parts[i], self._process(i), group=self.handle) for i in range(1, self.degree)]
            for work in works:
                assert work is not None
                work.wait()
            out = parts[0]
        else:
            out = torch.empty(sum(self.sizes_of(pieces, self.index)))
            dist.recv(out, self.leader, group=self.handle)
        return out.to(device)

    def gather(self, part: Tensor, pieces: Sequence[Piece], *, is_gradient: bool) -> Tensor | None:
        """The whole of what all members hold parts of, 1-D; on the leader, else None.

        Args:
            part: 1-D.
            pieces: tensors of the message.
            is_gradient: where members divide samples, what every member has whole is added up; else it is the
                leader's.
        """
        if not self.is_leader:
            dist.send(part.contiguous().cpu(), self.leader, group=self.handle)
            return None
        parts = [part]
        for i in range(1, self.degree):
            other = torch.empty(sum(self.sizes_of(pieces, i)), dtype=part.dtype)
            dist.recv(other, self._process(i), group=self.handle)
            parts.append(other.to(part.device))
        split = [own.split(self.sizes_of(pieces, i)) for i, own in enumerate(parts)]
        found = []
        for number, piece in enumerate(pieces):
            own = [tensors[number] for tensors in split]
            if piece.axis is None:
                found.append(torch.stack(own).sum(0) if is_gradient and self.divides_samples else own[0])
            else:
                shaped = [x.view(piece.part_shape(i, self.degree)) for i, x in enumerate(own)]
                found.append(joined(shaped, piece).reshape(-1))
        return found[0] if len(found) == 1 else torch.cat(found)

    def part_of(self, whole: Tensor, pieces: Sequence[Piece], index: int, *, is_gradient: bool) -> Tensor:
        """A member's part of a message, 1-D; arguments as of `scatter`."""
        found = []
        for x, piece in zip(whole.split([prod(piece.shape) for piece in pieces]), pieces, strict=True):
            if piece.axis is None:
                found.append(torch.zeros_like(x) if is_gradient and self.divides_samples and index else x)
            else:
                part = taken(x.view(piece.shape), piece.axis, piece.ranges(index, self.degree))
                found.append(part.reshape(-1))
        return found[0].contiguous() if len(found) == 1 else torch.cat(found)

    def sizes_of(self, pieces: Sequence[Piece], index: int) -> list[int]:
        """Elements of a member's part of each tensor of a message."""
        return [prod(piece.part_shape(index, self.degree)) for piece in pieces]

    def _process(self, index: int) -> int:
        """Number of a member's process."""
        assert self.handle is not None
        return dist.get_global_rank(self.handle, index)


ALONE = DeviceGroup()
"""A device that serves by itself."""


def taken(x: Tensor, axis: int, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Elements of ranges along an axis, one behind the other; a view where there is one range."""
    parts = [x.narrow(axis, first, end - first) for first, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def joined(parts: Sequence[Tensor] | Tensor, piece: Piece) -> Tensor:
    """The whole of all members' parts."""
    assert piece.axis is not None
    if len(piece.blocks) < 2:
        return torch.cat(list(parts), piece.axis)
    whole = parts[0].new_empty(piece.shape)
    for index, part in enumerate(parts):
        done = 0
        for first, end in piece.ranges(index, len(parts)):
            whole.narrow(piece.axis, first, end - first).copy_(part.narrow(piece.axis, done, end - first))
            done += end - first
    return whole


def block_ranges(blocks: Sequence[int], index: int, degree: int) -> list[tuple[int, int]]:
    """First and end of a member's part of each block, where blocks lie one behind the other."""
    found, start = [], 0
    for block in blocks:
        first, end = part_range(block, index, degree)
        found.append((start + first, start + end))
        start += block
    return found


def part_range(size: int, index: int, degree: int) -> tuple[int, int]:
    """First and end of a member's part, as `Tensor.tensor_split` divides."""
    each, rest = divmod(size, degree)
    first = index * each + min(index, rest)
    return first, first + each + (index < rest)


class _ColumnParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BtC: Tensor, group: DeviceGroup, count: int, *parts: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = parts[:count], parts[count:]
        ctx.group, ctx.biased = group, [bias is not None for bias in biases]
        ctx.save_for_backward(x_BtC, *weights)
        all_BTC = group.all_gather(x_BtC)
        return tuple(F.linear(all_BTC, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_BtC, *weights = ctx.saved_tensors
        all_NC = ctx.group.all_gather(x_BtC).flatten(0, 1)
        of_weights = [gradient.flatten(0, 1).T @ all_NC for gradient in gradients]
        del all_NC
        of_biases = [g.sum((0, 1)) if biased else None for g, biased in zip(gradients, ctx.biased, strict=True)]
        partial = gradients[0] @ weights[0]
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            partial += gradient @ weight
        return ctx.group.reduce_scatter(partial), None, None, *of_weights, *of_biases


class _ScatteredSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, piece: Piece, group: DeviceGroup) -> Tensor:
        ctx.piece, ctx.group = piece, group
        return group.own_sum(partial, piece)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.whole_of(gradients[0], ctx.piece), None, None
