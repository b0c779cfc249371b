"""Compiled: a binary heap of (time, number) in two arrays, and what carries one message after the other.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel(allocates=False)
def _before(time_a: float, id_a: int, time_b: float, id_b: int) -> bool:
    return time_a < time_b or (time_a == time_b and id_a < id_b)


@kernel(allocates=False)
def push(time_Q: Array, id_Q: Array, size: int, time: float, number: int) -> int:
    """Adds to a binary heap ordered by (time, number); returns the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(time, number, time_Q[parent], id_Q[parent]):
            break
        time_Q[i] = time_Q[parent]
        id_Q[i] = id_Q[parent]
        i = parent
    time_Q[i] = time
    id_Q[i] = number
    return size + 1


@kernel(allocates=False)
def pop(time_Q: Array, id_Q: Array, size: int) -> int:
    """Takes the first out of a heap whose root has been read; returns the new size."""
    size -= 1
    time, number = time_Q[size], id_Q[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(time_Q[child + 1], id_Q[child + 1], time_Q[child], id_Q[child]):
            child += 1
        if not _before(time_Q[child], id_Q[child], time, number):
            break
        time_Q[i] = time_Q[child]
        id_Q[i] = id_Q[child]
        i = child
    time_Q[i] = time
    id_Q[i] = number
    return size


@kernel(forceinline=True, allocates=False)
def occupy(busy_s: Array, at: int, now: float, seconds: float) -> float:
    """Sends a message over a link or NIC behind those that it carries already; returns when it is through."""
    served = max(now, busy_s[at]) + seconds
    busy_s[at] = served
    return served
