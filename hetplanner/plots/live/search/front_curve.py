"""The front of step time and dollars as it grows, and the plan on it that one looks at."""

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import FixedTicker, NumeralTickFormatter

from hetplanner.plots.data.search.fronts import COLUMNS, ROOM, front_columns, log_ends, log_ticks, point_columns
from hetplanner.plots.live.base import LOG_LOG, LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import LINE_COLOURS


class FrontCurve(LiveFigure):
    """Step time against dollars, both logarithmic; bounds dotted, the chosen plan ringed, the current plan a star."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        labels = {"x_axis_label": "step time (s)", "y_axis_label": "$ per million tokens"}
        super().__init__(dark=dark, height=height, **LOG_LOG, **labels)
        self.source = empty_source(*COLUMNS)
        self.chosen_source = empty_source("x", "y")
        self.own_source = empty_source("x", "y")
        self.bound_x, self.bound_y = empty_source("x"), empty_source("y")
        step = self.figure.step(
            "step_s", "usd_per_mtoken", source=self.source, mode="after", line_width=2, alpha=0.5, color=LINE_COLOURS[0]
        )
        points = self.figure.scatter("step_s", "usd_per_mtoken", source=self.source, size=9, color=LINE_COLOURS[0])
        self._ring = self.figure.scatter("x", "y", source=self.chosen_source, size=17, fill_color=None, line_width=2.5)
        own = self.figure.scatter("x", "y", source=self.own_source, marker="star", size=17, color=LINE_COLOURS[1])
        lines = {"line_dash": "dotted", "line_width": 1.6}
        self._bounds = [
            self.figure.vspan(x="x", source=self.bound_x, **lines),
            self.figure.hspan(y="y", source=self.bound_y, **lines),
        ]
        self._add_legend(
            [
                ("plans, none beaten in both", [step, points]),
                ("current plan", [own]),
                ("lower bounds", self._bounds[1:]),
            ]
        )
        self._add_tips([points], [("step", "@step"), ("price", "@price"), ("left out", "@left_out"), ("plan", "@text")])
        for axis in (self.figure.xaxis, self.figure.yaxis):
            axis.formatter = NumeralTickFormatter(format="0,0.[0000]")
            axis.ticker = FixedTicker(ticks=[])
        self._recolour()
        self.update([])

    def _recolour(self) -> None:
        super()._recolour()
        for bound in self._bounds:
            bound.glyph.line_color = "#44BB99" if self.look.is_dark else "#228833"
        self._ring.glyph.line_color = self.look.text

    def update(
        self,
        points: Sequence[tuple[float, float]],
        rows: Sequence[dict[str, Any]] = (),
        least: tuple[float, float] | None = None,
        chosen: int | None = None,
        own: tuple[float, float] | None = None,
        left_out: str = "",
        word: str = "tokens",
    ) -> None:
        """Shows a front.

        Args:
            points: seconds of a step and dollars per million tokens, the fastest first.
            rows: facts about the same points once their plans are made.
            least: no plan has less of either.
            chosen: the point that is looked at.
            own: the current plan.
            left_out: what the dollars do not count, see `left_out_of`.
            word: what a million of is priced.
        """
        self.figure.yaxis[0].axis_label = ", ".join(filter(None, (f"$ per million {word}", left_out)))
        columns = front_columns(rows, word) if rows else point_columns(points, word)
        put(self.source, {name: columns[name] for name in COLUMNS})
        put(self.chosen_source, _one(points[chosen] if chosen is not None and chosen < len(points) else None))
        put(self.own_source, _one(own))
        put(self.bound_x, {"x": [least[0]] if least else []})
        put(self.bound_y, {"y": [least[1]] if least else []})
        shown = [*points, *([own] if own else [])]
        axes = ((self.figure.x_range, self.figure.xaxis[0]), (self.figure.y_range, self.figure.yaxis[0]))
        for k, (target, axis) in enumerate(axes):
            ends = log_ends([point[k] for point in shown])
            set_range(target, *ends)
            axis.ticker.ticks = log_ticks(*ends)
        self._say("" if points else "find the front to see what time costs")

    def nearest(self, x: float, y: float) -> int | None:
        """The point next to a place in the figure, in shares of its axes; None where none is near."""
        spans = [math.log(target.end / target.start) or 1.0 for target in (self.figure.x_range, self.figure.y_range)]
        if x <= 0 or y <= 0:
            return None
        pairs = zip(self.source.data["step_s"], self.source.data["usd_per_mtoken"], strict=True)
        far = [
            math.hypot(math.log(x / step_s) / spans[0], math.log(y / usd) / spans[1]) if step_s > 0 < usd else math.inf
            for step_s, usd in pairs
        ]
        best = min(range(len(far)), key=far.__getitem__, default=None)
        return best if best is not None and far[best] < ROOM else None


def _one(point: tuple[float, float] | None) -> dict[str, list[float]]:
    return {"x": [point[0]], "y": [point[1]]} if point else {"x": [], "y": []}
