"""How the division of a value among members goes through the calls of a captured model.

A member has some elements of a value along one axis, or all of it. The axis consists of blocks, such as queries, keys
and values one behind the other; each member has an equal part of every block. A rule tells the layout of a call's
value from those of its arguments, and the arguments that a member passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any, Protocol

from hetplanner.workload.calls import ELEMENTWISE_CALLS
from hetplanner.workload.program import Node, Shape

MAX_BLOCKS = 4096
"""Along an axis; what needs more is not divided."""
FIRST_HEADS_AXIS = -3
"""Behind it are tokens and the width of a head."""


@dataclass(frozen=True)
class Layout:
    """A member's part of a value.

    Attributes:
        axis: that is divided.
        blocks: sizes along it, of all members together.
        sources: calls whose weights are divided for it; none: it has the member's tokens, and whole weights.
    """

    axis: int
    blocks: tuple[int, ...]
    sources: frozenset[str]

    @property
    def size(self) -> int:
        """Of the axis, for all members together."""
        return sum(self.blocks)


def is_even(layout: Layout, degree: int) -> bool:
    """Whether all members' parts are equal."""
    return all(block % degree == 0 for block in layout.blocks)


class MixedError(Exception):
    """A call computes with elements of several members.

    Attributes:
        sources: calls whose weights have to be whole.
        blocks: into which theirs might be divided instead; none: they cannot.
    """

    def __init__(self, sources: frozenset[str], blocks: tuple[int, ...] = ()) -> None:
        super().__init__(sources, blocks)
        self.sources, self.blocks = sources, blocks


class Values(Protocol):
    """What a rule knows of a call's arguments, and what it may ask for."""

    degree: int

    def layout(self, value: Any) -> Layout | None:
        """Of an argument; None: every member has the whole, or it is no tensor."""

    def shape(self, value: Any) -> Shape | None:
        """Of an argument for all members together; None: it is no tensor."""

    def entering(self, value: Any) -> Any:
        """A value that every member has, as an argument of a divided call: its gradients are added up."""

    def own_part(self, value: Any, axis: int, blocks: tuple[int, ...]) -> Any:
        """A member's part of a value that every member has."""


