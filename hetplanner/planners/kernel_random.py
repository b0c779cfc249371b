"""Random draws inside compiled kernels: xorshift64* on one uint64 cell, so a plan depends on the seed alone.

The cache of a compiled kernel does not notice edits of what it calls in other files: after a change here, change the
kernels' files too (or clear the caches).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(cache=True, inline="always")
def next_uniform(state: Array) -> float:
    """Draws from [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, inline="always")
def next_below(state: Array, bound: int) -> int:
    """Draws an integer from 0 .. bound - 1."""
    return int(next_uniform(state) * bound)
