"""A search as it converges."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class ConvergenceCurve(LiveFigure):
    """A search as it converges."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, events: Any, baselines: Any = None, lower_bound: float | None = None, unit: str = "s") -> None:
        """New data."""
        self._say("nothing to show yet")
