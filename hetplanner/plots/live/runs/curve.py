"""A line over optimiser steps: what the run page's curves share."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, GlyphRenderer

from hetplanner.plots.data.curves import padded_range
from hetplanner.plots.live.base import LiveFigure, empty_source, set_range


class StepCurve(LiveFigure):
    """A figure over steps that fits its axes to the data."""

    def __init__(self, label: str, *, dark: bool, height: int, **options: Any) -> None:
        super().__init__(dark=dark, height=height, x_axis_label="step", y_axis_label=label, **options)

    def _line(self, colour: str, **options: object) -> tuple[ColumnDataSource, GlyphRenderer]:
        source = empty_source("x", "y")
        return source, self.figure.line("x", "y", source=source, line_color=colour, **options)

    def _hover(self, source: ColumnDataSource, text: tuple[str, str]) -> None:
        points = self.figure.scatter("x", "y", source=source, size=8, alpha=0)
        self._add_tips([points], [("step", "@x{0,0}"), text], mode="vline")

    def _fit(self, x: Sequence[float], y: Sequence[float], floor: float | None = None) -> None:
        set_range(self.figure.x_range, min(x, default=0.0), max(max(x, default=0.0), min(x, default=0.0) + 1.0))
        set_range(self.figure.y_range, *padded_range(y, floor=floor))
