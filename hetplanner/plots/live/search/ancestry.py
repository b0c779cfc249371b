"""Where the best placement of a search comes from: parents and children over the placements tried."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter

from hetplanner.planners.interface import OBJECTIVE_UNITS
from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.plots.data.search.ancestry import BIRTH_NAMES, WAYS, birth_columns, descent_lines
from hetplanner.plots.live.base import LOG_LOG, LiveFigure, empty_source, fit_log_values, put, set_range
from hetplanner.plots.theme import LINE_COLOURS


class Ancestry(LiveFigure):
    """A mark for every birth, by its way; a line from each parent to its child. The best stands last."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height, **LOG_LOG, x_axis_label="placements tried")
        self.lines = empty_source("xs", "ys")
        self.figure.multi_line("xs", "ys", source=self.lines, line_color="#999999", line_alpha=0.7)
        self.sources = {way: empty_source(*BIRTH_NAMES) for way in WAYS}
        looks: dict[str, dict[str, Any]] = {
            "seed": {"fill_color": None, "line_color": "#999999"},
            "annealed": {"color": LINE_COLOURS[0]},
            "crossed": {"color": LINE_COLOURS[1], "marker": "diamond"},
        }
        drawn = [
            (WAYS[way], [self.figure.scatter("x", "value", size=9, source=source, **looks[way])])
            for way, source in self.sources.items()
        ]
        nowhere = ColumnDataSource({"x": [np.nan], "value": [np.nan]})  # a legend draws no glyph without data
        keys = {way: self.figure.scatter("x", "value", size=9, source=nowhere, **looks[way]) for way in WAYS}
        self._add_legend([(WAYS[way], [key]) for way, key in keys.items()])
        self._add_tips(
            [mark for _, marks in drawn for mark in marks],
            [("value", "@text"), ("stages × replicas", "@shape"), ("placements tried", "@x{0,0}")],
        )
        self.figure.xaxis[0].formatter = NumeralTickFormatter(format="0 a")
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0,0.[0000]")
        self.figure.yaxis[0].ticker = FixedTicker(ticks=[])
        self._recolour()
        self.update([])

    def update(self, ancestry: Sequence[Ancestor], objective: str = "step-time") -> None:
        """Shows a search's.

        Args:
            ancestry: parents before children.
            objective: of the search.
        """
        columns = birth_columns(ancestry, objective)
        put(self.lines, descent_lines(ancestry))
        for way, source in self.sources.items():
            at = [i for i, one in enumerate(columns["way"]) if one == way]
            put(source, {name: [column[i] for i in at] for name, column in columns.items()})
        values, xs = columns["value"], columns["x"]
        fit_log_values(self.figure, values, OBJECTIVE_UNITS[objective])
        set_range(self.figure.x_range, min(xs, default=1) / 1.5, max(xs, default=1) * 1.5)
        self._say("" if ancestry else "known when a search has ended")
