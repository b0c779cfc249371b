"""The program of a captured model: its aten calls as data, so that any host can run it without the model's code.

A program belongs to an OP-DAG: every call is part of one op, or *free*: free calls depend on no weight (masks,
positions, rotary tables) and are computed again by every stage that needs them, so they never cross a boundary.
Free calls belong outside autocast: they are what the model computes in float32.
A call is named by its aten overload; the runtime performs only those on its own list. Nothing here is code.

In `args` and `kwargs` JSON stands for itself (numbers, strings, booleans, null, nested lists), and an object of one
key for something else: {"node": name}, {"parameter": name}, {"buffer": name}, {"batch": "inputs" | "labels"},
{"dtype": "float32"}, {"float": "inf"}.
"""

import math
from collections.abc import Container
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hetplanner.schema import Name, Noun
from hetplanner.workload.model import OpGraph
from hetplanner.workload.task import HiddenTokens, Task

MAX_NODES = 200_000
MAX_BUFFER_VALUES = 2**18
"""Values of a buffer that a program may carry; larger constants have to be computed in the model's forward."""
MAX_BUFFER_BYTES = 2**28
"""Bytes of all buffers of a program in memory."""

Extent = Annotated[int, Field(strict=True, ge=0, le=10**12)]
Shape = Annotated[tuple[Extent, ...], Field(max_length=16)]
ElementType = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
ELEMENT_BYTES: dict[ElementType, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
FLOAT_TYPES = frozenset(("float32", "float64", "float16", "bfloat16"))
CallName = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[a-z_][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)?$")]

RANDOM_INIT_CALLS = ("normal_", "uniform_", "exponential_", "log_normal_", "trunc_normal_")
INIT_CALLS = (
    *RANDOM_INIT_CALLS, "fill_", "zero_", "add_", "sub_", "mul_", "div_", "neg_", "pow_", "exp_", "log_", "sqrt_",
    "rsqrt_", "sigmoid_", "tanh_", "erfinv_", "clamp_", "clamp_min_", "clamp_max_", "values_",
)  # fmt: skip
"""In-place methods of a tensor that may fill a parameter. `trunc_normal_` is `torch.nn.init`'s (mean, deviation, least,
greatest); `values_` is ours: its arguments are the values themselves, row by row."""


class InitCall(Noun):
    """One in-place call that filled a parameter when the model was built, with numbers only.

    `view`: (offset, sizes, strides) of the part that it filled; None for the whole.
    """

    call: Literal[INIT_CALLS]  # type: ignore[valid-type]
    args: Annotated[tuple[float, ...], Field(max_length=MAX_BUFFER_VALUES)] = ()
    view: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None


class Parameter(Noun):
    """A weight. `op` owns it: the first op that uses it; `init` are the calls that fill it, in order."""

    shape: Shape
    op: Name
    init: tuple[InitCall, ...] = ()


class Buffer(Noun):
    """A constant, or statistics that training moves (`running`; batch norm's).

    Attributes:
        values: row by row.
        run_lengths: how many equal elements each value stands for, as in masks; None: one.
    """

    shape: Shape
    dtype: ElementType
    values: Annotated[tuple[float | int | bool, ...], Field(max_length=MAX_BUFFER_VALUES)]
    run_lengths: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1)], ...] | None,
        Field(max_length=MAX_BUFFER_VALUES, exclude_if=lambda value: value is None),
    ] = None
    running: bool = False

    @model_validator(mode="after")
    def _fills_its_shape(self) -> Self:
        lengths = self.run_lengths
        if lengths is not None and len(lengths) != len(self.values):
            raise ValueError(f"run_lengths: must be as many as values, {len(self.values)}, got {len(lengths)}")
        count = len(self.values) if lengths is None else sum(lengths)
        if count != self.num_elements:
            raise ValueError(f"values: must be {self.num_elements:,} for shape {list(self.shape)}, got {count:,}")
        return self

    @property
    def num_elements(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape)


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


class PerSample(Noun):
    """A number of a call that follows from the samples of a micro-batch.

    Attributes:
        place: where it stands: "args", "kwargs" or "shape", then keys and indices, such as ("args", 1, 0).
        each: how much it grows with each sample.
    """

    place: Annotated[tuple[Annotated[int, Field(strict=True, ge=0)] | Name, ...], Field(min_length=2, max_length=8)]
    each: Annotated[int, Field(strict=True, ge=1, le=10**12)]


