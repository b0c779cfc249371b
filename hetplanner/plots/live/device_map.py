"""Sites on a world map."""

from typing import Any

from hetplanner.plots.live.base import LiveFigure


class DeviceMap(LiveFigure):
    """Sites on a world map."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height)
        self._recolour()

    def update(self, cluster: Any, plan: Any = None) -> None:
        """New data."""
        self._say("nothing to show yet")
