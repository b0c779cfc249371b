"""Products of values and weights among the calls of a captured model: linear layers, turned matrices and experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetplanner.workload.program import Node, Program

TURNS = ("numpy_T.default", "t.default")
TAKES = "index.Tensor"
MATRIX_NDIM = 2
EXPERTS_NDIM = 3


@dataclass(frozen=True)
class Product:
    """A product of a value and a weight.

    Attributes:
        value, weight: their places among the call's arguments.
        name: of the weight's parameter.
        rows, columns: axes of the parameter.
        contracted: axis of the value.
        out: axis of the product that the rows give.
        bias: its place; None: there is none.
    """

    value: int
    weight: int
    name: str
    rows: int
    columns: int
    contracted: int
    out: int
    bias: int | None = None


def weights_behind_calls(program: Program) -> dict[str, str]:
    """By call that turns a matrix, or takes experts' weights by their numbers: the parameter."""
    found = {}
    for node in program.nodes:
        name = _name(node.args[0], "parameter") if node.args else ""
        ndim = len(program.parameters[name].shape) if name else 0
        is_turned = node.call in TURNS and ndim == MATRIX_NDIM
        if is_turned or (node.call == TAKES and ndim == EXPERTS_NDIM and len(node.args[1]) == 1):
            found[node.name] = name
    return found


def products_of(program: Program) -> dict[str, Product]:
    """By call, the products with weights."""
    behind, found = weights_behind_calls(program), {}
    for node in program.nodes:
        if not node.kwargs and (product := _product(node, program, behind)) is not None:
            found[node.name] = product
    return found


def _product(node: Node, program: Program, behind: dict[str, str]) -> Product | None:
    parameters = [_name(argument, "parameter") for argument in node.args]
    turned = [behind.get(_name(argument, "node"), "") for argument in node.args]
    if node.call == "linear.default" and _ndim(parameters[1], program) == MATRIX_NDIM:
        last, has_bias = len(node.shape or ()) - 1, len(node.args) > MATRIX_NDIM and node.args[2] is not None
        return Product(0, 1, parameters[1], 0, 1, last, last, 2 if has_bias else None)
    if node.call == "addmm.default" and _ndim(parameters[2], program) == MATRIX_NDIM:
        return Product(1, 2, parameters[2], 1, 0, 1, 1, 0)
    if node.call == "matmul.default" and _ndim(turned[1], program) == MATRIX_NDIM:
        last = len(node.shape or ()) - 1
        return Product(0, 1, turned[1], 0, 1, last, last)
    if node.call == "bmm.default" and _ndim(turned[0], program) == EXPERTS_NDIM:
        return Product(1, 0, turned[0], 1, 2, 1, 1)
    if node.call == "bmm.default" and _ndim(turned[1], program) == EXPERTS_NDIM:
        return Product(0, 1, turned[1], 2, 1, 2, 2)
    return None


def _name(argument: Any, kind: str) -> str:
    return argument.get(kind, "") if isinstance(argument, dict) else ""


def _ndim(name: str, program: Program) -> int:
    return len(program.parameters[name].shape) if name else 0
