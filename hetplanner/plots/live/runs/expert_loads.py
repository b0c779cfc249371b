"""Tokens that each expert of a mixture of experts took."""

from collections.abc import Mapping, Sequence

import numpy as np
from bokeh.models import ColorBar, CustomJSHover, LinearColorMapper

from hetplanner.plots.data.runs.expert_loads import PALETTE, expert_matrix, text_columns
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.live.base import FONT, LiveFigure, by_ink, empty_source, put, set_range

NOTHING = "rgba(0, 0, 0, 0)"
MOST_NAMES = 24
"""Of more ops not every one has its name at the axis."""
_OP = "return ops.data.op[Math.floor(special_vars.y)] ?? ''"
_EXPERT = "return String(Math.floor(special_vars.x))"


class ExpertLoads(LiveFigure):
    """A row for every op with experts, a column for each of its experts; bright took many tokens, dark few."""

    def __init__(self, *, dark: bool = False, height: int = 280) -> None:
        super().__init__(dark=dark, height=height, x_axis_label="expert")
        self.mapper = LinearColorMapper(palette=list(PALETTE), low=0.0, high=2.0, nan_color=NOTHING)
        self.source, self.op_source = empty_source("image", "tokens", "dw", "dh"), empty_source("op")
        self.text_source = empty_source("x", "y", "text_dark", "text_light", "text", "ink")
        self._image = self.figure.image(
            "image", x=0, y=0, dw="dw", dh="dh", source=self.source, color_mapper=self.mapper
        )
        self._ink_texts("x", "y", self.text_source)
        self._bar = ColorBar(
            color_mapper=self.mapper, width=10, label_standoff=6, background_fill_color=None, bar_line_color=None,
            major_tick_line_color=None, major_label_text_font=FONT, major_label_text_font_size="11px",
            title="load, even: 1", title_text_font=FONT, title_text_font_size="11px", title_text_font_style="normal",
        )  # fmt: skip
        self.figure.add_layout(self._bar, "right")
        self._add_tips(
            [self._image],
            [("op", "$y{0}"), ("expert", "$x{0}"), ("tokens", "@tokens{0,0}"), ("load", "@image{0.00}")],
            formatters={
                "$y": CustomJSHover(args={"ops": self.op_source}, code=_OP),
                "$x": CustomJSHover(code=_EXPERT),
            },
        )
        self.figure.grid.visible = False
        for axis in self.figure.axis:
            self._label_axis(axis, [], [])
        self._recolour()
        self.update({})

    def _recolour(self) -> None:
        super()._recolour()
        self._bar.update(major_label_text_color=self.look.muted, title_text_color=self.look.muted)

    def update(self, loads: Mapping[str, Sequence[int]]) -> None:
        """Shows what `RunReader.expert_loads` tells: by op, the tokens of each expert."""
        matrix = expert_matrix(loads)
        rows, experts = matrix.load_OE.shape
        # An image's first row is at the bottom; ours belongs on top.
        pictures = [np.ascontiguousarray(part[::-1].astype(np.float32)) for part in (matrix.load_OE, matrix.tokens_OE)]
        columns = dict(zip(self.source.column_names, (*pictures, experts, rows), strict=True))
        put(self.op_source, {"op": list(matrix.ops[::-1])})
        if self.mapper.high != matrix.top:
            self.mapper.high = matrix.top
        put(self.source, {name: [value] if rows else [] for name, value in columns.items()})
        put(self.text_source, by_ink(text_columns(matrix)))
        named = range(0, rows, max(1, -(-rows // MOST_NAMES)))
        names = [shortened(matrix.ops[row], 28) for row in named]
        self._label_axis(self.figure.yaxis[0], [rows - row - 0.5 for row in named], names)
        numbers = range(0, experts, max(1, -(-experts // 2 // MOST_NAMES)))
        self._label_axis(self.figure.xaxis[0], [number + 0.5 for number in numbers], [str(n) for n in numbers])
        set_range(self.figure.x_range, 0, experts or 1)
        set_range(self.figure.y_range, 0, rows or 1)
        self._say("" if rows else "a mixture of experts tells the tokens of each with its first steps")
