"""Which numbers of a model's calls follow from the samples of a micro-batch: it is exported for two numbers of them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hetplanner.capture import progress
from hetplanner.capture.calls import Call
from hetplanner.capture.export import Exported, export_again
from hetplanner.workload.program import PerSample

Place = tuple[int | str, ...]


def per_sample(exported: Exported) -> dict[str, tuple[PerSample, ...]] | None:
    """By call, its numbers that grow with the samples; None: its calls depend on them in another way."""
    samples = len(exported.inputs)
    others = 2 * samples if samples > 1 else 3
    progress.begin("tracing the model for other micro-batches")
    try:
        calls, buffers = export_again(exported, others)
    except Exception:  # whatever the module does with other samples: it trains with those it was made for
        return None
    if [call.name for call in calls] != [call.name for call in exported.calls]:
        return None
    if not all(_is_same(value, buffers.get(name)) for name, value in exported.buffers.items()):
        return None
    found = {}
    for call, other in zip(exported.calls, calls, strict=True):
        numbers = _numbers(call, other, samples, others - samples)
        if numbers is None:
            return None
        if numbers:
            found[call.name] = numbers
    return found


def _is_same(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and value.shape == other.shape and (value is other or bool(torch.equal(value, other)))


def _numbers(call: Call, other: Call, samples: int, more: int) -> tuple[PerSample, ...] | None:
    """Numbers that grow with so many more samples; None: something else differs."""
    if call.func is not other.func:
        return None
    found = []
    for place, one, two in _differences(_parts(call), _parts(other), ()):
        if type(one) is not int or type(two) is not int:
            return None
        each, rest = divmod(two - one, more)
        if each < 1 or rest or one - each * (samples - 1) < 0:
            return None
        found.append(PerSample(place=place, each=each))
    return tuple(found)


def _parts(call: Call) -> dict[str, Any]:
    shape = tuple(call.value.shape) if isinstance(call.value, Tensor) else None
    return {"args": call.args, "kwargs": call.kwargs, "shape": shape}


def _differences(one: Any, two: Any, place: Place) -> Iterator[tuple[Place, Any, Any]]:
    """Places where two values differ, with what stands there."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        for key in one:
            yield from _differences(one[key], two[key], (*place, key))
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            yield from _differences(a, b, (*place, i))
    elif type(one) is not type(two) or one != two:
        yield place, one, two
