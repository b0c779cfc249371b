"""How busy links and NICs are in a simulated step."""

from bokeh.models import NumeralTickFormatter

from hetplanner.plan.model import Plan
from hetplanner.plots.data.steps.replays import link_rows
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range
from hetplanner.simulator.replay import Replay

LINK_NAMES = ("y", "label", "load", "left", "right", "colour", "words")


class LinkLoads(LiveFigure):
    """The busiest links, one bar each: for what share of the step they carry activations, gradients, reductions."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height, y_range=(-0.6, 0.6), x_axis_label="busy share of the step")
        self.source = empty_source(*LINK_NAMES)
        self.total_source = empty_source("y", "total", "text")
        self._bars = self.figure.hbar(
            y="y", left="left", right="right", height=0.7, source=self.source, fill_color="colour", line_color=None
        )
        self._texts = self.figure.text(
            "total", "y", text="text", source=self.total_source, text_baseline="middle", x_offset=6,
            text_font=TEXT_FONT, text_font_size="11px",
        )  # fmt: skip
        self._add_tips([self._bars], [("link", "@label"), ("@load", "@words")])
        self._add_legend([({"field": "load"}, [self._bars])])
        self.figure.xaxis.formatter = NumeralTickFormatter(format="0 %")
        self.figure.ygrid.visible = False
        self._label_axis(self.figure.yaxis[0], [], [])
        self._recolour()
        self.update(None, None)

    def _recolour(self) -> None:
        super()._recolour()
        self._texts.glyph.text_color = self.look.text

    def update(self, plan: Plan | None, replay: Replay | None) -> int:
        """Shows one simulated step of a plan, None empties the figure; returns how many links are in use."""
        if plan is None or replay is None:
            put(self.source, {name: [] for name in LINK_NAMES})
            put(self.total_source, {"y": [], "total": [], "text": []})
            self._say("no plan yet")
            return 0
        rows = link_rows(replay, plan)
        put(self.source, rows.columns)
        put(self.total_source, rows.totals)
        self._label_axis(self.figure.yaxis[0], [float(y) for y in rows.totals["y"]], rows.labels)
        set_range(self.figure.x_range, 0.0, 1.3 * max([*rows.totals["total"], 1e-3]))
        set_range(self.figure.y_range, 0.4 - max(len(rows.labels), 1), 0.6)
        self._say("" if rows.labels else "one device: nothing travels")
        return rows.num_links
