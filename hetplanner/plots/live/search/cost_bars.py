"""Cost terms of several plans as stacked bars."""

from collections.abc import Mapping
from functools import partial

from hetplanner.plan.estimate import Estimate
from hetplanner.plots.data.search.costs import cost_columns, total_columns
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.live.base import INK_COLUMNS, TEXT_FONT, LiveFigure, by_ink, empty_source, put, set_range

COST_NAMES = ("y", "label", "term", "left", "right", "middle", "colour", "ink", "text", "value", "share")
FRAME_PX = 460
NUMBER_PX = 42
"""Room that a number inside a bar needs."""
TOTAL_PX = 112
"""Room that a total behind its bar needs: the axis goes on for it."""


class CostBars(LiveFigure):
    """One bar for every estimate, the first on top; its parts add up to the step time."""

    def __init__(self, *, dark: bool = False, height: int = 320) -> None:
        super().__init__(dark=dark, height=height, y_range=(-0.6, 0.6), x_axis_label="seconds a step")
        self.source = empty_source(*COST_NAMES, *INK_COLUMNS.values())
        self.total_source = empty_source("y", "label", "total", "text")
        self._bars = self.figure.hbar(
            y="y", left="left", right="right", height=0.62, source=self.source, fill_color="colour", line_color=None
        )
        self._ink_texts("middle", "y", self.source)
        self._totals = self.figure.text(
            "total", "y", text="text", source=self.total_source, text_baseline="middle", x_offset=6,
            text_font=TEXT_FONT, text_font_size="12px", text_font_style="bold",
        )  # fmt: skip
        self._add_tips([self._bars], [("", "@label"), ("@term", "@value (@share of the step)")])
        self._add_legend([({"field": "term"}, [self._bars])])
        self.figure.ygrid.visible = False
        self._recolour()
        self.update({})

    def _recolour(self) -> None:
        super()._recolour()
        self._totals.glyph.text_color = self.look.text
        self.figure.yaxis.major_label_text_color = self.look.text

    def update(self, estimates: Mapping[str, Estimate]) -> None:
        """Shows estimates by label (`planned`, `rank order`, …), the first one on top."""
        self._again = partial(self.update, estimates)
        totals = total_columns(estimates)
        frame_px = self._frame_px(FRAME_PX)[0]
        room = frame_px / max(frame_px - TOTAL_PX, frame_px / 2)
        columns = cost_columns(estimates, NUMBER_PX * room / frame_px)
        put(self.source, by_ink(columns))
        put(self.total_source, totals)
        labels = [shortened(label, 22) for label in totals["label"]]
        self._label_axis(self.figure.yaxis[0], totals["y"], labels)
        longest = max(totals["total"], default=0.0) or 1.0
        set_range(self.figure.x_range, 0.0, longest * room)
        set_range(self.figure.y_range, 0.4 - max(len(labels), 1), 0.6)
        self._say("" if estimates else "no estimate yet: start a search")
