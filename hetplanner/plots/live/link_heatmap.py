"""Links between all devices."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class LinkHeatmap(LiveFigure):
    """Links between all devices."""

    def __init__(self, what: str = "bandwidth", *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, cluster: Any) -> None:
        """New data."""
        self._say("nothing to show yet")
