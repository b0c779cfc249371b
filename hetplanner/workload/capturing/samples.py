"""A captured program for micro-batches of another size, and whether its loss is a sum over samples.

A model is exported twice, for two sizes of a micro-batch. The numbers of its calls that differ follow from the samples;
`Program.per_sample` has them. Devices that divide the samples of a micro-batch perform the program for their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.workload.calls import RANDOM_CALLS, STATISTICS_CALLS
from hetplanner.workload.program import Node, PerSample, Program, references

SUMS = frozenset(("cross_entropy_loss.default",))
"""Losses with an argument `reduction`."""
REDUCTION_PLACE, SUM_REDUCTION = 3, 2
ADDS_UP = frozenset(("sum.default", "sum.dim_IntList"))
RESHAPES = frozenset(("view.default", "reshape.default", "flatten.using_ints", "_unsafe_view.default"))
REORDERS = frozenset((
    "flip.default", "gather.default", "index.Tensor", "index_add.default", "index_put.default", "index_select.default",
    "roll.default", "scatter.src", "scatter_add.default", "sort.default", "take_along_dim.default",
))  # fmt: skip
FROM_SHAPES = frozenset(("new_ones.default", "new_zeros.default", "new_full.default"))
"""Calls that read no values of their tensor."""
LINEAR = frozenset(("add.Tensor", "sub.Tensor", "mul.Scalar", "div.Scalar", "neg.default", "to.dtype", "view.default"))
"""What a sum over samples may go through."""
DRAWN = frozenset(("dropout.default", "scaled_dot_product_attention.default"))
"""Random calls of which each device can take its own samples."""
DROPOUT_PLACES = {"scaled_dot_product_attention.default": 4, "lstm.input": 5, "gru.input": 5}
"""Calls that draw only if this argument is not 0."""
Place = tuple[int | str, ...]


def for_samples(program: Program, samples: int) -> Program:
    """The program for micro-batches of so many samples.

    Raises:
        InvalidInput: how its calls follow from the samples was not captured, or a number there is none.
    """
    if samples == program.micro_batch:
        return program
    if program.per_sample is None:
        raise InvalidInput("program.per_sample: is not there; capture the model again, with 2 samples or more")
    more = samples - program.micro_batch
    nodes = tuple(
        _changed(node, program.per_sample[node.name], more) if node.name in program.per_sample else node
        for node in program.nodes
    )
    return program.model_copy(
        update={
            "micro_batch": samples,
            "inputs": (samples, *program.inputs[1:]),
            "labels": (samples, *program.labels[1:]),
            "nodes": nodes,
        }
    )


def check_numbers(program: Program) -> None:
    """Refuses numbers of a file that are not where it says. Raises InvalidInput."""
    numbers = program.per_sample or {}
    if unknown := numbers.keys() - {node.name for node in program.nodes}:
        raise InvalidInput(f"program.per_sample: there is no call {min(unknown)!r:.60}")
    for_samples(program, program.micro_batch + bool(numbers))


def _changed(node: Node, numbers: Iterable[PerSample], more: int) -> Node:
    parts: dict[Any, Any] = {"args": node.args, "kwargs": node.kwargs, "shape": node.shape}
    for number in numbers:
        where = f"program.per_sample.{node.name}: {'.'.join(map(str, number.place))}"
        try:
            parts = _put(parts, number.place, number.each * more, where)
        except (KeyError, IndexError, TypeError):
            raise InvalidInput(f"{where}: names no number of the call") from None
    return node.model_copy(update=parts)


def _put(value: Any, place: Place, more: int, where: str) -> Any:
    """`value` with another number at a place."""
    if not place:
        if type(value) is not int or not 0 <= value + more <= 10**12:
            raise InvalidInput(f"{where}: must be a number that stays from 0 to 1e12, got {value!r:.40}")
        return value + more
    key, rest = place[0], place[1:]
    if isinstance(value, dict):
        return value | {key: _put(value[key], rest, more, where)}
    if not isinstance(value, list | tuple) or not isinstance(key, int):
        raise TypeError
    found = list(value)
    found[key] = _put(found[key], rest, more, where)
    return type(value)(found)


def why_undivided(program: Program, crossing: Iterable[str]) -> str:
    """Why devices cannot divide the samples of a program's micro-batch; '' if they can.

    Args:
        program: of a captured model.
        crossing: nodes whose values go from one stage to the next.
    """
    if program.per_sample is None:
        return "its capture does not tell its calls for other samples; capture it with --micro-batch 2 or more"
    another = for_samples(program, program.micro_batch + 1)
    axes = {
        node.name: [i for i, (a, b) in enumerate(zip(node.shape or (), more.shape or (), strict=True)) if a != b]
        for node, more in zip(program.nodes, another.nodes, strict=True)
    }
    in_front = _with_samples_in_front(program, axes)
    found = _mixing(program, axes, in_front)
    if found:
        return found
    for name in crossing:
        if axes[name] and name not in in_front and name != program.loss:
            shape = list(program.shape_of[name])
            return f"{name!r:.60} {shape} goes from one operator to the next and its samples are not in front"
    return ""


def _with_samples_in_front(program: Program, axes: dict[str, list[int]]) -> set[str]:
    """Calls whose values hold one sample behind the other."""
    found, shapes = {"inputs", "labels"}, program.shape_of
    for node in program.nodes:
        if axes[node.name] != [0]:
            continue
        reads = [name for kind, name in references(node) if kind in ("node", "batch") and name in found]
        size = shapes[node.name][0]
        is_reshaped = node.call in RESHAPES and bool(reads)
        is_like = node.call not in REORDERS and any(shapes.get(name, (0,))[0] == size for name in reads)
        if size == program.micro_batch or is_reshaped or is_like:
            found.add(node.name)
    return found


def _mixing(program: Program, axes: dict[str, list[int]], in_front: set[str]) -> str:
    """Which call computes with several samples at once, other than adding their losses up; '' if none does."""
    of_samples, summed, several = {"inputs", "labels"}, set[str](), {n.name for n in program.nodes if n.shape is None}
    for node in program.nodes:
        reads = {name for kind, name in references(node) if kind in ("node", "batch")}
        where = f"{node.call} of {node.op or 'no operator'} ({node.name})"
        if node.call in STATISTICS_CALLS:
            return f"{where} takes statistics over all samples"
        if node.call in RANDOM_CALLS and draws(node) and not (node.call in DRAWN and node.name in in_front):
            return f"{where} draws for all samples at once"
        if reads & summed:
            if node.call not in LINEAR or (node.call in ("add.Tensor", "sub.Tensor") and not reads <= summed):
                return f"{where} computes with a sum over all samples"
            summed.add(node.name)
        elif len(axes[node.name]) > 1:
            return f"{where} compares samples with one another"
        elif axes[node.name] or (node.name in several and reads & of_samples):
            of_samples.add(node.name)
        elif reads & of_samples and node.shape is not None and node.call not in FROM_SHAPES:
            if not _adds_up(node):
                return f"{where} computes with several samples at once"
            summed.add(node.name)
    return "" if program.loss in summed else f"the loss {program.loss!r:.60} is no sum over samples"


def _adds_up(node: Node) -> bool:
    if node.call in SUMS:
        given = node.kwargs.get("reduction", node.args[REDUCTION_PLACE] if len(node.args) > REDUCTION_PLACE else 1)
        return bool(given == SUM_REDUCTION)
    return node.call in ADDS_UP


def draws(node: Node) -> bool:
    """Whether a random call draws with its arguments."""
    place = DROPOUT_PLACES.get(node.call)
    if place is None:
        return True
    return bool(node.kwargs.get("dropout_p", node.args[place] if len(node.args) > place else 0.0))
