"""Which part of each weight a member of a group holds, and copies between the parts and the whole.

With tensor parallelism products that widen are divided by rows (queries, keys and values by heads), those that narrow
by columns; embedding and head by words. Norms, positions and the biases of narrowing products are on every member. How
a captured model's are divided, its calls tell. With ZeRO all matrices but adapters are divided by rows.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from hetplanner.runtime.device_group.group import DeviceGroup, block_ranges, part_range, taken
from hetplanner.runtime.model.layout import ModelWeight, Weight
from hetplanner.runtime.model.modules import ADAPTER_LEAVES
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

BY_ROWS = {
    "mlp": ("gate.weight", "up.weight", "up.bias"),
    "embedding": ("tokens.weight",),
    "head": ("weight",),
}
BY_COLUMNS = {"attention": ("out.weight",), "mlp": ("down.weight",)}
BY_HEADS = {"attention": ("qkv.weight", "qkv.bias")}


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a member's buffer, one behind the other, and where they are in a single device's.

    Attributes:
        own, whole: first element in either buffer.
        rows, width: how many rows of how many elements.
        stride: elements from one row to the next in the single device's buffer.
    """

    own: int
    whole: int
    rows: int
    width: int
    stride: int

    def range_of(self, first: int, end: int) -> tuple[int, int]:
        """Own elements among `first` to `end` of the single device's buffer: first and end."""
        return self.own + self._before(first), self.own + self._before(end)

    def _before(self, place: int) -> int:
        """Own elements in front of a place in the single device's buffer."""
        row, column = divmod(max(0, place - self.whole), self.stride)
        return min(row * self.width + min(column, self.width), self.rows * self.width)

    def places_of(self, first: int, end: int) -> Tensor:
        """Where own elements `first` to `end` are in the single device's buffer: [end - first]."""
        number = torch.arange(first - self.own, end - self.own)
        return self.whole + number // self.width * self.stride + number % self.width


