"""Tokens per second over steps."""

from collections.abc import Sequence

from bokeh.models import NumeralTickFormatter

from hetplanner.plots.data.curves import rolling_median, series_columns
from hetplanner.plots.live.base import put
from hetplanner.plots.live.runs.curve import StepCurve


class ThroughputCurve(StepCurve):
    """Every step as a thin line, the running median bold."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__("tokens/s", dark=dark, height=height)
        self.source, thin = self._line("#228833", line_width=1, line_alpha=0.55)
        self.median_source, bold = self._line("#228833", line_width=2.5)
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0,0[.]0 a")
        self._hover(self.source, ("throughput", "@y{0,0} a second"))
        self._add_legend([("each step", [thin]), ("running median", [bold])])
        self._recolour()
        self.update([], [])

    def update(self, steps: Sequence[float], tokens_per_s: Sequence[float], word: str = "tokens") -> None:
        """Shows a run's throughput; `word`: what it counts."""
        self.figure.yaxis.axis_label = f"{word}/s"
        columns = series_columns(steps, tokens_per_s)
        put(self.source, columns)
        put(self.median_source, {"x": columns["x"], "y": rolling_median(columns["y"])})
        self._fit(columns["x"], columns["y"], floor=0.0)
        self._say("" if columns["x"] else "the first step is still to come")
