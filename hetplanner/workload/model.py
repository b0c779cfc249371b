"""The OP-DAG of a model: what each operator computes, keeps, sends and owns, per sample.

Operators stand in a topological order; a pipeline stage is a contiguous range of them.
"""

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hetplanner.schema import Name, Noun

OpKind = Literal[
    "embedding", "attention", "mlp", "norm", "head", "loss", "convolution", "linear", "pooling", "activation",
    "dropout", "parameter", "function", "narrow", "widen",
]  # fmt: skip
Count = Annotated[int, Field(strict=True, ge=0, le=10**15)]
Flops = Annotated[float, Field(strict=True, ge=0, le=1e24)]

MAX_OPS = 20_000


class Op(Noun):
    """One operator. FLOPs and bytes are for one sample (one sequence) in the graph's dtype.

    Attributes:
        inputs: names of the operators whose outputs it reads; empty for one that reads the batch.
        layer: the model's layer it belongs to; None outside the layers (embedding, head, loss).
        num_params: elements of the weights it uses, shared ones included.
        num_trained: those of them that are trained; None for all.
        tied: name of the earlier operator that owns the shared weight.
        activation_bytes: kept from forward to backward.
        working_bytes: there at most in its backward, beside what is kept and gradients of weights; 0: not known.
        resized_activation_bytes, resized_working_bytes: the same in 16 bits for a graph of 32, in 32 for one of 16;
            None: not known.
        largest_weight: elements of its largest trained weight, whose gradient is made before it is added; 0: not known.
        output_bytes: size of its output, sent when the next operator is elsewhere.
    """

    name: Name
    kind: OpKind
    layer: Annotated[int, Field(strict=True, ge=0)] | None = None
    inputs: tuple[Name, ...] = ()
    num_params: Count = 0
    num_trained: Annotated[Count | None, Field(exclude_if=lambda value: value is None)] = None
    tied: Name | None = None
    forward_flops: Flops = 0.0
    backward_flops: Flops = 0.0
    activation_bytes: Count = 0
    working_bytes: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    resized_activation_bytes: Annotated[Count | None, Field(exclude_if=lambda value: value is None)] = None
    resized_working_bytes: Annotated[Count | None, Field(exclude_if=lambda value: value is None)] = None
    largest_weight: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    output_bytes: Count = 0

    @model_validator(mode="after")
    def _trains_what_it_has(self) -> Self:
        if self.trained > self.num_params:
            raise ValueError(f"num_trained must be at most num_params {self.num_params}, got {self.num_trained}")
        return self

    @property
    def trained(self) -> int:
        """Elements of its weights that are trained, shared ones included: those with gradients and states."""
        return self.num_params if self.num_trained is None else self.num_trained


def _resized(op: Op, old_bytes: int, new_bytes: int) -> Op:
    """An operator with elements of another size."""
    changes: dict[str, int] = {"output_bytes": -(-op.output_bytes * new_bytes // old_bytes)}
    for name in ("activation_bytes", "working_bytes"):
        before, known = getattr(op, name), getattr(op, f"resized_{name}")
        changes[name] = -(-before * new_bytes // old_bytes) if known is None else known
        if known is not None:
            changes[f"resized_{name}"] = before
    return op.replace(**changes)


class OpGraph(Noun):
    """Operators in topological order."""

    ops: Annotated[tuple[Op, ...], Field(min_length=1, max_length=MAX_OPS)]

    @model_validator(mode="after")
    def _is_a_dag(self) -> Self:
        seen: set[str] = set()
        for i, op in enumerate(self.ops):
            for name in (*op.inputs, *((op.tied,) if op.tied else ())):
                if name not in seen:
                    raise ValueError(f"ops[{i}] ({op.name}): reads {name!r}, which no earlier op is called; reorder")
            if op.name in seen:
                raise ValueError(f"ops[{i}].name: must be unique, {op.name!r} is already taken")
            seen.add(op.name)
        return self

    def in_dtype(self, old_bytes: int, new_bytes: int) -> Self:
        """The graph with elements of another size.

        Where a capture did not measure what is kept in it, that is an estimate: masks and indices scale along.
        """
        if old_bytes == new_bytes:
            return self
        return self.replace(ops=tuple(_resized(op, old_bytes, new_bytes) for op in self.ops))

    @cached_property
    def num_params(self) -> int:
        """Parameters of the model; a tied weight counts once."""
        return sum(op.num_params for op in self.ops if op.tied is None)

    @cached_property
    def num_trained(self) -> int:
        """Parameters that are trained; a tied weight counts once."""
        return sum(op.trained for op in self.ops if op.tied is None)

    @cached_property
    def first_trained(self) -> int:
        """Index of the first op with trained weights: those in front have no backward; 0 where nothing is frozen."""
        if all(op.num_trained is None for op in self.ops):
            return 0
        return next((i for i, op in enumerate(self.ops) if op.trained), len(self.ops))

    @cached_property
    def num_layers(self) -> int:
        """Number of layers: the most stages this graph can be cut into."""
        layers = {op.layer for op in self.ops if op.layer is not None}
        return len(layers) or len(self.ops)

    @cached_property
    def crossing_ops(self) -> tuple[tuple[int, ...], ...]:
        """By boundary (before op 0 .. behind the last): the ops in front whose outputs ops behind it read.

        A stage hands on what later stages need, its own or not: a skip connection crosses every boundary between.
        """
        index = {op.name: i for i, op in enumerate(self.ops)}
        last_use = list(range(len(self.ops)))
        for i, op in enumerate(self.ops):
            for name in op.inputs:
                last_use[index[name]] = i
        crossing: list[tuple[int, ...]] = [()]
        for boundary in range(1, len(self.ops) + 1):
            live = (*crossing[-1], boundary - 1)
            crossing.append(tuple(i for i in live if last_use[i] >= boundary))
        return tuple(crossing)

    @cached_property
    def waits(self) -> tuple[tuple[int, int, int], ...]:
        """``(op, used, next_use)``: an output that no op between two of its uses reads; the first use is its own op.

        A stage that lies between the two relays the output. Neighbouring uses are left out.
        """
        index = {op.name: i for i, op in enumerate(self.ops)}
        used = list(range(len(self.ops)))
        found = []
        for i, op in enumerate(self.ops):
            for source in sorted({index[name] for name in op.inputs}):
                if i - used[source] > 1:
                    found.append((source, used[source], i))
                used[source] = i
        return tuple(found)

    @cached_property
    def tied_groups(self) -> dict[str, tuple[int, ...]]:
        """Owner's name -> indices of all ops that use its weight (the owner first)."""
        index = {op.name: i for i, op in enumerate(self.ops)}
        groups: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            if op.tied is not None:
                groups.setdefault(op.tied, [index[op.tied]]).append(i)
        return {name: tuple(members) for name, members in groups.items()}
