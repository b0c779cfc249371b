"""All placements of a small cluster, each once up to what makes no difference.

Pipelines can be renumbered, and devices that can change places without a trace (twins) too. A device is listed only
after the twin before it, which keeps exactly the least of every set of equal placements.

Legend of array suffixes: D devices, S stages, R replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial, perm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def twins_of(tables_DD: Sequence[NDArray[Any]], labels_D: Sequence[NDArray[Any]] = ()) -> IntArray:
    """The nearest device before each that it can change places with; -1 if there is none.

    Args:
        tables_DD: what matters between two devices, row from, column to.
        labels_D: what matters of a device alone.
    """
    num_devices = len(tables_DD[0])
    twin_D = np.full(num_devices, -1, dtype=np.int64)
    for d in range(num_devices):
        for other in range(d - 1, -1, -1):
            if _are_twins(d, other, tables_DD, labels_D):
                twin_D[d] = other
                break
    return twin_D


def _are_twins(a: int, b: int, tables_DD: Sequence[NDArray[Any]], labels_D: Sequence[NDArray[Any]]) -> bool:
    if any(label[a] != label[b] for label in labels_D):
        return False
    swapped = np.arange(len(tables_DD[0]))
    swapped[[a, b]] = b, a
    return all(np.array_equal(table, table[np.ix_(swapped, swapped)]) for table in tables_DD)


def list_placements(twin_D: IntArray, stages: int, replicas: int) -> Iterator[tuple[int, ...]]:
    """Placements in order of stages, pipelines unnamed: devices stage by stage, the first stage's ascending."""

    def allowed(chosen: list[int], device: int) -> bool:
        return not 0 < len(chosen) < replicas or device > chosen[-1]

    return _extend([], [False] * len(twin_D), twin_D.tolist(), stages * replicas, allowed)


def list_partitions(twin_D: IntArray, groups: int, size: int) -> Iterator[tuple[int, ...]]:
    """Partitions into equal groups without names: devices ascending in a group, groups by their first device."""

    def allowed(chosen: list[int], device: int) -> bool:
        if not chosen:
            return True
        return device > (chosen[-1] if len(chosen) % size else chosen[-size])

    return _extend([], [False] * len(twin_D), twin_D.tolist(), groups * size, allowed)


def least_placements(twin_D: IntArray, stages: int, replicas: int, *, ordered: bool) -> int:
    """A number that :func:`list_placements` (or, unordered, :func:`list_partitions`) cannot be below, at once.

    Renaming twins makes at most the product of their groups' factorials out of one placement.
    """
    num_devices = len(twin_D)
    everything = perm(num_devices, stages * replicas)
    everything //= factorial(replicas) if ordered else factorial(replicas) ** stages * factorial(stages)
    first_D = np.arange(num_devices)
    for device, twin in enumerate(twin_D):
        if twin >= 0:
            first_D[device] = first_D[twin]
    return everything // prod(factorial(int(n)) for n in np.bincount(first_D))


def _extend(
    chosen: list[int], used: list[bool], twins: list[int], count: int, allowed: Any
) -> Iterator[tuple[int, ...]]:
    if len(chosen) == count:
        yield tuple(chosen)
        return
    for device, twin in enumerate(twins):
        if used[device] or (twin >= 0 and not used[twin]) or not allowed(chosen, device):
            continue
        chosen.append(device)
        used[device] = True
        yield from _extend(chosen, used, twins, count, allowed)
        chosen.pop()
        used[device] = False
