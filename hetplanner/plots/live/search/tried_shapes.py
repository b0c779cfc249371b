"""The shapes that a search tried: the value of each one's best plan over its number of stages."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import FixedTicker, NumeralTickFormatter

from hetplanner.planners.search.tried import TriedShape
from hetplanner.plots.data.curves import TRIED_NAMES, tried_columns
from hetplanner.plots.live.base import LiveFigure, empty_source, fit_log_values, put, set_range
from hetplanner.plots.theme import LINE_COLOURS

KINDS = {"scored": "scored, not annealed", "annealed": "annealed", "best": "the best"}


class TriedShapes(LiveFigure):
    """A mark for every shape, the larger the longer it was annealed; the best is named."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(
            dark=dark, height=height, y_axis_type="log", x_range=(0.5, 1.5), y_range=(1, 10), x_axis_label="stages"
        )
        self.sources = {kind: empty_source(*TRIED_NAMES) for kind in KINDS}
        marks: list[tuple[str, dict[str, Any]]] = [
            (KINDS["scored"], {"fill_color": None, "line_color": "#999999"}),
            (KINDS["annealed"], {"color": LINE_COLOURS[0], "fill_alpha": 0.45}),
            (KINDS["best"], {"color": LINE_COLOURS[1]}),
        ]
        drawn = [
            (words, [self.figure.scatter("stages", "value", size="size", source=source, **look)])
            for (words, look), source in zip(marks, self.sources.values(), strict=True)
        ]
        self._name = self.figure.text(
            "stages", "value", text="shape", source=self.sources["best"], x_offset=10, text_baseline="middle",
            text_font_size="12px",
        )  # fmt: skip
        self._add_legend(drawn)
        self._add_tips(
            [mark for _, marks in drawn for mark in marks], [("stages × replicas", "@shape"), ("best", "@text")]
        )
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0,0.[0000]")
        self.figure.yaxis[0].ticker = FixedTicker(ticks=[])
        self._recolour()
        self.update([])

    def _recolour(self) -> None:
        super()._recolour()
        self._name.glyph.text_color = self.look.text

    def update(self, tried: Sequence[TriedShape], unit: str = "s") -> int:
        """Shows the shapes of a search.

        Args:
            tried: the best first.
            unit: of their values.

        Returns:
            How many shapes are too far behind the best to be shown.
        """
        columns, left_out = tried_columns(tried, unit)
        for kind, source in self.sources.items():
            at = [i for i, one in enumerate(columns["kind"]) if one == kind]
            put(source, {name: [column[i] for i in at] for name, column in columns.items()})
        values, stages = columns["value"], columns["stages"]
        fit_log_values(self.figure, values, unit)
        set_range(self.figure.x_range, min(stages, default=1) - 0.5, max(stages, default=1) + 0.8)
        self._say("" if tried else "known when a search has ended")
        return left_out
