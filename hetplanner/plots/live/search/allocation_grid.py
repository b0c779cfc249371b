"""Which device holds which stage: a grid of stages and replicas."""

from functools import partial

import numpy as np
from bokeh.models import Legend

from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import Columns, grid_columns, layers_text, ops_text
from hetplanner.plots.live.base import INK_COLUMNS, TEXT_FONT, LiveFigure, by_ink, empty_source, put, set_range

GRID_NAMES = (
    "stage", "replica", "device", "kind", "site", "host", "rank", "colour", "ink", "line_1", "line_2", "ops",
    "params", "micro_batches", "share", "busy", "memory", "y", "text",
)  # fmt: skip
HEAD_NAMES = ("stage", "y", "height", "text", "ops", "count")
HEAD_PX = 17.0
FRAME_PX = 560
CHAR_PX = 6.2
MOST_ROW_LABELS = 24
"""Of more replicas every so many have a number, as many as stand apart."""


class AllocationGrid(LiveFigure):
    """A column for every stage, a row for every replica; the colour is the site.

    Args:
        dark: for a dark page.
        height: in pixels.
        frame_px: width for which texts are cut before the page has told its own.
    """

    def __init__(self, *, dark: bool = False, height: int = 320, frame_px: float = FRAME_PX) -> None:
        self._expected_px = frame_px
        super().__init__(dark=dark, height=height, x_range=(-0.5, 0.5), y_range=(-0.5, 0.5))
        self.source = empty_source(*GRID_NAMES, *INK_COLUMNS.values())
        self.cells = self._boxes(
            "stage", "y", width=0.95, height=0.9, source=self.source, fill_color="colour", line_color=None
        )
        self._ink_texts("stage", "y", self.source, text_line_height=1.1)
        self.head_source = empty_source(*HEAD_NAMES)
        self.heads = self._boxes(
            "stage", "y", width=0.95, height="height", source=self.head_source, line_color=None, fill_alpha=0.9
        )
        self._head_texts = self.figure.text(
            "stage", "y", text="text", source=self.head_source, text_align="center", text_baseline="middle",
            text_font=TEXT_FONT, text_font_size="11px", text_font_style="bold",
        )  # fmt: skip
        self._add_tips([self.heads], [("stage", "@stage: @ops"), ("devices", "@count")])
        self._add_tips(
            [self.cells],
            [
                ("device", "@device (@kind), rank @rank"),
                ("site, host", "@site, @host"),
                ("stage", "@stage: @ops (@params parameters)"),
                ("share", "@share"),
                ("computes", "@busy a step"),
                ("memory", "@memory"),
            ],
        )
        self._legend = self._site_legend()
        self.figure.grid.visible = False
        self._recolour()
        self.update(None)

    def _site_legend(self) -> Legend:
        # Rows of its own: a legend draws nothing for a glyph of which a part is selected.
        self.key_source = empty_source("x", "y", "site", "colour")
        keys = self._boxes("x", "y", width=1, height=1, source=self.key_source, fill_color="colour", line_color=None)
        # The sites of the data, as they come: no part of the figure changes with the plan.
        return self._add_legend([({"field": "site"}, [keys])])

    def _recolour(self) -> None:
        super()._recolour()
        self.heads.glyph.fill_color = self.look.grid
        self._head_texts.glyph.text_color = self.look.text

    def update(self, plan: Plan | None) -> None:
        """Shows a plan; None empties the grid."""
        self._again = partial(self.update, plan)
        if plan is None:
            put(self.source, {name: [] for name in self.source.column_names})
            put(self.head_source, {name: [] for name in HEAD_NAMES})
            put(self.key_source, {name: [] for name in ("x", "y", "site", "colour")})
            self._label_axis(self.figure.xaxis[0], [], [])
            self._label_axis(self.figure.yaxis[0], [], [])
            self._say("no plan yet: start a search")
            return
        num_stages = len(plan.stages)
        num_rows = max(len(stage.replicas) for stage in plan.stages)
        width_px, height_px = self._frame_px(self._expected_px)
        heads = head_columns(plan, num_rows, height_px)
        cells = cell_columns(plan, num_rows, width_px, height_px)
        put(self.source, by_ink(cells))
        sites = dict(zip(cells["site"], cells["colour"], strict=True))
        nowhere = [np.nan] * len(sites)
        put(self.key_source, {"x": nowhere, "y": nowhere, "site": list(sites), "colour": list(sites.values())})
        put(self.head_source, heads)
        layers = [layers_text(plan, s) for s in range(num_stages)] if num_stages <= 14 else heads["text"]
        self._label_axis(self.figure.xaxis[0], range_list(num_stages), layers)
        labelled = range(0, num_rows, -(-num_rows // MOST_ROW_LABELS))
        rows = [f"replica {r}" if num_rows <= 12 else str(r) for r in labelled]
        self._label_axis(self.figure.yaxis[0], [-float(r) for r in labelled], rows)
        set_range(self.figure.x_range, -0.5, num_stages - 0.5)
        set_range(self.figure.y_range, 0.5 - num_rows, heads["y"][0] + heads["height"][0] / 2)
        self._say("")


def range_list(count: int) -> list[float]:
    """0, 1, … as floats: Bokeh cannot serialise `range`."""
    return [float(i) for i in range(count)]


def head_columns(plan: Plan, num_rows: int, height_px: float) -> Columns:
    """A bar above every column, high enough for its text: what one points at for a whole stage."""
    num_stages = len(plan.stages)
    height = max(0.6, HEAD_PX * num_rows / max(height_px - HEAD_PX, HEAD_PX))
    return {
        "stage": list(range(num_stages)),
        "y": [0.55 + height / 2] * num_stages,
        "height": [height] * num_stages,
        "text": [f"stage {s}" if num_stages <= 10 else str(s) for s in range(num_stages)],
        "ops": [ops_text(plan, s) for s in range(num_stages)],
        "count": [len(stage.replicas) for stage in plan.stages],
    }


def cell_columns(plan: Plan, num_rows: int, width_px: float, height_px: float) -> Columns:
    """The grid's columns with y = -replica and the text that fits in a cell: id, kind, micro-batches."""
    id_chars = int(width_px / len(plan.stages) / CHAR_PX)
    columns = by_site(plan, grid_columns(plan, id_chars=id_chars))
    lines = int(0.9 * height_px / num_rows / 13)
    cells = zip(columns["line_1"], columns["line_2"], columns["micro_batches"], strict=True)
    columns["y"] = [-r for r in columns["replica"]]
    columns["text"] = [
        "\n".join([line_1, line_2, *_count_line(count, id_chars)][: max(lines, 0)]) if id_chars > 3 else ""
        for line_1, line_2, count in cells
    ]
    return columns


def _count_line(micro_batches: int, chars: int) -> list[str]:
    """How many micro-batches a cell takes, as long as it fits; nothing where it does not."""
    texts = (f"{micro_batches} micro-batches", f"{micro_batches} mb")
    return [text for text in texts if len(text) <= chars][:1]


def by_site(plan: Plan, columns: Columns) -> Columns:
    """The same rows in the order of the cluster's sites, which the legend then has too."""
    place = {site.name: i for i, site in enumerate(plan.problem.cluster.sites)}
    order = sorted(range(len(columns["site"])), key=lambda row: place[columns["site"][row]])
    return {name: [values[row] for row in order] for name, values in columns.items()}
