"""Compiled kernel that lists placements. Importing this module imports numba: do it lazily.

Legend of array suffixes: P placements, K their places (stage by stage), T sets of twins, D devices of a set.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel
def list_more(
    device_TD: Array, size_T: Array, pin_T: Array, replicas: int, is_named: bool, taken_T: Array, set_K: Array,
    place_K: Array, place_PK: Array,
) -> int:  # fmt: skip
    """Goes on with a listing until the table is full or nothing is left; how many placements were found.

    `taken_T`, `set_K` and `place_K` hold where the listing stands: devices taken of every set, and of every place the
    set that it took from (-1: none yet) and the device. A prefix that nothing can complete is left at once.
    """
    last = len(set_K) - 1
    found = 0
    # A listing stands behind a whole placement, or at its beginning.
    k = last if set_K[last] >= 0 else 0
    while k >= 0 and found < len(place_PK):
        chosen = set_K[k]
        if chosen >= 0:
            taken_T[chosen] -= 1
        chosen += 1
        while chosen < len(size_T) and not _may_take(
            chosen, k, device_TD, size_T, pin_T, replicas, is_named, taken_T, place_K, last
        ):
            chosen += 1
        if chosen == len(size_T):
            set_K[k] = -1
            k -= 1
            continue
        set_K[k] = chosen
        place_K[k] = device_TD[chosen, taken_T[chosen]]
        taken_T[chosen] += 1
        if k == last:
            place_PK[found] = place_K
            found += 1
        else:
            k += 1
    return found


@kernel
def _may_take(
    chosen: int, k: int, device_TD: Array, size_T: Array, pin_T: Array, replicas: int, is_named: bool, taken_T: Array,
    place_K: Array, last: int,
) -> bool:  # fmt: skip
    """Whether the next device of a set may take a place, and the places behind it can be filled then."""
    if taken_T[chosen] == size_T[chosen]:
        return False
    device = device_TD[chosen, taken_T[chosen]]
    stage, column = k // replicas, k % replicas
    if pin_T[chosen] >= 0 and pin_T[chosen] != stage:
        return False
    is_ascending = not is_named or stage == 0
    if is_ascending and column > 0 and device < place_K[k - 1]:
        return False
    if not is_named and column == 0 and k > 0 and device < place_K[k - replicas]:
        return False
    if column == replicas - 1:
        for t in range(len(size_T)):
            if pin_T[t] == stage and taken_T[t] + (t == chosen) < size_T[t]:
                return False
    if not is_ascending:
        return True
    # Behind a device only greater ones fill its stage, and behind a group's first only greater ones all other groups.
    first = device if column == 0 else place_K[k - column]
    greater, left = -1, -1
    for t in range(len(size_T)):
        if taken_T[t] < size_T[t]:
            head, rest = device_TD[t, taken_T[t]], size_T[t] - taken_T[t]
            greater += rest if head >= device else 0
            left += rest if head >= first else 0
    return greater >= replicas - 1 - column and (is_named or left >= last - k)
