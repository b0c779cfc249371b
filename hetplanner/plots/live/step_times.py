"""Step times, measured against predicted."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class StepTimes(LiveFigure):
    """Step times, measured against predicted."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, steps: Any, measured_s: Any, predicted_s: float | None = None, catalog_s: float | None = None) -> None:
        """New data."""
        self._say("nothing to show yet")
