"""The profile: what each layer of a model takes on each kind of device. Its file is `hetplanner/profile@1`,
or `@2` with what groups of devices exchange."""

from collections import Counter
from functools import cached_property
from itertools import chain, repeat
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hetplanner.dtypes import DType
from hetplanner.schema import Bytes, Name, Noun, Seconds, Text
from hetplanner.workload.optimizers import OptimizerName

MAX_LAYERS = 20_000
MAX_ROWS = 100_000

Whole = Annotated[int, Field(strict=True, ge=1, le=10**15)]
Degree = Annotated[int, Field(strict=True, ge=1, le=64)]
MicroBatch = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class LayerRun(Noun):
    """Equal layers that follow one another.

    Attributes:
        name: of the layer; runs of equal layers share it.
        ops: operators of the model's OP-DAG in one of them.
        times: how many follow one another.
    """

    name: Name
    ops: Annotated[int, Field(strict=True, ge=1, le=MAX_LAYERS)]
    times: Annotated[int, Field(strict=True, ge=1, le=MAX_LAYERS)] = 1


class LayerCost(Noun):
    """What one layer takes for one micro-batch on one device of a kind.

    Attributes:
        kind: of the device, as in the GPU catalog or in the cluster file.
        degree: devices that share the layer by tensor parallelism.
        forward, backward: seconds; the loss counts with the last layer, recomputation with none.
        update: seconds of the optimizer's step on the layer's weights; None: not measured.
        kept: bytes that one micro-batch keeps on each device from forward to backward; None: not measured.
    """

    kind: Name
    layer: Name
    micro_batch: MicroBatch
    degree: Degree = 1
    forward: Seconds
    backward: Seconds
    update: Seconds | None = None
    kept: Bytes | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def cell(self) -> tuple[str, int, int]:
        """What was measured together: (kind, degree, micro-batch)."""
        return self.kind, self.degree, self.micro_batch


Collective = Literal["all-gather", "reduce-scatter", "all-reduce"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class CollectiveCost(Noun):
    """What a collective of devices of one host takes.

    Attributes:
        kind: of the devices.
        degree: how many take part.
        size: bytes of the whole tensor: what is gathered, or what each device gives to the sum.
        seconds: until the last device has its result.
    """

    kind: Name
    degree: Annotated[int, Field(strict=True, ge=2, le=64)]
    collective: Collective
    size: Bytes
    seconds: Seconds


class Profile(Noun):
    """See the module.

    Attributes:
        model: its name where it was measured.
        num_params, num_trained: of the model, by which it is known again.
        seq_len: tokens of a sample.
        dtype: number format of the arithmetic.
        optimizer: what `update` is about.
        layers: the model from its first operator to its last.
        collectives: measured between devices of one host; sizes in any order.
        source: who measured it, and with what.
        torch: version of torch that it was measured with, if any.
    """

    name: Name
    model: Name
    num_params: Whole
    num_trained: Annotated[int, Field(strict=True, ge=0, le=10**15)]
    seq_len: Whole
    dtype: DType
    optimizer: OptimizerName = "adamw"
    layers: Annotated[tuple[LayerRun, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    rows: Annotated[tuple[LayerCost, ...], Field(min_length=1, max_length=MAX_ROWS)]
    collectives: Annotated[
        tuple[CollectiveCost, ...], Field(max_length=MAX_ROWS, exclude_if=lambda value: not value)
    ] = ()
    source: Text = ""
    torch: Name | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        self._check_layers()
        names = {run.name for run in self.layers}
        for i, row in enumerate(self.rows):
            if row.layer not in names:
                raise ValueError(f"rows[{i}].layer: unknown layer {row.layer!r:.60}; the layers are {_few(names)}")
        count = Counter((row.cell, row.layer) for row in self.rows)
        twice = next((key for key, times in count.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"rows: {_cell_words(twice[0])} has layer {twice[1]!r:.60} twice; keep one of the two")
        for cell, rows in sorted(self.costs.items(), key=lambda item: item[0]):
            missing = sorted(names - rows.keys())
            if missing:
                raise ValueError(
                    f"rows: {_cell_words(cell)} has no row for layer {missing[0]!r:.60};"
                    " measure it, or leave all rows of that micro-batch out"
                )
            if not any(row.forward + row.backward > 0 for row in rows.values()):
                raise ValueError(f"rows: {_cell_words(cell)} takes no time at all; give its seconds")
        return self

    @model_validator(mode="after")
    def _collectives_are_of_its_kinds(self) -> Self:
        known = set()
        for i, row in enumerate(self.collectives):
            if row.kind not in self.kinds:
                raise ValueError(
                    f"collectives[{i}].kind: {row.kind!r:.60} has no rows; the kinds are {_few(set(self.kinds))}"
                )
            if row.seconds <= 0 or row.size <= 0:
                raise ValueError(f"collectives[{i}]: size and seconds must be above 0")
            key = row.kind, row.degree, row.collective, row.size
            if key in known:
                raise ValueError(
                    f"collectives[{i}]: {row.collective} of {row.size:,.0f} bytes is there twice; keep one"
                )
            known.add(key)
        return self

    def collective_curve(self, kind: str, degree: int, collective: Collective) -> tuple[tuple[float, float], ...]:
        """Bytes and seconds of what was measured, ascending; empty if nothing was."""
        rows = (row for row in self.collectives if (row.kind, row.degree, row.collective) == (kind, degree, collective))
        return tuple(sorted((row.size, row.seconds) for row in rows))

    def _check_layers(self) -> None:
        sizes: dict[str, int] = {}
        for i, run in enumerate(self.layers):
            if sizes.setdefault(run.name, run.ops) != run.ops:
                raise ValueError(
                    f"layers[{i}].ops: layer {run.name!r:.60} has {sizes[run.name]} operators before and {run.ops} here"
                )
        if sum(run.times for run in self.layers) > MAX_LAYERS:
            raise ValueError(f"layers: must be at most {MAX_LAYERS} in all")

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """The name of every layer, from the first to the last."""
        return tuple(chain.from_iterable(repeat(run.name, run.times) for run in self.layers))

    @cached_property
    def layer_ops(self) -> tuple[int, ...]:
        """Operators of every layer, from the first to the last."""
        return tuple(chain.from_iterable(repeat(run.ops, run.times) for run in self.layers))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of devices that it has rows of, in order."""
        return tuple(dict.fromkeys(row.kind for row in self.rows))

    @cached_property
    def costs(self) -> dict[tuple[str, int, int], dict[str, LayerCost]]:
        """By what was measured together, (kind, degree, micro-batch): the rows by layer."""
        found: dict[tuple[str, int, int], dict[str, LayerCost]] = {}
        for row in self.rows:
            found.setdefault(row.cell, {})[row.layer] = row
        return found

    def micro_batches(self, kind: str, degree: int = 1) -> tuple[int, ...]:
        """Micro-batches that were measured on a kind at a degree, ascending."""
        return tuple(sorted(size for k, d, size in self.costs if (k, d) == (kind, degree)))

    def model_seconds(self, kind: str, degree: int, micro_batch: int) -> float:
        """Seconds of a measured micro-batch through the whole model and back."""
        costs = self.costs[kind, degree, micro_batch]
        return sum((costs[run.name].forward + costs[run.name].backward) * run.times for run in self.layers)


def _cell_words(cell: tuple[str, int, int]) -> str:
    kind, degree, micro_batch = cell
    return f"{kind!r:.60} at micro-batch {micro_batch}" + (f", degree {degree}" if degree > 1 else "")


def _few(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
