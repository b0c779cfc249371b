"""Jitter: computing and messages take a little more or less than the model says, by chance with a seed.

Every action's computing and every transfer is multiplied by a lognormal factor of mean 1. The factors belong to the
n-th action and the n-th transfer of a rank in a step, not to the order in which events happen. So the same seed gives
the same trace, and two runs that differ in one link or device draw the same factors.
"""

from dataclasses import dataclass

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.errors import InvalidInput

# Larger spreads say nothing about a network; a lognormal of sigma 3 spans four orders of magnitude.
MOST_SIGMA = 3.0
COMPUTE, NETWORK = 0, 1


@dataclass(frozen=True)
class Jitter:
    """How much times vary.

    Attributes:
        compute: standard deviation of the logarithm of what an action computes (about the relative spread).
        network: the same of a transfer: its wire time on link and NICs, and its latency.
    """

    compute: float = 0.0
    network: float = 0.0

    def __post_init__(self) -> None:
        for name in ("compute", "network"):
            if not 0.0 <= getattr(self, name) <= MOST_SIGMA:
                raise InvalidInput(f"jitter.{name}: must be between 0 and {MOST_SIGMA:g}, got {getattr(self, name):g}")

    def factors(self, seed: int, step: int, rank: int, stream: int, count: int) -> FloatArray:
        """The first `count` factors of a rank in a step.

        Args:
            seed: of the simulation.
            step, rank: whose.
            stream: COMPUTE (by action) or NETWORK (by transfer).
            count: how many; a longer series begins with the shorter one.
        """
        sigma = self.network if stream == NETWORK else self.compute
        if sigma == 0.0:
            return np.ones(count)
        rng = np.random.default_rng((seed, step, rank, stream))
        return np.asarray(np.exp(sigma * rng.standard_normal(count) - 0.5 * sigma * sigma), dtype=np.float64)


STILL = Jitter()


class Luck:
    """The factors of one rank, taken one after the other."""

    BLOCK = 1024

    def __init__(self, jitter: Jitter, seed: int, rank: int, stream: int) -> None:
        self._jitter, self._where = jitter, (seed, rank, stream)
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """The next factor is the first one of this step."""
        self._step, self._next = step, 0
        self._factors = np.empty(0)

    def draw(self) -> float:
        """The next factor."""
        if self._next == len(self._factors):
            seed, rank, stream = self._where
            size = max(2 * self._next, self.BLOCK)
            self._factors = self._jitter.factors(seed, self._step, rank, stream, size)
        self._next += 1
        return float(self._factors[self._next - 1])