@dataclass(frozen=True, slots=True)
class Shard:
    """A member's part of a weight.

    Attributes:
        whole: the weight and its place in the buffer of a single device.
        own: the part and its place in the member's buffer.
        axis: that is divided.
        ranges: first and end along the axis, of each piece of the part; none: every member holds the whole.
        is_shared: whether a member's gradient of a whole weight is that of its own tokens or samples alone.
    """

    whole: Weight
    own: Weight
    axis: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    is_shared: bool = True

    @property
    def is_repeated(self) -> bool:
        """Whether every member holds all of it."""
        return not self.ranges

    def take(self, values: Tensor, own: Tensor) -> None:
        """Copies the part of one weight's values into the member's flat buffer."""
        part = own[self.own.first : self.own.end].view(self.own.shape)
        if self.is_repeated:
            part.copy_(values)
        else:
            part.copy_(taken(values, self.axis, self.ranges))

    def blocks(self) -> Iterator[Block]:
        """The part, in the member's order."""
        if self.is_repeated:
            size = prod(self.whole.shape)
            yield Block(self.own.first, self.whole.first, 1, size, size)
            return
        outer, stride = prod(self.whole.shape[: self.axis]), prod(self.whole.shape[self.axis :])
        inner, own = stride // self.whole.shape[self.axis], self.own.first
        # Several ranges of columns lie beside one another in each of the member's rows.
        rows, times = (1, outer) if len(self.ranges) > 1 else (outer, 1)
        for row in range(times):
            for first, end in self.ranges:
                width = (end - first) * inner
                yield Block(own, self.whole.first + row * stride + first * inner, rows, width, stride)
                own += rows * width

    def pieces(self, whole: Tensor, own: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of the same numbers in both flat buffers, the whole's first."""
        full = whole[self.whole.first : self.whole.end].view(self.whole.shape)
        part = own[self.own.first : self.own.end].view(self.own.shape)
        if self.is_repeated:
            yield full, part
            return
        place = 0
        for first, end in self.ranges:
            size = end - first
            yield full.narrow(self.axis, first, size), part.narrow(self.axis, place, size)
            place += size


def own_ranges(shards: Sequence[Shard], ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[Shard, Block, int, int]]:
    """What a member has of ranges of a single device's buffer: shard, block, first and end own element; ascending.

    Args:
        shards: the member's, of one stage.
        ranges: ascending.
    """
    for shard in shards:
        for block in shard.blocks():
            for first, end in ranges:
                begin, stop = block.range_of(first, end)
                if stop > begin:
                    yield shard, block, begin, stop


def own_elements(shards: Sequence[Shard], ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same as ranges of the member's buffer, neighbours joined; arguments as of :func:`own_ranges`."""
    found: list[tuple[int, int]] = []
    for _, _, first, end in own_ranges(shards, ranges):
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return tuple(found)


@torch.no_grad()
def gather_parts(shards: Sequence[Shard], whole: Tensor, own: Tensor, group: DeviceGroup) -> None:
    """Copies a member's part to the whole, in memory that all members see; what is repeated the leader copies.

    Args:
        shards: the member's.
        whole, own: flat buffers of a single device and of the member.
        group: the member's.
    """
    for shard in shards:
        if shard.is_repeated and not group.is_leader:
            continue
        for there, here in shard.pieces(whole, own):
            there.copy_(here)


@torch.no_grad()
def scatter_parts(shards: Sequence[Shard], whole: Tensor, own: Tensor) -> None:
    """Copies a member's part from the whole; arguments as of :func:`gather_parts`."""
    for shard in shards:
        for there, here in shard.pieces(whole, own):
            here.copy_(there)


def add_repeated(shards: Sequence[Shard], gradient: Tensor, group: DeviceGroup) -> None:
    """Adds up the gradients of weights that every member holds, where each has those of its own tokens or samples.

    Args:
        shards: the member's.
        gradient: the member's flat buffer, changed in place.
        group: all members must call it.
    """
    parts = [gradient[shard.own.first : shard.own.end] for shard in shards if shard.is_repeated and shard.is_shared]
    if not parts:
        return
    total = group.all_reduce(torch.cat(parts))
    for part, values in zip(parts, total.split([part.numel() for part in parts]), strict=True):
        part.copy_(values)


def make_shards(
    workload: Workload, weights: Sequence[tuple[ModelWeight, Weight]], group: DeviceGroup
) -> tuple[Shard, ...]:
    """A member's part of each weight of a stage, in the same order.

    Args:
        workload: a captured model or a transformer, without adapters if its layers are divided.
        weights: as they lie in a single device's buffer.
        group: the member's.
    """
    shape = workload.transformer
    division = None if shape is not None or group.divides_samples else workload.division(group.degree)
    found, end = [], 0
    for _, weight in weights:
        op = workload.graph.ops[weight.op_index]
        name = weight.name.removeprefix(op.name + ".")
        if group.divides_samples:
            axis, ranges = 0, _own_rows(name, weight.shape, group)
        elif shape is not None:
            axis, ranges = _division(op.kind, name, weight.shape, shape, group)
        else:
            axis, blocks = division.weights.get(weight.name, (0, ())) if division is not None else (0, ())
            ranges = tuple(block_ranges(blocks, group.index, group.degree))
        own_shape = weight.shape
        if ranges:
            own_shape = (*weight.shape[:axis], sum(b - a for a, b in ranges), *weight.shape[axis + 1 :])
        own = Weight(weight.name, weight.op_index, end, own_shape, weight.is_tied)
        found.append(Shard(weight, own, axis, ranges, is_shared=division is None or weight.name in division.partial))
        end += prod(own_shape)
    return tuple(found)


def _division(
    kind: str, name: str, sizes: tuple[int, ...], shape: TransformerConfig, group: DeviceGroup
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The axis that is divided, and the ranges of a member along it; without ranges the weight is repeated."""
    if name in BY_HEADS.get(kind, ()):
        return 0, _ranges_of_heads(shape, group)
    if name in BY_ROWS.get(kind, ()):
        return 0, (part_range(sizes[0], group.index, group.degree),)
    if name in BY_COLUMNS.get(kind, ()):
        return 1, (part_range(sizes[1], group.index, group.degree),)
    return 0, ()


def _own_rows(name: str, sizes: tuple[int, ...], group: DeviceGroup) -> tuple[tuple[int, int], ...]:
    return (part_range(sizes[0], group.index, group.degree),) if has_own_rows(name, sizes) else ()


def has_own_rows(name: str, sizes: tuple[int, ...]) -> bool:
    """Where members divide samples, whether each has rows of a weight; the others are on every member."""
    return len(sizes) == 2 and not name.endswith(ADAPTER_LEAVES)


def _ranges_of_heads(shape: TransformerConfig, group: DeviceGroup) -> tuple[tuple[int, int], ...]:
    """Rows of a fused projection: this member's queries, keys and values."""
    found, first = [], 0
    for heads in (shape.heads, shape.num_kv_heads, shape.num_kv_heads):
        begin, end = (first + cut * shape.head_dim for cut in part_range(heads, group.index, group.degree))
        found.append((begin, end))
        first += heads * shape.head_dim
    return tuple(found)
