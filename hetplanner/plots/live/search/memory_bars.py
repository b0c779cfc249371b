"""What the devices' memory holds at its peak, against what they have."""

from hetplanner.cost.memory_parts import PART_WORDS
from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.data.search.memory import MEMORY_NAMES, PARTS, fullest, memory_columns, part_names
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import MEMORY_COLOURS

TIGHT = 0.9
"""Share of the limit from which a device is shown as tight."""
MAX_LABELS = 20


class MemoryBars(LiveFigure):
    """One stacked bar for every device in rank order, of a large plan for the fullest ones; the outline is its limit.

    A worker group has one bar, of what its members hold together. The outline is orange from 90 % of the limit and red
    above it.
    """

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height, x_range=(-0.6, 0.6), y_axis_label="GB")
        self.source = empty_source("x", *MEMORY_NAMES, "edge", "label")
        self.limits = self.figure.vbar(
            x="x", top="limit_gb", width=0.82, source=self.source, fill_alpha=0.25, line_width=1
        )
        for part in PARTS:
            bottom, top, _ = part_names(part)
            self.figure.vbar(
                x="x", bottom=bottom, top=top, width=0.62, source=self.source, fill_color=MEMORY_COLOURS[part],
                line_color=None,
            )  # fmt: skip
        self.figure.vbar(x="x", top="limit_gb", width=0.82, source=self.source, fill_color=None, line_color="edge",
                         line_width=2)  # fmt: skip
        self._numbers = self.figure.text(
            "x", "peak_gb", text="label", source=self.source, text_align="center", text_baseline="bottom",
            y_offset=-2, text_font=TEXT_FONT, text_font_size="11px",
        )  # fmt: skip
        self._add_tips([self.limits], self._tooltips())
        # Swatches: a legend draws nothing for a glyph of which a part is selected.
        self._limit_key = self._swatch(self.look.grid, fill_alpha=0.25)
        swatches = [(PART_WORDS[part], [self._swatch(MEMORY_COLOURS[part])]) for part in PARTS]
        self._add_legend([*swatches, ("limit", [self._limit_key])])
        self.figure.xgrid.visible = False
        self.figure.xaxis.major_label_orientation = 0.7
        self._recolour()
        self.update(None)

    def _tooltips(self) -> list[tuple[str, str]]:
        return [
            ("device", "@device (@kind), stage @stage"),
            ("needs", "@peak of @limit (@share{0 %})"),
            ("free", "@free"),
            # The topmost first, as in the bar.
            *((PART_WORDS[part], f"@{part_names(part)[2]}") for part in reversed(PARTS)),
        ]

    def _recolour(self) -> None:
        super()._recolour()
        self._numbers.glyph.text_color = self.look.text
        for renderer in (self.limits, self._limit_key):
            renderer.glyph.update(fill_color=self.look.grid, line_color=self.look.axis)

    def update(self, plan: Plan | None) -> None:
        """Shows a plan's estimate; None, or a plan without one, empties the figure."""
        every_row = memory_columns(plan) if plan else {name: [] for name in MEMORY_NAMES}
        columns, shown = fullest(every_row)
        columns["edge"] = [edge_colour(share) for share in columns["share"]]
        count = len(columns["x"])
        columns["label"] = columns["peak"] if count <= MAX_LABELS // 2 else [""] * count
        put(self.source, columns)
        every = -(-count // MAX_LABELS) or 1
        ticks = columns["x"][::every]
        self._label_axis(self.figure.xaxis[0], ticks, [shortened(name, 16) for name in columns["name"][::every]])
        self.figure.xaxis.axis_label = shown
        set_range(self.figure.x_range, -0.6, max(count, 1) - 0.4)
        set_range(self.figure.y_range, 0, 1.06 * max([*columns["limit_gb"], *columns["peak_gb"]], default=0) or 1)
        self._say("" if count else "no estimate yet")


def edge_colour(share: float) -> str:
    """Of a limit's outline: none, orange from 90 % of it, red above it."""
    return "#00000000" if share < TIGHT else "#EE8866" if share <= 1 else "#CC3311"
