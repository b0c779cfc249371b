"""What collectives between devices of one host take, as a profile has measured them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.models import LegendItem, Range1d
from bokeh.models.axes import Axis

from hetplanner.plots.data.runs.profiles import collective_curves
from hetplanner.plots.data.search.fronts import log_ends, log_ticks
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.live.base import LOG_LOG, LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import LINE_COLOURS
from hetplanner.profiles.model import COLLECTIVES, Profile
from hetplanner.units import short_bytes, short_seconds

COLOURS = dict(zip(COLLECTIVES, LINE_COLOURS, strict=False))
DASHES = ("solid", "8 4", "2 3", "10 3 2 3", "16 4")
MARKS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star")
POINT_NAMES = ("x", "y", "colour", "mark", "collective", "group", "size", "time")
LABEL_CHARS = 40
X_LABEL = "bytes of the whole tensor"


class CollectiveCurves(LiveFigure):
    """Seconds over bytes, both logarithmic: a colour for each collective, a dash and a mark for each group."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height, **LOG_LOG, x_axis_label=X_LABEL, y_axis_label="time")
        self.source = empty_source("xs", "ys", "colour", "dash")
        self.points = empty_source(*POINT_NAMES)
        self.keys = empty_source("x", "y", "xs", "ys", "dash", "mark", "group")
        self.figure.multi_line("xs", "ys", source=self.source, line_color="colour", line_dash="dash", line_width=2)
        marks = self.figure.scatter("x", "y", source=self.points, marker="mark", size=7, color="colour")
        self._keys = [
            self.figure.multi_line("xs", "ys", source=self.keys, line_dash="dash", line_width=2),
            self.figure.scatter("x", "y", source=self.keys, marker="mark", size=7),
        ]
        legend = self._add_legend([(name, [self._swatch(COLOURS[name])]) for name in COLLECTIVES])
        self._items = dict(zip(COLLECTIVES, legend.items, strict=True))
        legend.items = [*legend.items, LegendItem(label={"field": "group"}, renderers=self._keys)]
        self._add_tips(
            [marks], [("collective", "@collective"), ("devices", "@group"), ("bytes", "@size"), ("time", "@time")]
        )
        for axis in (self.figure.xaxis[0], self.figure.yaxis[0]):
            self._label_axis(axis, [], [])
        self._recolour()
        self.update(None)

    def _recolour(self) -> None:
        super()._recolour()
        line, mark = (renderer.glyph for renderer in self._keys)
        line.line_color = self.look.muted
        mark.update(line_color=self.look.muted, fill_color=self.look.muted)

    def update(self, profile: Profile | None) -> None:
        """Shows the measured collectives of a profile, of at most `MOST_GROUPS` groups."""
        curves, count = collective_curves(profile) if profile is not None else ([], 0)
        groups = list(dict.fromkeys(curve["group"] for curve in curves))
        places = [groups.index(curve["group"]) for curve in curves]
        put(
            self.source,
            {
                "xs": [curve["sizes"] for curve in curves],
                "ys": [curve["seconds"] for curve in curves],
                "colour": [COLOURS[curve["collective"]] for curve in curves],
                "dash": [DASHES[place % len(DASHES)] for place in places],
            },
        )
        rows = [
            (size, seconds, COLOURS[curve["collective"]], MARKS[place % len(MARKS)],
             curve["collective"], curve["group"], short_bytes(size), short_seconds(seconds))
            for curve, place in zip(curves, places, strict=True)
            for size, seconds in zip(curve["sizes"], curve["seconds"], strict=True)
        ]  # fmt: skip
        put(self.points, {name: [row[i] for row in rows] for i, name in enumerate(POINT_NAMES)})
        self._show_keys(groups, {curve["collective"] for curve in curves})
        self._fit_axis(self.figure.xaxis[0], self.figure.x_range, [row[0] for row in rows], short_bytes)
        self._fit_axis(self.figure.yaxis[0], self.figure.y_range, [row[1] for row in rows], short_seconds)
        first = f" ({len(groups)} of {count} groups)" if count > len(groups) else ""
        self.figure.xaxis[0].axis_label = f"{X_LABEL}{first}"
        self._say("" if curves else "no collectives were measured; hetplanner profile --tensor 1,2 measures them")

    def _show_keys(self, groups: Sequence[str], measured: set[Any]) -> None:
        """The legend: collectives by colour, groups by dash and mark."""
        count = len(groups)
        put(
            self.keys,
            {
                "x": [math.nan] * count,
                "y": [math.nan] * count,
                "xs": [[math.nan, math.nan]] * count,
                "ys": [[math.nan, math.nan]] * count,
                "dash": [DASHES[i % len(DASHES)] for i in range(count)],
                "mark": [MARKS[i % len(MARKS)] for i in range(count)],
                "group": [shortened(group, LABEL_CHARS) for group in groups],
            },
        )
        for name, item in self._items.items():
            item.visible = name in measured

    def _fit_axis(self, axis: Axis, target: Range1d, values: Sequence[float], words: Callable[[float], str]) -> None:
        """Ends and ticks of a logarithmic axis for these values."""
        ends = log_ends(values)
        set_range(target, *ends)
        ticks = log_ticks(*ends)
        self._label_axis(axis, ticks, [words(tick) for tick in ticks])
