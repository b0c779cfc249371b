"""Collectives inside a host: as they were measured, or as a ring of k members passes them.

    all-gather or reduce-scatter of n bytes = (k - 1) / k x n / bandwidth + (k - 1) x latency

An all-reduce is both. Between two measured sizes seconds lie on the line between them; smaller ones take what the
smallest does, larger ones follow the line through the last two.

Source: Patarasuk and Yuan 2009 (bandwidth optimal all-reduce).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hetplanner.profiles.model import Collective

Way = Literal["forward", "backward"]
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Collectives:
    """The members of a group, the slowest link between them, and what was measured.

    Attributes:
        members: at least 1.
        s_per_byte, latency_s: of the link.
        curves: bytes and seconds of measured collectives, ascending.
    """

    members: int
    s_per_byte: float
    latency_s: float
    curves: Mapping[Collective, Curve] = field(default_factory=dict)

    def all_gather(self, size: float, count: int = 1) -> float:
        """Seconds of an all-gather of so many bytes, in `count` equal pieces."""
        return self._seconds("all-gather", size, count)

    def reduce_scatter(self, size: float, count: int = 1) -> float:
        """Seconds of a reduce-scatter of so many bytes, in `count` equal pieces."""
        return self._seconds("reduce-scatter", size, count)

    def all_reduce(self, size: float) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return self._seconds("all-reduce", size, 1)

    def _seconds(self, collective: Collective, size: float, count: int) -> float:
        if self.members == 1 or not count:
            return 0.0
        curve = self.curves.get(collective)
        if curve:
            return count * _on_curve(curve, size / count)
        passes = 2 if collective == "all-reduce" else 1
        return passes * (self.members - 1) * (size / self.members * self.s_per_byte + count * self.latency_s)


def _on_curve(curve: Curve, size: float) -> float:
    sizes, seconds = np.array(curve).T
    if size <= sizes[-1]:
        return float(np.interp(size, sizes, seconds))
    if len(curve) == 1:
        return float(seconds[0] * size / sizes[0])
    slope = max(0.0, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
    return float(seconds[-1] + slope * (size - sizes[-1]))
