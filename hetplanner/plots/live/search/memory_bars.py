"""Peak memory of the devices against what they have."""

from bokeh.models import HoverTool, Range1d

from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import fullest, memory_columns, shortened
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range

MEMORY_NAMES = (
    "x", "rank", "device", "kind", "stage", "peak_gb", "limit_gb", "share", "peak", "limit", "free", "colour", "label",
)  # fmt: skip
TIGHT = 0.9
"""Share of the limit from which a device is shown as tight."""
MAX_LABELS = 20


class MemoryBars(LiveFigure):
    """One bar for every device in rank order, of a large plan for the fullest ones; the outline is its limit."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height, x_range=Range1d(-0.6, 0.6), y_range=Range1d(0, 1), y_axis_label="GB")
        self.source = empty_source(*MEMORY_NAMES)
        self.limits = self.figure.vbar(
            x="x", top="limit_gb", width=0.82, source=self.source, fill_alpha=0.25, line_width=1
        )
        self._peaks = self.figure.vbar(
            x="x", top="peak_gb", width=0.62, source=self.source, fill_color="colour", line_color=None
        )
        self._numbers = self.figure.text(
            "x", "peak_gb", text="label", source=self.source, text_align="center", text_baseline="bottom",
            y_offset=-2, text_font=TEXT_FONT, text_font_size="11px",
        )  # fmt: skip
        self.figure.add_tools(
            HoverTool(
                renderers=[self.limits],
                tooltips=[
                    ("device", "@device (@kind), stage @stage"),
                    ("needs", "@peak of @limit (@share{0 %})"),
                    ("free", "@free"),
                ],
                visible=False,
            )
        )
        # Swatches: a legend draws nothing for a glyph of which a part is selected.
        self._limit_key = self._swatch(self.look.grid, fill_alpha=0.25)
        self._add_legend([("peak", [self._swatch(memory_colour(0.0))]), ("limit", [self._limit_key])])
        self.figure.xgrid.visible = False
        self.figure.xaxis.major_label_orientation = 0.7
        self._recolour()
        self.update(None)

    def _recolour(self) -> None:
        super()._recolour()
        self._numbers.glyph.text_color = self.look.text
        for renderer in (self.limits, self._limit_key):
            renderer.glyph.update(fill_color=self.look.grid, line_color=self.look.axis)

    def update(self, plan: Plan | None) -> None:
        """Shows a plan's estimate; None, or a plan without one, empties the figure."""
        every_row = memory_columns(plan) if plan else {name: [] for name in MEMORY_NAMES[1:-2]}
        columns, shown = fullest(every_row)
        columns["colour"] = [memory_colour(share) for share in columns["share"]]
        count = len(columns["x"])
        columns["label"] = columns["peak"] if count <= MAX_LABELS // 2 else [""] * count
        put(self.source, columns)
        every = -(-count // MAX_LABELS) or 1
        ticks = columns["x"][::every]
        self._label_axis(self.figure.xaxis[0], ticks, [shortened(d, 14) for d in columns["device"][::every]])
        self.figure.xaxis.axis_label = shown
        set_range(self.figure.x_range, -0.6, max(count, 1) - 0.4)
        set_range(self.figure.y_range, 0, 1.06 * max([*columns["limit_gb"], *columns["peak_gb"]], default=0) or 1)
        self._say("" if count else "no estimate yet")


def memory_colour(share: float) -> str:
    """Blue, orange from 90 % of the limit, red above it."""
    return "#4477AA" if share < TIGHT else "#EE8866" if share <= 1 else "#CC3311"
