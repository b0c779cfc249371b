"""All placements of a small cluster, each once up to what makes no difference.

Pipelines can be renumbered, and devices that can change places without a trace (twins) too: of twins the first that is
left is taken.

Legend of array suffixes: D devices, S stages, R replicas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from math import factorial, perm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import IntArray


def twins_of(tables_DD: Sequence[NDArray[Any]], labels_D: Sequence[NDArray[Any]] = ()) -> IntArray:
    """The nearest device before each that it can change places with; -1 if there is none.

    Args:
        tables_DD: what matters between two devices, row from, column to.
        labels_D: what matters of a device alone.
    """
    twin_D = np.full(len(tables_DD[0]), -1, dtype=np.int64)
    alike: dict[bytes, list[int]] = {}
    for d, signature in enumerate(_signatures(tables_DD, labels_D)):
        before = alike.setdefault(signature, [])
        twin_D[d] = next((other for other in reversed(before) if _are_twins(d, other, tables_DD)), -1)
        before.append(d)
    return twin_D


def _signatures(tables_DD: Sequence[NDArray[Any]], labels_D: Sequence[NDArray[Any]]) -> Iterator[bytes]:
    """What twins have in common, by device: labels, and the values of its rows and columns in any order."""
    digests = [hashlib.blake2b() for _ in tables_DD[0]]
    for table in (ordered for t in tables_DD for ordered in (np.sort(t, axis=1), np.sort(t, axis=0).T)):
        for digest, row in zip(digests, table, strict=True):
            digest.update(row.tobytes())
    for d, digest in enumerate(digests):
        for label in labels_D:
            digest.update(label[d : d + 1].tobytes())
        yield digest.digest()


def _are_twins(a: int, b: int, tables_DD: Sequence[NDArray[Any]]) -> bool:
    """Whether a swap of two devices with one signature leaves every table as it is."""
    others = np.ones(len(tables_DD[0]), dtype=bool)
    others[[a, b]] = False
    return all(
        table[a, b] == table[b, a]
        and table[a, a] == table[b, b]
        and np.array_equal(table[a, others], table[b, others])
        and np.array_equal(table[others, a], table[others, b])
        for table in tables_DD
    )


class Listing:
    """Lists placements part by part; each part is asked for, so that the caller can end it between two.

    Args:
        twin_D: see :func:`twins_of`.
        shape: stages and replicas.
        is_named: whether stages differ: then placements are listed in order of stages, with pipelines unnamed (the
            first stage's devices ascend). Else partitions into equal groups: devices ascend in a group, groups follow
            one another by their first device.
        pin_D: stage in which a device must stand, -1 for any; twins have the same. None pins nothing.
    """

    def __init__(
        self, twin_D: IntArray, shape: tuple[int, int], *, is_named: bool, pin_D: IntArray | None = None
    ) -> None:
        sets = sets_of_twins(twin_D)
        self._shape, self._is_named = shape, is_named
        self._size_T = np.array([len(s) for s in sets])
        self._device_TD = np.array([s + [0] * (int(self._size_T.max()) - len(s)) for s in sets])
        self._pin_T = np.array([-1 if pin_D is None else pin_D[s[0]] for s in sets], dtype=np.int64)
        self._taken_T = np.zeros(len(sets), dtype=np.int64)
        self._set_K = np.full(shape[0] * shape[1], -1)
        self._place_K = np.zeros(shape[0] * shape[1], dtype=np.int64)
        self._is_over = False

    def more(self, most: int) -> IntArray:
        """The next placements, devices stage by stage; fewer than `most` if these are the last."""
        from hetplanner.planners.exhaustive.symmetry_kernels import list_more

        place_PK = np.empty((0 if self._is_over else most, len(self._place_K)), dtype=np.int64)
        found = list_more(
            self._device_TD, self._size_T, self._pin_T, self._shape[1], self._is_named,
            self._taken_T, self._set_K, self._place_K, place_PK,
        )  # fmt: skip
        self._is_over = found < most
        return place_PK[:found]


def sets_of_twins(twin_D: IntArray) -> list[list[int]]:
    """Devices that can change places, each set ascending."""
    sets: dict[int, list[int]] = {}
    first_D = list(range(len(twin_D)))
    for device, twin in enumerate(twin_D.tolist()):
        if twin >= 0:
            first_D[device] = first_D[twin]
        sets.setdefault(first_D[device], []).append(device)
    return list(sets.values())


def least_placements(twin_D: IntArray, stages: int, replicas: int, *, is_named: bool) -> int:
    """A number that a :class:`Listing` without pins cannot be below, at once.

    Renaming twins makes at most the product of their sets' factorials out of one placement.
    """
    everything = perm(len(twin_D), stages * replicas)
    everything //= factorial(replicas) if is_named else factorial(replicas) ** stages * factorial(stages)
    return everything // prod(factorial(len(twins)) for twins in sets_of_twins(twin_D))
