"""A search as it converges, against its baselines and its lower bound."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bokeh.models import FixedTicker, NumeralTickFormatter

from hetplanner.plots.data.curves import (
    EARLIEST_S,
    EVENT_NAMES,
    axis_label,
    band_columns,
    earlier_columns,
    event_columns,
    level_columns,
    value_range,
)
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range

_TOOLTIPS = [
    ("best", "@best{0.0000a}"),
    ("population", "@low{0.0000a}, @median{0.0000a}, @high{0.0000a} (10, 50, 90 %)"),
    ("after", "@seconds{0.00} s, @evaluations{0,0} evaluations"),
]


class ConvergenceCurve(LiveFigure):
    """Best so far and quantiles of the population over seconds of search; baselines dashed, bound dotted.

    The axis is logarithmic, for most happens early, and begins at the first evaluation; every value holds until the
    next one.
    """

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(
            dark=dark, height=height, x_axis_type="log", x_range=(EARLIEST_S, 1), x_axis_label="seconds of search"
        )
        self.source = empty_source(*EVENT_NAMES)
        # Corners of stairs: Bokeh's own area of steps hangs the page while it is empty.
        self.band_source = empty_source("seconds", "low", "high")
        self.first_source = empty_source("seconds", "best")
        self.first_source.tags = ["first"]
        self.earlier_source = empty_source("seconds", "best")
        self.level_source = empty_source("y", "label_y", "text", "x")
        self.bound_source = empty_source("y", "label_y", "text", "x")
        curve = partial(self.figure.step, mode="after")
        self._band = self.figure.varea(
            "seconds", "low", "high", source=self.band_source, fill_color="#4477AA", fill_alpha=0.15
        )
        self._earlier = curve("seconds", "best", source=self.earlier_source, line_width=2)
        self._median = curve("seconds", "median", source=self.source, line_dash="dashed", line_width=1.5)
        self._levels = self.figure.hspan(y="y", source=self.level_source, line_dash=[7, 4], line_width=1.3)
        self._bound = self.figure.hspan(y="y", source=self.bound_source, line_dash="dotted", line_width=1.6)
        self._best = curve("seconds", "best", source=self.source, line_width=2.5, line_color="#4477AA")
        self._first = self.figure.scatter("seconds", "best", source=self.first_source, size=7, color="#4477AA")
        self._last = self.figure.scatter("seconds", "best", source=self.source, size=9, alpha=0)
        self._texts = [
            self.figure.text(
                "x", "label_y", text="text", source=source, text_align="right", text_baseline=baseline,
                text_font_size="11px", text_font=TEXT_FONT, x_offset=-4, y_offset=offset,
            )
            for source, baseline, offset in ((self.level_source, "bottom", -3), (self.bound_source, "top", 4))
        ]  # fmt: skip
        legend = self._add_legend(
            [
                ("best", [self._best]),
                ("population", [self._median, self._band]),
                ("baselines", [self._levels]),
                ("lower bound", [self._bound]),
                ("earlier searches", [self._earlier]),
            ]
        )
        self._earlier_item = legend.items[-1]
        self._add_tips([self._last], _TOOLTIPS, mode="vline")
        self.figure.xaxis.ticker = FixedTicker(ticks=[m * 10.0**e for e in (-2, -1, 0, 1, 2, 3, 4) for m in (1, 2, 5)])
        self.figure.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
        self._recolour()
        self.update([])

    def _recolour(self) -> None:
        super()._recolour()
        self._median.glyph.line_color = "#66CCEE" if self.look.is_dark else "#7799BB"
        self._levels.glyph.line_color = self.look.muted
        self._earlier.glyph.line_color = self.look.axis
        self._bound.glyph.line_color = "#44BB99" if self.look.is_dark else "#228833"
        for text, line in zip(self._texts, (self._levels, self._bound), strict=True):
            text.glyph.update(
                text_color=line.glyph.line_color,
                background_fill_color=self.look.paper,
                background_fill_alpha=0.75,
            )

    def update(
        self,
        events: Sequence[Any],
        baselines: Mapping[str, float] | None = None,
        lower_bound: float | None = None,
        unit: str = "s",
        earlier: Sequence[Sequence[Any]] = (),
        left_out: str = "",
    ) -> None:
        """Shows a search.

        Args:
            events: objects or mappings with fields of :class:`hetplanner.planners.interface.SearchEvent`, oldest first.
            baselines: name -> value of the objective.
            lower_bound: no plan can be better.
            unit: of the objective, for the axis and the labels.
            earlier: events of searches to compare with.
            left_out: what the values do not count, see `left_out_of`.
        """
        columns, before = event_columns(events, lower_bound), earlier_columns(earlier)
        bound = {"lower bound": lower_bound} if lower_bound is not None else {}
        levels = dict(baselines or {})
        best = [*columns["best"], *before["best"]]
        low, high = value_range(best, columns["high"], [*levels.values(), *bound.values()])
        seconds = [s for s in (*columns["seconds"], *before["seconds"]) if math.isfinite(s)]
        start = 0.9 * min([*seconds, 10 * EARLIEST_S])
        end = max([1.0, *seconds]) * 1.05
        put(self.source, columns)
        put(self.band_source, band_columns(columns))
        put(self.first_source, {name: columns[name][:1] for name in ("seconds", "best")})
        put(self.earlier_source, before)
        self._earlier_item.visible = bool(before["best"])
        for source, lines in ((self.level_source, levels), (self.bound_source, bound)):
            labels = level_columns(lines, unit, high - 0.09 * (high - low), high - low)
            put(source, labels | {"x": [end] * len(labels["y"])})
        set_range(self.figure.x_range, start, end)
        set_range(self.figure.y_range, low, high)
        self.figure.yaxis.axis_label = axis_label(unit, left_out)
        self._say("" if events or levels or before["best"] else "start a search to see it converge")
