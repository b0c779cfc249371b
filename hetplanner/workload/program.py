"""The program of a captured model: its aten calls as data, so that any host can run it without the model's code.

A program belongs to an OP-DAG: every call is part of one op, or *free*: free calls depend on no weight (masks,
positions, rotary tables) and are computed again by every stage that needs them, so they never cross a boundary.
A call is named by its aten overload; the runtime performs only those on its own list. Nothing here is code.

In `args` and `kwargs` JSON stands for itself (numbers, strings, booleans, null, nested lists), and an object of one
key for something else: {"node": name}, {"parameter": name}, {"buffer": name}, {"batch": "inputs" | "labels"},
{"dtype": "float32"}, {"float": "inf"}.
"""

from collections.abc import Container
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hetplanner.schema import Name, Noun

MAX_NODES = 200_000
MAX_BUFFER_ELEMENTS = 65_536
"""Values of a buffer that a program may carry; larger constants have to be computed in the model's forward."""

Extent = Annotated[int, Field(strict=True, ge=0, le=10**12)]
Shape = Annotated[tuple[Extent, ...], Field(max_length=16)]
ElementType = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
CallName = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[a-z_][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)?$")]


class InitCall(Noun):
    """One in-place call that filled a parameter when the model was built, with numbers only.

    `view`: (offset, sizes, strides) of the part that it filled; None for the whole.
    """

    call: CallName
    args: tuple[float, ...] = ()
    view: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None


class Parameter(Noun):
    """A weight. `op` owns it: the first op that uses it; `init` are the calls that fill it, in order."""

    shape: Shape
    op: Name
    init: tuple[InitCall, ...] = ()


class Buffer(Noun):
    """A constant, or statistics that training moves (`running`; batch norm's). `values` are row by row."""

    shape: Shape
    dtype: ElementType
    values: Annotated[tuple[float | int | bool, ...], Field(max_length=MAX_BUFFER_ELEMENTS)]
    running: bool = False


class Node(Noun):
    """One call.

    Attributes:
        call: overload such as `linear.default`, without the namespace; `getitem` takes one of several outputs.
        op: the op it is part of; None if free.
        shape, dtype: of its output for one micro-batch; None where it has several.
    """

    name: Name
    call: CallName
    args: tuple[Any, ...] = ()
    kwargs: dict[Name, Any] = Field(default_factory=dict)
    op: Name | None = None
    shape: Shape | None = None
    dtype: ElementType | None = None


class Program(Noun):
    """A captured model for micro-batches of `micro_batch` samples: shapes are fixed.

    Attributes:
        inputs, labels: shape and element type of one micro-batch.
        nodes: in topological order; those of an op need not be neighbours.
        outputs: by op, the nodes whose values other ops read: what crosses a boundary, in this order.
        loss: the node that holds the sum of the losses.
        num_targets: labels of one sample; the mean loss is over these.
    """

    micro_batch: Annotated[int, Field(strict=True, ge=1)]
    inputs: Shape
    inputs_dtype: ElementType
    labels: Shape
    labels_dtype: ElementType = "int64"
    parameters: dict[Name, Parameter]
    buffers: dict[Name, Buffer] = Field(default_factory=dict)
    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=MAX_NODES)]
    outputs: dict[Name, tuple[Name, ...]]
    loss: Name
    num_targets: Annotated[int, Field(strict=True, ge=1)]

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        seen: set[str] = set()
        known: dict[str, Container[str]] = {
            "parameter": self.parameters, "buffer": self.buffers, "node": seen, "batch": ("inputs", "labels")
        }  # fmt: skip
        for i, node in enumerate(self.nodes):
            for kind, name in references(node):
                if kind in known and name not in known[kind]:
                    raise ValueError(f"nodes[{i}] ({node.name}): reads {kind} {name!r:.60}, which is not there before")
            if node.name in seen:
                raise ValueError(f"nodes[{i}].name: must be unique, {node.name!r:.60} is already taken")
            seen.add(node.name)
        for name in (self.loss, *(n for names in self.outputs.values() for n in names)):
            if name not in seen:
                raise ValueError(f"outputs: {name!r:.60} is no node")
        return self

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """By parameter, the ops that read it, in the order of their calls."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.parameters}
        for node in self.nodes:
            for kind, name in references(node):
                if kind == "parameter" and node.op is not None:
                    found[name][node.op] = None
        return {name: tuple(ops) or (self.parameters[name].op,) for name, ops in found.items()}

    @cached_property
    def shape_of(self) -> dict[str, Shape]:
        """By node with one output, its shape for one micro-batch."""
        return {node.name: node.shape for node in self.nodes if node.shape is not None}


def references(node: Node) -> list[tuple[str, str]]:
    """(kind, name) of everything that a call reads, as its arguments mention it."""
    found: list[tuple[str, str]] = []
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        value = pending.pop(0)
        if isinstance(value, list | tuple):
            pending[:0] = value
        elif isinstance(value, dict):
            found += [(str(kind), str(name)) for kind, name in value.items()]
    return found
