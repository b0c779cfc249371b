"""Memory per device against its limit."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class MemoryBars(LiveFigure):
    """Memory per device against its limit."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, plan: Any) -> None:
        """New data."""
        self._say("nothing to show yet")
