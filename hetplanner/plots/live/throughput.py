"""Tokens per second."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class ThroughputCurve(LiveFigure):
    """Tokens per second."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, steps: Any, tokens_per_s: Any) -> None:
        """New data."""
        self._say("nothing to show yet")
