"""What every member of a group computes and keeps of a captured model whose layers are divided, by op.

FLOPs and kept bytes of an op were measured for all members together. Here its calls tell which share of them is whole
on each: products count two FLOPs an element and term, other calls one an element; for the backward a call keeps its
inputs or its output, each value once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from hetplanner.workload.capturing.division import Division
from hetplanner.workload.program import ELEMENT_BYTES, Node, Program, Shape, references

PRODUCTS = frozenset(("linear.default", "addmm.default", "matmul.default", "bmm.default", "baddbmm.default"))
ATTENTION = "scaled_dot_product_attention.default"
MASK_PLACE = 3
KEEPS_INPUTS = PRODUCTS | {
    ATTENTION, "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar", "gelu.default", "silu.default", "layer_norm.default",
    "rms_norm.default", "cross_entropy_loss.default", "conv2d.default", "batch_norm.default", "rsub.Scalar",
}  # fmt: skip
KEEPS_OUTPUT = frozenset((
    "softmax.int", "_softmax.default", "tanh.default", "sigmoid.default", "exp.default", "rsqrt.default", ATTENTION,
    "relu.default", "dropout.default", "log_softmax.int", "_safe_softmax.default",
))  # fmt: skip
VIEWS = frozenset((
    "view.default", "reshape.default", "transpose.int", "permute.default", "unsqueeze.default", "squeeze.dim",
    "expand.default", "slice.Tensor", "select.int", "getitem", "alias.default", "flatten.using_ints", "to.dtype",
    "split.Tensor", "chunk.default", "split_with_sizes.default", "contiguous.default",
))  # fmt: skip


@dataclass(frozen=True)
class WholeShares:
    """By op, from 0 to 1 or elements.

    Attributes:
        computed: share of its FLOPs that every member computes.
        kept: share of what it keeps for its backward that every member keeps.
        params: elements of its weights that every member has.
    """

    computed: dict[str, float]
    kept: dict[str, float]
    params: dict[str, int]


def whole_shares(program: Program, division: Division) -> WholeShares:
    """What every member computes and keeps.

    Args:
        program: for all members together.
        division: of it.
    """
    flops: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    kept: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    values, kept_values = {node.name: node for node in program.nodes}, set[str]()
    base = _bases(program)
    for node in program.nodes:
        if node.op is None:
            continue
        flops[node.op][not _is_divided(node, division)] += _flops(node, program)
        if node.call == ATTENTION and len(node.args) > MASK_PLACE and isinstance(node.args[MASK_PLACE], dict):
            mask = values.get(node.args[MASK_PLACE].get("node", ""))
            if mask is not None and mask.dtype == "bool":  # attention makes numbers of it
                kept[node.op][not _is_divided(mask, division)] += prod(mask.shape or (0,)) * ELEMENT_BYTES["float32"]
        names = [name for kind, name in references(node) if kind == "node"] if node.call in KEEPS_INPUTS else []
        for name in (*names, *((node.name,) if node.call in KEEPS_OUTPUT else ())):
            value = base.get(name, name)
            if value in kept_values or values[value].op is None:
                continue
            kept_values.add(value)
            size = prod(values[value].shape or (0,)) * ELEMENT_BYTES[values[value].dtype or "float32"]
            kept[node.op][not _is_divided(values[value], division)] += size
    return WholeShares(_shares(flops), _shares(kept), _whole_params(program, division))


def _is_divided(node: Node, division: Division) -> bool:
    step = division.steps.get(node.name)
    if node.name in division.layouts or (step is not None and step.kind in ("sum", "gather", "rows", "loss")):
        return True
    return any(kind == "parameter" and name in division.weights for kind, name in references(node))


def _bases(program: Program) -> dict[str, str]:
    """By value that is a view of another, that other."""
    base: dict[str, str] = {}
    for node in program.nodes:
        if node.call in VIEWS and node.args and isinstance(node.args[0], dict) and "node" in node.args[0]:
            name: str = node.args[0]["node"]
            base[node.name] = base.get(name, name)
    return base


def _flops(node: Node, program: Program) -> float:
    size = float(prod(node.shape or (0,)))
    shapes = [program.shape_of.get(name, ()) for kind, name in references(node) if kind == "node"]
    if node.call in PRODUCTS and shapes:
        return 2.0 * size * _terms(node, shapes, program)
    if node.call == ATTENTION and len(shapes) > 1 and len(shapes[1]) > 1:
        return 4.0 * size * shapes[1][-2]
    return size


def _terms(node: Node, shapes: list[Shape], program: Program) -> int:
    """Of each element of a product."""
    if node.call == "addmm.default":
        value = node.args[1].get("node", "") if isinstance(node.args[1], dict) else ""
        return program.shape_of.get(value, (1,))[-1]
    return shapes[-1 if node.call == "baddbmm.default" and len(shapes) < 2 else 0][-1] if shapes[0] else 1


def _shares(found: dict[str, list[float]]) -> dict[str, float]:
    return {op: whole / (divided + whole) for op, (divided, whole) in found.items() if divided + whole > 0}


def _whole_params(program: Program, division: Division) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for name, users in program.users.items():
        if name not in division.weights:
            for op in users:
                found[op] += prod(program.parameters[name].shape)
    return dict(found)
