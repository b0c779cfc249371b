"""Collectives inside a host, as a ring of k members passes them.

    all-gather or reduce-scatter of n bytes = (k - 1) / k x n / bandwidth + (k - 1) x latency

An all-reduce is both.

Source: Patarasuk and Yuan 2009 (bandwidth optimal all-reduce).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Way = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Ring:
    """The members of a group, and the slowest link between them.

    Attributes:
        members: at least 1.
        s_per_byte, latency_s: of the link.
    """

    members: int
    s_per_byte: float
    latency_s: float

    def pass_seconds(self, size: float, count: int = 1) -> float:
        """An all-gather or a reduce-scatter of so many bytes, in `count` pieces."""
        return (self.members - 1) * (size / self.members * self.s_per_byte + count * self.latency_s)
