"""Who holds which stage."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class AllocationGrid(LiveFigure):
    """Who holds which stage."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, plan: Any) -> None:
        """New data."""
        self._say("nothing to show yet")
