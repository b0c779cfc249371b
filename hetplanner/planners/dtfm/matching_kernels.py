"""Compiled bottleneck matching of two groups of devices. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, R replicas, N devices group by group. `work_RR` is the table of the pairs' costs,
`column_of_R` and `row_of_R` hold the matching, -1 where there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel
def matching_room(num_replicas: int) -> tuple[Array, Array, Array, Array]:
    """What :func:`match_groups` works with: table, columns, rows, and scratch."""
    return (
        np.empty((num_replicas, num_replicas)),
        np.empty(num_replicas, np.int64),
        np.empty(num_replicas, np.int64),
        np.empty((3, num_replicas)),
    )


@kernel(forceinline=True, allocates=False)
def fill_table(
    pp_DD: Array, members_N: Array, a: int, b: int, work_RR: Array, low_row_R: Array, low_column_R: Array
) -> None:
    """Costs of all pairs of the groups that begin at `a` and `b`, and the least of every row and column."""
    num = len(work_RR)
    for j in range(num):
        low_column_R[j] = np.inf
    for i in range(num):
        row = pp_DD[members_N[a + i]]
        low = np.inf
        for j in range(num):
            value = row[members_N[b + j]]
            work_RR[i, j] = value
            low = min(low, value)
            low_column_R[j] = min(low_column_R[j], value)
        low_row_R[i] = low


@kernel(forceinline=True, allocates=False)
def flip_path(column_of_R: Array, row_of_R: Array, parent_R: Array, pick: int, start: int) -> None:
    """Matches along the path that leads from the row `start` to the column `pick`."""
    while True:
        row = int(parent_R[pick])
        previous = column_of_R[row]
        column_of_R[row] = pick
        row_of_R[pick] = row
        if row == start:
            return
        pick = previous


@kernel(allocates=False)
def find_mate(
    work_RR: Array, column_of_R: Array, row_of_R: Array, start: int, bound: float, limit: float, dist_R: Array,
    parent_R: Array, done_R: Array,
) -> float:  # fmt: skip
    """Matches an unmatched row by the path whose worst pair is least; above `limit` nothing is changed.

    Pairs up to `bound` count as equally good. Returns the worst pair's value (at least `bound`).
    """
    num = len(column_of_R)
    for j in range(num):
        dist_R[j] = max(work_RR[start, j], bound)
        parent_R[j] = start
        done_R[j] = False
    while True:
        pick = -1
        low = np.inf
        for j in range(num):
            if not done_R[j] and dist_R[j] < low:
                low = dist_R[j]
                pick = j
                if low <= bound and row_of_R[j] < 0:
                    break
        if pick < 0 or low > limit:
            return low
        done_R[pick] = True
        row = row_of_R[pick]
        if row < 0:
            break
        for j in range(num):
            if not done_R[j]:
                value = max(low, work_RR[row, j])
                if value < dist_R[j]:
                    dist_R[j] = value
                    parent_R[j] = row
    flip_path(column_of_R, row_of_R, parent_R, pick, start)
    return dist_R[pick]


@kernel(allocates=False)
def match_groups(
    pp_DD: Array, members_N: Array, first: int, second: int, num_replicas: int, limit: float, work_RR: Array,
    column_of_R: Array, row_of_R: Array, scratch_R3: Array,
) -> tuple[float, float]:  # fmt: skip
    """Bottleneck matching of two groups: minimax augmentation above the row/column-minimum bound.

    Returns ``(value, nearest)``: the bottleneck, or a bound above ``limit`` as soon as it is known to exceed it,
    and the mean of the row and column minima (a smooth companion of the bottleneck).
    """
    dist, parent, done = scratch_R3[0], scratch_R3[1], scratch_R3[2]
    fill_table(pp_DD, members_N, first * num_replicas, second * num_replicas, work_RR, parent, dist)
    bound = 0.0
    total = 0.0
    for low_R in (parent, dist):
        for i in range(num_replicas):
            bound = max(bound, low_R[i])
            total += low_R[i]
    nearest = total / (2 * num_replicas)
    if bound > limit:
        return bound, nearest
    if _match_greedily(work_RR, bound, column_of_R, row_of_R) == num_replicas:
        return bound, nearest
    for start in range(num_replicas):
        if column_of_R[start] < 0:
            found = find_mate(work_RR, column_of_R, row_of_R, start, bound, limit, dist, parent, done)
            if found > limit:
                return found, nearest
            bound = max(bound, found)
    return bound, nearest


@kernel(forceinline=True, allocates=False)
def _match_greedily(work_RR: Array, bound: float, column_of_R: Array, row_of_R: Array) -> int:
    """Gives every row the first free column whose pair costs no more than `bound`; returns how many found one."""
    num = len(work_RR)
    row_of_R[:] = -1
    matched = 0
    for i in range(num):
        column_of_R[i] = -1
        for j in range(num):
            if row_of_R[j] < 0 and work_RR[i, j] <= bound:
                row_of_R[j] = i
                column_of_R[i] = j
                matched += 1
                break
    return matched
