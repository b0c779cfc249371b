"""Where a step's time goes: every term of the cost model, predicted next to measured."""

from typing import Any

from hetplanner.plots.data.curves import padded_range
from hetplanner.plots.data.runs.reports import term_pairs
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range
from hetplanner.runs.reports.comparison import WORDS, Comparison
from hetplanner.runs.reports.report import RunReport

PAIR_NAMES = ("x", "middle", "top", "colour", "term", "text", "source", "difference")


class RunTerms(LiveFigure):
    """Two bars a term, in the term's colour: predicted pale, measured full."""

    def __init__(self, *, dark: bool = False, height: int = 280) -> None:
        super().__init__(dark=dark, height=height, x_range=(-0.6, len(WORDS) - 0.4), y_axis_label="seconds a step")
        self.predicted_source, self.measured_source = empty_source(*PAIR_NAMES), empty_source(*PAIR_NAMES)
        self._predicted = self._bars(self.predicted_source, fill_alpha=0.3, line_dash="dashed")
        self._measured = self._bars(self.measured_source)
        self._texts = [
            self.figure.text(
                "middle", "top", text="text", source=source, text_align=align, text_baseline="bottom", y_offset=-2,
                x_offset=shift, text_font=TEXT_FONT, text_font_size="10px",
            )
            for source, align, shift in ((self.predicted_source, "right", -1), (self.measured_source, "left", 1))
        ]  # fmt: skip
        self._add_tips([self._predicted, self._measured], [("@source", "@text a step"), ("@term", "@difference")])
        self._add_legend(
            [
                ("predicted", [self._swatch("#5b6570", fill_alpha=0.3, line_dash="dashed")]),
                ("measured", [self._swatch("#5b6570")]),
            ]
        )
        self._label_axis(self.figure.xaxis[0], list(range(len(WORDS))), [w.replace(" ", "\n") for w in WORDS.values()])
        self.figure.xgrid.visible = False
        self._recolour()
        self.update(None)

    def _bars(self, source: Any, **options: Any) -> Any:
        return self.figure.vbar(
            x="x", top="top", width=0.36, source=source, fill_color="colour", line_color="colour", **options
        )

    def _recolour(self) -> None:
        super()._recolour()
        for text in self._texts:
            text.glyph.text_color = self.look.text

    def update(self, found: Comparison | RunReport | None) -> None:
        """Shows a comparison; without one, or before anything was predicted, says what is missing."""
        pairs = term_pairs(found) if found is not None else {}
        nothing: dict[str, list[Any]] = {name: [] for name in PAIR_NAMES}
        put(self.predicted_source, pairs.get("predicted", nothing))
        put(self.measured_source, pairs.get("measured", nothing))
        tops = [top for columns in pairs.values() for top in columns["top"]]
        set_range(self.figure.y_range, 0.0, padded_range([0.0, *tops], share=0.12)[1])
        self._say("" if tops else "shown from the first complete steps")
