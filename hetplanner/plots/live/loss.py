"""Loss per step."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class LossCurve(LiveFigure):
    """Loss per step."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, steps: Any, loss: Any, validation: Any = None) -> None:
        """New data."""
        self._say("nothing to show yet")
