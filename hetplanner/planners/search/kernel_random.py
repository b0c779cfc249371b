"""Random draws inside compiled kernels: xorshift64* on one uint64 cell, so a plan depends on the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel(inline="always")
def next_uniform(state: Array) -> float:
    """Draws from [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel(inline="always")
def next_below(state: Array, bound: int) -> int:
    """Draws an integer from 0 .. bound - 1."""
    return int(next_uniform(state) * bound)