class Program(Noun):
    """A captured model for micro-batches of `micro_batch` samples: shapes are fixed.

    Attributes:
        inputs, labels: shape and element type of one micro-batch.
        nodes: in topological order; those of an op need not be neighbours.
        outputs: by op, the nodes whose values other ops read: what crosses a boundary, in this order.
        frozen: weights that are not trained, sorted by name.
        loss: the node that holds the sum of the losses.
        num_targets: labels of one sample that count; the mean loss is over these.
        task: what a model of token ids learns; None for the next token of every place.
        per_sample: by node, its numbers that follow from `micro_batch`; None: that was not captured.
    """

    micro_batch: Annotated[int, Field(strict=True, ge=1)]
    inputs: Shape
    inputs_dtype: ElementType
    labels: Shape
    labels_dtype: ElementType = "int64"
    parameters: dict[Name, Parameter]
    buffers: dict[Name, Buffer] = Field(default_factory=dict)
    frozen: Annotated[tuple[Name, ...], Field(exclude_if=lambda value: not value)] = ()
    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=MAX_NODES)]
    outputs: dict[Name, tuple[Name, ...]]
    loss: Name
    num_targets: Annotated[int, Field(strict=True, ge=1)]
    task: Annotated[Task | None, Field(exclude_if=lambda value: value is None)] = None
    per_sample: Annotated[
        dict[Name, Annotated[tuple[PerSample, ...], Field(max_length=64)]] | None,
        Field(max_length=MAX_NODES, exclude_if=lambda value: value is None),
    ] = None

    @model_validator(mode="after")
    def _fits_its_task(self) -> Self:
        if self.task is None:
            return self
        halves = 1 if isinstance(self.task, HiddenTokens) else 2
        if len(self.inputs) != 2 or len(self.labels) != 2 or {self.inputs_dtype, self.labels_dtype} != {"int64"}:
            raise ValueError("task: belongs to inputs and labels of token ids (int64 [B, T])")
        if self.inputs != (self.labels[0], halves * self.labels[-1]) or self.num_targets > self.labels[-1]:
            raise ValueError(f"task: {self.task.kind} needs {halves} inputs a label, and no more targets than labels")
        return self

    @model_validator(mode="after")
    def _buffers_are_small(self) -> Self:
        size = sum(buffer.num_elements * ELEMENT_BYTES[buffer.dtype] for buffer in self.buffers.values())
        if size > MAX_BUFFER_BYTES:
            raise ValueError(f"buffers: must have at most {MAX_BUFFER_BYTES:,} bytes in all, got {size:,}")
        return self

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

    def has_samples(self, node: str) -> bool:
        """Whether the shape of a call's value follows from the samples of a micro-batch."""
        return any(number.place[0] == "shape" for number in (self.per_sample or {}).get(node, ()))

    @cached_property
    def shape_of(self) -> dict[str, Shape]:
        """By node with one output, its shape for one micro-batch."""
        return {node.name: node.shape for node in self.nodes if node.shape is not None}


def references(node: Node) -> list[tuple[str, str]]:
    """(kind, name) of everything that a call reads, as its arguments mention it.

    Raises:
        ValueError: a number that is not finite, or an object that names nothing.
    """
    found: list[tuple[str, str]] = []
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        value = pending.pop(0)
        if isinstance(value, list | tuple):
            pending[:0] = value
        elif isinstance(value, dict):
            if not all(isinstance(name, str) for name in value.values()):
                raise ValueError(f"nodes ({node.name}): an object in the arguments must hold a name, as a string")
            found += value.items()
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"nodes ({node.name}): numbers must be finite; write {{'float': '{value}'}}")
    return found


def check_fits_graph(program: Program, graph: OpGraph) -> None:
    """Refuses a program that does not belong to its graph.

    Every op's calls must read only earlier ops that it names as its inputs, and only floating-point outputs.

    Raises:
        ValueError: naming the node and the law.
    """
    ops = {op.name: (i, set(op.inputs)) for i, op in enumerate(graph.ops)}
    nodes = {node.name: node for node in program.nodes}
    if program.outputs.keys() != ops.keys():
        raise ValueError("program.outputs: must name every op of the graph, and no other")
    for name, parameter in program.parameters.items():
        if parameter.op not in ops:
            raise ValueError(f"program.parameters.{name}: op {parameter.op!r:.60} is not in the graph")
    for node in program.nodes:
        _check_node(node, nodes, ops, program)
    for op, names in program.outputs.items():
        for name in names:
            if nodes[name].op != op or nodes[name].dtype not in FLOAT_TYPES:
                raise ValueError(f"program.outputs.{op}: {name!r:.60} must be a floating-point tensor of that op")
    if nodes[program.loss].op != graph.ops[-1].name:
        raise ValueError(f"program.loss: must be of the last op {graph.ops[-1].name!r:.60}")


def _check_node(node: Node, nodes: dict[str, Node], ops: dict[str, tuple[int, set[str]]], program: Program) -> None:
    if node.op is not None and node.op not in ops:
        raise ValueError(f"program.nodes ({node.name}): op {node.op!r:.60} is not in the graph")
    for kind, name in references(node):
        if node.op is None:
            if kind == "parameter" or (kind == "node" and nodes[name].op is not None):
                raise ValueError(
                    f"program.nodes ({node.name}): is free, so it must not depend on weights ({name!r:.60})"
                )
        elif kind == "node" and nodes[name].op not in (None, node.op):
            source = str(nodes[name].op)
            if source not in ops[node.op][1] or name not in program.outputs[source]:
                raise ValueError(
                    f"program.nodes ({node.name}): reads {name!r:.60} of op {source!r:.60}, which must be one of its"
                    " op's inputs and of that op's outputs"
                )
