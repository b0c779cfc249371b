"""Random draws inside compiled kernels: xorshift64* on one uint64 cell, so a plan depends on the seed alone.

What all annealings share is here too: how they cool, and which values they accept, and how they keep what they met.
"""

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


@kernel(forceinline=True, allocates=False)
def cooling_factor(hot: float, cold: float, num_moves: int) -> float:
    """By what to multiply the temperature before each of so many moves, so that they end `hot / cold` times colder."""
    return (cold / hot) ** (1.0 / max(num_moves - 1, 1))


@kernel(forceinline=True, allocates=False)
def draw_limit(value: float, temperature: float, state: Array) -> float:
    """The greatest value that Metropolis' rule accepts in place of another."""
    return value - temperature * np.log(1.0 - next_uniform(state))


@kernel(forceinline=True, allocates=False)
def copy_into(target: Array, source: Array) -> None:
    """Copies an array to the beginning of another; unlike `target[:] = source` for kernels without reference counts."""
    for i in range(len(source)):
        target[i] = source[i]
