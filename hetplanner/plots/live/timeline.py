"""What every rank does when."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class Timeline(LiveFigure):
    """What every rank does when."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, trace: Any, step: int | None = None, follow: bool = True) -> None:
        """New data."""
        self._say("nothing to show yet")
