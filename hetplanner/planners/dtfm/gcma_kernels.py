"""Compiled local search of DT-FM's own algorithm. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, N devices in use first (group g owns a run of R), G groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel
def _fastest_pair(cost_DD: Array, label_D: Array, locked_D: Array, group: int) -> tuple[int, int, float]:
    """The two devices with the fastest link inside a group that may still move, and its cost; -1 if there is none."""
    one, two, least = -1, -1, np.inf
    for a in range(len(label_D)):
        if label_D[a] != group or locked_D[a]:
            continue
        for b in range(len(label_D)):
            if a != b and label_D[b] == group and cost_DD[a, b] < least:
                one, two, least = a, b, cost_DD[a, b]
    if two >= 0 and locked_D[two]:
        two = -1
    return one, two, least


@kernel
def _gain(cost_DD: Array, label_D: Array, device: int, least: float, group: int) -> float:
    """Mean link cost to a group, less the cost of the fastest link at home."""
    total, count = 0.0, 0
    for b in range(len(label_D)):
        if label_D[b] == group and b != device:
            total += cost_DD[device, b]
            count += 1
    return total / max(count, 1) - least


@kernel
def cycle_groups(cost_DD: Array, label_D: Array, num_groups: int, order_G: Array) -> None:
    """One pass of cyclic partitioning, in place: from every group one cycle of moves, its best prefix kept.

    A group gives away an end of its fastest internal link, to the group not yet on the cycle with the greatest gain;
    that group gives next. A prefix is closed by its last group giving a device back to the first.
    """
    num_devices = len(label_D)
    locked_D = np.zeros(num_devices, np.bool_)
    moved = np.empty(num_groups, np.int64)
    target = np.empty(num_groups, np.int64)
    closer = np.empty(num_groups, np.int64)
    visited = np.empty(num_groups, np.bool_)
    for start in order_G:
        trial_D = label_D.copy()
        locked_D[:] = False
        visited[:] = False
        visited[start] = True
        here = start
        total = 0.0
        best = 1e-12
        kept = 0
        steps = 0
        while True:
            one, two, least = _fastest_pair(cost_DD, trial_D, locked_D, here)
            if one < 0:
                break
            if steps:
                # What closing the cycle here would bring.
                back, back_gain = one, _gain(cost_DD, trial_D, one, least, start)
                if two >= 0 and _gain(cost_DD, trial_D, two, least, start) > back_gain:
                    back, back_gain = two, _gain(cost_DD, trial_D, two, least, start)
                closer[steps - 1] = back
                if total + back_gain > best:
                    best = total + back_gain
                    kept = steps
            pick, goal, most = -1, -1, -np.inf
            for group in range(num_groups):
                if visited[group]:
                    continue
                gain = _gain(cost_DD, trial_D, one, least, group)
                if gain > most:
                    pick, goal, most = one, group, gain
                if two >= 0:
                    gain = _gain(cost_DD, trial_D, two, least, group)
                    if gain > most:
                        pick, goal, most = two, group, gain
            if goal < 0:
                break
            trial_D[pick] = goal
            locked_D[pick] = True
            visited[goal] = True
            moved[steps] = pick
            target[steps] = goal
            total += most
            steps += 1
            here = goal
        for i in range(kept):
            label_D[moved[i]] = target[i]
        if kept:
            label_D[closer[kept - 1]] = start
