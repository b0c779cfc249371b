"""Cost terms side by side."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class CostBars(LiveFigure):
    """Cost terms side by side."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, estimates: Any) -> None:
        """New data."""
        self._say("nothing to show yet")
