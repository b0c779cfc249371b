"""Counts over one partition of the devices: the limits within which they may be, and bounds from walks over them.

Legend of array suffixes: D devices, C classes, N counts of a stage, K limits, L levels of a hop, S stages, R replicas,
G groups of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.bounds.class_counts.classes import (
    DeviceClasses,
    choose_levels,
    least_paid,
    list_counts,
    most_crossing,
)
from hetplanner.cost.bounds.class_counts.shortest_walks import Cancelled, used_vectors
from hetplanner.cost.bounds.class_counts.walks import Multipliers, Walks

# Groups of classes whose devices are counted exactly, and the most vectors of such counts after so many stages.
MOST_GROUPS = 3
MOST_VECTORS = 700
# Choices of a device in the proof that a group is impossible.
MOST_NODES = 3_000
# Counts graded, and pairs of counts compared, between two looks at whether the work should end.
COUNTS_AT_ONCE = 100
PAIRS_AT_ONCE = 50_000
# Sums in another order differ by less than this share.
ROUNDING = 1e-9


class CountModel:
    """The counts that a stage may have over one partition of the devices."""

    def __init__(
        self,
        shared_s_DD: FloatArray,
        piped_s_DD: FloatArray,
        class_D: IntArray,
        hop_s_S: FloatArray,
        shape: tuple[int, int],
        coarser: Sequence[IntArray],
    ) -> None:
        """What is known before any work.

        Args:
            shared_s_DD: data-parallel seconds of pairs.
            piped_s_DD: pipeline seconds of pairs.
            class_D: class of each device.
            hop_s_S: bounds below the single hops, cheapest first.
            shape: stages and replicas.
            coarser: partitions into 1, 2, … classes of which this one is a refinement.
        """
        from hetplanner.cost.bounds.class_counts.kernels import least_rows

        self.class_D, self.shape, self._hop_s_S, self._coarser = class_D, shape, hop_s_S, coarser
        self.classes = DeviceClasses.of(class_D)
        order = np.ix_(self.classes.order_D, self.classes.order_D)
        self._shared_DD, self._piped_DD = np.ascontiguousarray(shared_s_DD[order]), piped_s_DD[order]
        self.count_NC = list_counts(self.classes.size_C, shape[1])
        self._least_DCR = least_paid(self._shared_DD, self.classes, shape[1])
        self.least_N = least_rows(self.count_NC, self._least_DCR, self.classes.start_C)
        self.grade_N = np.zeros(len(self.count_NC), dtype=np.int64)
        self._levelled = 0

    def grade(self, limit_K: FloatArray, is_cancelled: Callable[[], bool]) -> None:
        """Finds for all counts the first limit within which a group with them may exist.

        Raises:
            Cancelled: if it was asked to end.
        """
        from hetplanner.cost.bounds.class_counts.kernels import grade_counts

        wide_K = limit_K * (1.0 + ROUNDING)
        for begin in range(0, len(self.count_NC), COUNTS_AT_ONCE):
            if is_cancelled():
                raise Cancelled
            part = slice(begin, begin + COUNTS_AT_ONCE)
            network = self._shared_DD, self._least_DCR, self.classes.start_C, self.classes.class_D
            self.grade_N[part] = grade_counts(self.count_NC[part], self.least_N[part], wide_K, *network, MOST_NODES)
        self._sort()

    def grade_by(self, fine: CountModel) -> None:
        """Takes the grades from those of a finer partition: counts may be if any finer ones may."""
        part_CC = np.zeros((len(fine.classes.size_C), len(self.classes.size_C)), dtype=np.int64)
        part_CC[fine.class_D, self.class_D] = 1
        merged_NC = fine.count_NC @ part_CC
        place = {tuple(row): i for i, row in enumerate(self.count_NC.tolist())}
        self.grade_N[:] = np.iinfo(np.int64).max
        where_N = np.array([place[tuple(row)] for row in merged_NC.tolist()])
        np.minimum.at(self.grade_N, where_N, fine.grade_N)
        self._sort()

    def number_within(self, k: int) -> int:
        """How many counts may be within a limit."""
        return int(np.searchsorted(self.grade_N, k, side="right"))

    def start(self) -> Multipliers:
        """Multipliers to begin with."""
        return self._walks.start()

    def improve(self, k: int, at: Multipliers, is_cancelled: Callable[[], bool]) -> float:
        """A bound below the sum of hops of placements within a limit; changes the multipliers for the next one.

        Raises:
            Cancelled: if it was asked to end.
        """
        number = self.number_within(k)
        if number == 0:
            return float("inf")
        self._level(number, is_cancelled)
        return self._walks.improve(at, number, is_cancelled)

    def _sort(self) -> None:
        order_N = np.argsort(self.grade_N, kind="stable")
        self.count_NC, self.grade_N = np.ascontiguousarray(self.count_NC[order_N]), self.grade_N[order_N]
        self.least_N = self.least_N[order_N]

    def _level(self, number: int, is_cancelled: Callable[[], bool]) -> None:
        """Fills the hops between the first so many counts."""
        from hetplanner.cost.bounds.class_counts.kernels import level_hops

        if number > len(self._level_NN):
            grown = np.zeros((number, number), dtype=np.uint8)
            grown[: self._levelled, : self._levelled] = self._level_NN[: self._levelled, : self._levelled]
            self._level_NN = grown
            self.__dict__.pop("_walks", None)
        while self._levelled < number:
            if is_cancelled():
                raise Cancelled
            end = min(number, self._levelled + max(1, PAIRS_AT_ONCE // (self._levelled + 1)))
            level_hops(self.count_NC, self._most_LCC, self._level_NN, self._levelled, end)
            self._levelled = end

    @cached_property
    def _level_s_L(self) -> tuple[FloatArray, FloatArray]:
        return choose_levels(self._piped_DD)

    @cached_property
    def _most_LCC(self) -> IntArray:
        return most_crossing(self._piped_DD, self.classes, self._level_s_L[0])

    _level_NN: NDArray[np.uint8] = np.zeros((0, 0), dtype=np.uint8)

    @cached_property
    def _walks(self) -> Walks:
        return Walks(
            self.count_NC[: len(self._level_NN)],
            self._level_NN,
            self._level_s_L[1],
            self._hop_s_S,
            self.classes.size_C,
            self._groups(),
            *self.shape,
        )

    def _groups(self) -> IntArray:
        """Group of each class: as many groups as there is room for."""
        first_C = self.classes.order_D[self.classes.start_C[:-1]]
        for number in range(min(MOST_GROUPS, len(self._coarser)), 1, -1):
            class_D = self._coarser[number - 1]
            size_G = np.bincount(class_D)
            vectors = used_vectors(size_G, self.shape[1], self.shape[0]) if np.prod(size_G + 1.0) < 1e6 else []
            if vectors and max(len(v) for v in vectors) <= MOST_VECTORS:
                return class_D[first_C]
        return np.zeros(len(first_C), dtype=np.int64)
