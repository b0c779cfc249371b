"""How fast a peer is, learnt from its answers."""

from __future__ import annotations


class SpeedEstimate:
    """Bias-corrected exponential moving average of seconds per micro-batch.

    Source: Ryabinin et al. 2023 (SWARM), public code: alpha 0.1; the correction is that of Adam's moments.
    """

    def __init__(self, alpha: float = 0.1) -> None:
        self._alpha = alpha
        self._sum = 0.0
        self._weight = 0.0

    def update(self, seconds: float) -> None:
        """Takes a measurement in seconds per micro-batch."""
        self._sum += self._alpha * (seconds - self._sum)
        self._weight += self._alpha * (1.0 - self._weight)

    @property
    def seconds(self) -> float | None:
        """Seconds per micro-batch; None before the first measurement."""
        return self._sum / self._weight if self._weight else None
