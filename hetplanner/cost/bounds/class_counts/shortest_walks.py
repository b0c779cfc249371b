"""Cheapest walks over counts of stages that use no more devices of any group of classes than there are.

Legend of array suffixes: N counts of a stage, G groups of classes, V vectors of used devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import IntArray

Float32Array = NDArray[np.float32]

# Additions between two looks at whether the work should end.
ADDITIONS_AT_ONCE = 50_000_000


class Cancelled(Exception):
    """The work was asked to end."""


@dataclass(frozen=True)
class Network:
    """Counts that stages may have, and what they and hops between them cost.

    Attributes:
        group_NG: devices of each group in a stage of such counts.
        size_G: devices of each group.
        price_N: of a stage of such counts.
        hop_NN: of a hop.
        replicas: devices of a stage.
    """

    group_NG: IntArray
    size_G: IntArray
    price_N: Float32Array
    hop_NN: Float32Array
    replicas: int

    def cheapest_walk(self, stages: int, is_cancelled: Callable[[], bool]) -> tuple[list[int] | None, float]:
        """The counts along the cheapest walk (None if there is none), and its cost.

        Hops cost the same both ways. So where all devices are used, two walks of half the length are joined.

        Raises:
            Cancelled: if it was asked to end.
        """
        is_joined = int(self.size_G.sum()) == stages * self.replicas and stages > 1
        last = stages - stages // 2 if is_joined else stages
        used = used_vectors(self.size_G, self.replicas, last)
        costs = [self._first(used[1])]
        for j in range(2, last + 1):
            costs.append(self._extend(costs[-1], used[j - 1], used[j], is_cancelled))
        if not is_joined:
            v, x = divmod(int(np.argmin(costs[-1])), len(self.price_N))
            value = float(costs[-1][v, x])
            return (list(self._back(costs, used, last, v, x)) if np.isfinite(value) else None), value
        return self._join(costs, used, stages // 2, last, is_cancelled)

    @cached_property
    def _stride_G(self) -> IntArray:
        return np.append(np.cumprod((self.size_G + 1)[:0:-1])[::-1], 1).astype(np.int64)

    def _row_of(self, used_VG: IntArray) -> IntArray:
        """Row of each vector by its code; -1 for those that are not there."""
        row_of = np.full(int(np.prod(self.size_G + 1)), -1, dtype=np.int64)
        row_of[used_VG @ self._stride_G] = np.arange(len(used_VG))
        return row_of

    def _first(self, used_VG: IntArray) -> Float32Array:
        cost_VN = np.full((len(used_VG), len(self.price_N)), np.inf, dtype=np.float32)
        cost_VN[self._row_of(used_VG)[self.group_NG @ self._stride_G], np.arange(len(self.price_N))] = self.price_N
        return cost_VN

    def _extend(
        self, before_VN: Float32Array, before_VG: IntArray, used_VG: IntArray, is_cancelled: Callable[[], bool]
    ) -> Float32Array:
        from hetplanner.cost.bounds.class_counts.kernels import extend_walks

        count, row_of = len(self.price_N), self._row_of(before_VG)
        cost_VN = np.full((len(used_VG), count), np.inf, dtype=np.float32)
        at_once = max(1, ADDITIONS_AT_ONCE // max(1, len(used_VG) * count))
        for begin in range(0, count, at_once):
            if is_cancelled():
                raise Cancelled
            end = min(begin + at_once, count)
            extend_walks(before_VN, row_of, used_VG, self.group_NG, self._stride_G, self.hop_NN, cost_VN, begin, end)
        return cost_VN + self.price_N

    def _join(
        self, costs: list[Float32Array], used: list[IntArray], one: int, other: int, is_cancelled: Callable[[], bool]
    ) -> tuple[list[int] | None, float]:
        from hetplanner.cost.bounds.class_counts.kernels import join_walks

        row_of, least, best = self._row_of(used[other]), np.inf, None
        for v, vector in enumerate(used[one]):
            if v % 16 == 0 and is_cancelled():
                raise Cancelled
            row = int(row_of[(self.size_G - vector) @ self._stride_G])
            value, end = join_walks(costs[one - 1][v], costs[other - 1][row], self.hop_NN)
            if value < least:
                least, best = float(value), (v, int(end), row)
        if best is None:
            return None, np.inf
        v, x, row = best
        y = int(np.argmin(costs[other - 1][row] + self.hop_NN[x]))
        first = list(self._back(costs, used, one, v, x))
        return [*first[::-1], *self._back(costs, used, other, row, y)], least

    def _back(self, costs: list[Float32Array], used: list[IntArray], stages: int, v: int, x: int) -> Iterator[int]:
        """The counts of a cheapest walk from its end."""
        yield x
        for j in range(stages - 1, 0, -1):
            before = used[j + 1][v] - self.group_NG[x]
            v = int(np.flatnonzero((used[j] == before).all(axis=1))[0])
            x = int(np.argmin(costs[j - 1][v] + self.hop_NN[x]))
            yield x


def used_vectors(size_G: IntArray, replicas: int, stages: int) -> list[IntArray]:
    """For 0, 1, … stages all ways in which their devices may be spread over the groups, a row each."""
    every = np.indices(tuple(size_G + 1)).reshape(len(size_G), -1).T
    total = every.sum(axis=1)
    return [np.ascontiguousarray(every[total == j * replicas], dtype=np.int64) for j in range(stages + 1)]