@dataclass(frozen=True)
class Divided:
    """A call as a member performs it.

    Attributes:
        layouts: of its value; of each where it has several.
    """

    layouts: tuple[Layout, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    call: str = ""


Rule = Callable[[Node, Values], Divided]


def divided(node: Node, values: Values) -> Divided:
    """A call of which some argument is divided.

    Raises:
        MixedError: it computes with elements of several members.
    """
    rule = _elementwise if node.call in ELEMENTWISE else RULES.get(node.call)
    if rule is None:
        raise MixedError(sources_of(node, values))
    return rule(node, values)


def sources_of(node: Node, values: Values) -> frozenset[str]:
    """Calls whose weights are divided for a call's arguments."""
    found: frozenset[str] = frozenset()
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending += value
        elif (layout := values.layout(value)) is not None:
            found |= layout.sources
    return found


def _argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _first(node: Node, values: Values) -> tuple[Layout, Shape]:
    """Layout and shape of the first argument, where it alone is divided."""
    layout, shape = values.layout(node.args[0]), values.shape(node.args[0])
    if layout is None or shape is None:
        raise MixedError(sources_of(node, values))
    return layout, shape


def _shape(node: Node, values: Values) -> Shape:
    """Of a call's value."""
    if node.shape is None:
        raise MixedError(sources_of(node, values))
    return node.shape


def _axis(number: Any, shape: Shape) -> int:
    return int(number) % max(1, len(shape))


def _broadcast(node: Node, values: Values, operands: Sequence[Any], ndim: int) -> tuple[Layout, list[Any]]:
    """The layout of a value that operands are broadcast to, and the operands as a member passes them."""
    found: list[Layout] = []
    for operand in operands:
        layout, shape = values.layout(operand), values.shape(operand)
        if layout is not None and shape is not None:
            found.append(Layout(layout.axis + ndim - len(shape), layout.blocks, layout.sources))
    sources = frozenset[str]().union(*(layout.sources for layout in found))
    if not found or len({(layout.axis, layout.blocks) for layout in found}) > 1:
        raise MixedError(sources)
    out = Layout(found[0].axis, found[0].blocks, sources)
    return out, [_beside(operand, values, out, ndim) for operand in operands]


def _beside(operand: Any, values: Values, out: Layout, ndim: int) -> Any:
    """An operand beside divided ones."""
    shape = values.shape(operand)
    if shape is None or values.layout(operand) is not None:
        return operand
    axis = out.axis - ndim + len(shape)
    if axis < 0 or shape[axis] == 1:
        return values.entering(operand)
    if shape[axis] != out.size:
        raise MixedError(out.sources)
    return values.own_part(operand, axis, out.blocks)


def _elementwise(node: Node, values: Values) -> Divided:
    if any(values.shape(value) is not None for value in node.kwargs.values()):
        raise MixedError(sources_of(node, values))
    layout, args = _broadcast(node, values, node.args, len(_shape(node, values)))
    return Divided((layout,), tuple(args), node.kwargs)


def _reshaped(node: Node, values: Values) -> Divided:
    layout, shape = _first(node, values)
    sizes = _shape(node, values)
    out = reshaped(layout, shape, sizes, values.degree)
    return Divided((out,), (node.args[0], _own_sizes(sizes, out)), {}, "reshape.default")


def reshaped(layout: Layout, shape: Shape, out: Shape, degree: int) -> Layout:
    """The layout of a value in another shape. Raises MixedError."""
    for dims, out_dims in _shared_axes(shape, out):
        if layout.axis not in dims:
            continue
        behind = prod(shape[layout.axis + 1 : dims.stop])
        times = prod(shape[dims.start : layout.axis])
        if len(layout.blocks) * times > MAX_BLOCKS:
            break
        flat = tuple(block * behind for block in layout.blocks) * times
        for axis in out_dims:
            before, unit = prod(out[out_dims.start : axis]), prod(out[axis + 1 : out_dims.stop])
            pattern = flat[: len(flat) // before]
            is_repeated = len(flat) % before == 0 and flat == pattern * before
            is_kept = len(dims) == len(out_dims) == 1
            if is_kept or (is_repeated and all(block % (unit * degree) == 0 for block in pattern)):
                return Layout(axis, tuple(block // unit for block in pattern), layout.sources)
        for axis in out_dims:
            before = prod(out[out_dims.start : axis])
            if len(flat) == 1 and 1 < before <= MAX_BLOCKS and out[axis] % degree == 0:
                raise MixedError(layout.sources, (flat[0] // before,) * before)
    raise MixedError(layout.sources)


def _shared_axes(shape: Shape, out: Shape) -> list[tuple[range, range]]:
    """Neighbouring axes of both shapes with the same number of elements."""
    found, i, k = [], 0, 0
    while i < len(shape) or k < len(out):
        first, out_first, size, out_size = i, k, 1, 1
        if i < len(shape):
            size, i = shape[i], i + 1
        if k < len(out):
            out_size, k = out[k], k + 1
        while size != out_size and i <= len(shape) and k <= len(out):
            if size < out_size and i < len(shape):
                size, i = size * shape[i], i + 1
            elif k < len(out):
                out_size, k = out_size * out[k], k + 1
            else:
                return []
        found.append((range(first, i), range(out_first, k)))
    return found


def local_shape(shape: Shape, layout: Layout | None, degree: int) -> Shape:
    """Of a member's part; where parts are unequal, of the smaller."""
    if layout is None:
        return shape
    return tuple(size // degree if axis == layout.axis else size for axis, size in enumerate(shape))


def _moved(node: Node, values: Values, order: Sequence[int]) -> Divided:
    layout, _ = _first(node, values)
    return Divided((Layout(order.index(layout.axis), layout.blocks, layout.sources),), node.args, node.kwargs)


def _transposed(node: Node, values: Values) -> Divided:
    _, shape = _first(node, values)
    one, other = (_axis(_argument(node, place, f"dim{place - 1}"), shape) for place in (1, 2))
    order = list(range(len(shape)))
    order[one], order[other] = other, one
    return _moved(node, values, order)


def _permuted(node: Node, values: Values) -> Divided:
    _, shape = _first(node, values)
    return _moved(node, values, [_axis(axis, shape) for axis in _argument(node, 1, "dims")])


def _turned(node: Node, values: Values) -> Divided:
    _, shape = _first(node, values)
    return _moved(node, values, list(range(len(shape)))[::-1])


def _with_axis(node: Node, values: Values) -> Divided:
    """unsqueeze"""
    layout, shape = _first(node, values)
    new = int(_argument(node, 1, "dim")) % (len(shape) + 1)
    axis = layout.axis + (new <= layout.axis)
    return Divided((Layout(axis, layout.blocks, layout.sources),), node.args, node.kwargs)


def _without_axis(node: Node, values: Values) -> Divided:
    """select, squeeze"""
    layout, shape = _first(node, values)
    gone = _axis(_argument(node, 1, "dim"), shape)
    if gone == layout.axis:
        raise MixedError(layout.sources)
    is_there = node.call == "squeeze.dim" and shape[gone] != 1
    axis = layout.axis - (gone < layout.axis and not is_there)
    return Divided((Layout(axis, layout.blocks, layout.sources),), node.args, node.kwargs)


def _unbound(node: Node, values: Values) -> Divided:
    """unbind"""
    layout, shape = _first(node, values)
    gone = _axis(_argument(node, 1, "dim", 0), shape)
    if gone == layout.axis or shape[gone] > MAX_BLOCKS:
        raise MixedError(layout.sources)
    one = Layout(layout.axis - (gone < layout.axis), layout.blocks, layout.sources)
    return Divided((one,) * shape[gone], node.args, node.kwargs)


def _expanded(node: Node, values: Values) -> Divided:
    layout, shape = _first(node, values)
    sizes = _shape(node, values)
    out = Layout(layout.axis + len(sizes) - len(shape), layout.blocks, layout.sources)
    return Divided((out,), (node.args[0], _own_sizes(sizes, out)))


def _own_sizes(shape: Shape, layout: Layout) -> list[int]:
    """Sizes of any member's part, as calls take them: -1 for what it has along the axis."""
    return [-1 if axis == layout.axis else size for axis, size in enumerate(shape)]


def _sliced(node: Node, values: Values) -> Divided:
    layout, shape = _first(node, values)
    axis = _axis(_argument(node, 1, "dim", 0), shape)
    if axis != layout.axis:
        return Divided((layout,), node.args, node.kwargs)
    size, step = shape[axis], _argument(node, 4, "step", 1)
    first, end = (
        min(size, cut if cut >= 0 else max(0, cut + size))
        for cut in (_argument(node, 2, "start", 0) or 0, _default(_argument(node, 3, "end"), size))
    )
    if step != 1 or not is_even(layout, values.degree):
        raise MixedError(layout.sources)
    (blocks,) = _cut(layout, (first, end), size)[1:2] or ((),)
    args = (node.args[0], axis, first // values.degree, end // values.degree)
    return Divided((Layout(axis, blocks, layout.sources),), args)


def _default(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _cut(layout: Layout, cuts: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Blocks in front of the first cut, between cuts, and behind the last. Raises MixedError."""
    found: list[list[int]] = [[]]
    pending, place = list(cuts), 0
    for block in (*layout.blocks, 0):
        while pending and place == pending[0]:
            found.append([])
            del pending[0]
        if block:
            found[-1].append(block)
        place += block
    if pending:
        edges = sorted({0, size, *cuts, *(sum(layout.blocks[:i]) for i in range(len(layout.blocks)))})
        raise MixedError(layout.sources, tuple(b - a for a, b in pairwise(edges)))
    return [tuple(blocks) for blocks in found]


def _split(node: Node, values: Values) -> Divided:
    """split, split_with_sizes, chunk"""
    layout, shape = _first(node, values)
    axis, sizes = _axis(_argument(node, 2, "dim", 0), shape), node.args[1]
    size = shape[axis]
    if node.call == "chunk.default":
        sizes = -(-size // sizes)
    if isinstance(sizes, int):
        if size > sizes * MAX_BLOCKS:
            raise MixedError(layout.sources)
        sizes = [min(sizes, size - first) for first in range(0, size, sizes)]
    each = list(sizes)
    if axis != layout.axis:
        return Divided((layout,) * len(each), node.args, node.kwargs)
    if not is_even(layout, values.degree):
        raise MixedError(layout.sources)
    cuts = [sum(each[:i]) for i in range(1, len(each))]
    layouts = tuple(Layout(axis, blocks, layout.sources) for blocks in _cut(layout, cuts, size))
    own = [part // values.degree for part in each]
    return Divided(layouts, (node.args[0], own, axis), {}, "split_with_sizes.default")


def _joined(node: Node, values: Values) -> Divided:
    """cat, along another axis than the divided one"""
    out_shape = _shape(node, values)
    axis = _axis(_argument(node, 1, "dim", 0), out_shape)
    sources = sources_of(node, values)
    known = [layout for part in node.args[0] if (layout := values.layout(part)) is not None]
    if len({(part.axis, part.blocks) for part in known}) != 1 or known[0].axis == axis:
        raise MixedError(sources)
    out = Layout(known[0].axis, known[0].blocks, sources)
    parts = [_beside(part, values, out, len(out_shape)) for part in node.args[0]]
    return Divided((out,), (parts, *node.args[1:]), node.kwargs)


def _stacked(node: Node, values: Values) -> Divided:
    out_shape = _shape(node, values)
    axis = _axis(_argument(node, 1, "dim", 0), out_shape)
    layout, parts = _broadcast(node, values, node.args[0], len(out_shape) - 1)
    out = Layout(layout.axis + (axis <= layout.axis), layout.blocks, layout.sources)
    return Divided((out,), (parts, *node.args[1:]), node.kwargs)


def _along(node: Node, values: Values) -> Divided:
    """Softmax along another axis than the divided one."""
    layout, shape = _first(node, values)
    if _axis(_argument(node, 1, "dim"), shape) == layout.axis:
        raise MixedError(layout.sources)
    return Divided((layout,), node.args, node.kwargs)


def _reduced(node: Node, values: Values) -> Divided:
    """A sum or mean along other axes than the divided one."""
    layout, shape = _first(node, values)
    given = _argument(node, 1, "dim")
    axes = {_axis(axis, shape) for axis in (given if isinstance(given, list | tuple) else range(len(shape)))}
    if layout.axis in axes:
        raise MixedError(layout.sources)
    axis = layout.axis
    if not _argument(node, 2, "keepdim", default=False):
        axis -= sum(gone < axis for gone in axes)
    return Divided((Layout(axis, layout.blocks, layout.sources),), node.args, node.kwargs)


def _normalized(node: Node, values: Values) -> Divided:
    layout, shape = _first(node, values)
    if layout.axis >= len(shape) - len(_argument(node, 1, "normalized_shape")):
        raise MixedError(layout.sources)
    weights = [values.entering(value) if values.shape(value) is not None else value for value in node.args[2:]]
    return Divided((layout,), (*node.args[:2], *weights), node.kwargs)


def _typed(node: Node, values: Values) -> Divided:
    """type_as"""
    layout, _ = _first(node, values)
    return Divided((layout,), node.args, node.kwargs)


def _repeated(node: Node, values: Values) -> Divided:
    """repeat_interleave"""
    layout, shape = _first(node, values)
    repeats, dim = node.args[1], _argument(node, 2, "dim")
    if dim is None:
        raise MixedError(layout.sources)
    times = repeats if _axis(dim, shape) == layout.axis else 1
    blocks = tuple(block * times for block in layout.blocks)
    return Divided((Layout(layout.axis, blocks, layout.sources),), node.args, node.kwargs)


def _attention(node: Node, values: Values) -> Divided:
    """Heads are divided, those of keys and values, too."""
    *parts, shape = *node.args[:3], values.shape(node.args[0])
    rest, is_grouped = list(node.args[3:]), bool(node.kwargs.get("enable_gqa"))
    sources, known = sources_of(node, values), [values.layout(part) for part in parts]
    out = next((layout for layout in known if layout is not None), None)
    if out is None or shape is None or len(shape) + FIRST_HEADS_AXIS < out.axis or (is_grouped and None in known):
        raise MixedError(sources)
    if any(
        has is not None and (has.axis != out.axis or (has.blocks != out.blocks and not is_grouped)) for has in known
    ):
        raise MixedError(sources)
    if is_grouped and any(len(layout.blocks) > 1 for layout in known if layout is not None):
        raise MixedError(sources)
    parts = [_beside(part, values, out, len(shape)) for part in parts]
    out = Layout(out.axis, out.blocks, sources)
    rest[:1] = [_beside(rest[0], values, out, len(shape))] if rest else []
    kwargs = {
        name: _beside(part, values, out, len(shape)) if name == "attn_mask" else part
        for name, part in node.kwargs.items()
    }
    return Divided((out if known[0] is None else replace(known[0], sources=sources),), (*parts, *rest), kwargs)


def _product(node: Node, values: Values) -> Divided:
    """matmul, bmm and baddbmm: divided in front of rows and columns."""
    ndim = len(_shape(node, values))
    layout, args = _broadcast(node, values, node.args, ndim)
    if layout.axis > ndim + FIRST_HEADS_AXIS:
        raise MixedError(layout.sources)
    return Divided((layout,), tuple(args), node.kwargs)


ELEMENTWISE = ELEMENTWISE_CALLS | {
    "dropout.default", "contiguous.default", "alias.default", "to.dtype", "_to_copy.default", "detach.default",
    "masked_fill.Scalar", "masked_fill.Tensor", "zeros_like.default", "ones_like.default", "full_like.default",
}  # fmt: skip
RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int"), _reshaped
    ),
    **dict.fromkeys(("split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default"), _split),
    **dict.fromkeys(("softmax.int", "_softmax.default", "_safe_softmax.default", "log_softmax.int"), _along),
    **dict.fromkeys(("sum.dim_IntList", "mean.dim"), _reduced),
    **dict.fromkeys(("layer_norm.default", "rms_norm.default"), _normalized),
    **dict.fromkeys(("matmul.default", "bmm.default", "baddbmm.default"), _product),
    **dict.fromkeys(("select.int", "squeeze.dim"), _without_axis),
    **dict.fromkeys(("numpy_T.default", "t.default"), _turned),
    "type_as.default": _typed,
    "transpose.int": _transposed,
    "permute.default": _permuted,
    "unsqueeze.default": _with_axis,
    "unbind.int": _unbound,
    "expand.default": _expanded,
    "slice.Tensor": _sliced,
    "cat.default": _joined,
    "stack.default": _stacked,
    "repeat_interleave.self_int": _repeated,
    "scaled_dot_product_attention.default": _attention,
}
"""By call, where it is more than element by element."""
