"""Measured step times against what was predicted."""

from collections.abc import Sequence

from hetplanner.plots.data.curves import rolling_median, series_columns, without_spikes
from hetplanner.plots.live.base import TEXT_FONT, empty_source, put
from hetplanner.plots.live.runs.curve import StepCurve
from hetplanner.units import short_seconds


class StepTimes(StepCurve):
    """Every step as a thin line, its running median bold; predictions dashed, with their values."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__("step time (s)", dark=dark, height=height)
        self.source, thin = self._line("#EE6677", line_width=1, line_alpha=0.55)
        self.median_source, bold = self._line("#EE6677", line_width=2.5)
        self.predicted_source = empty_source("y", "text", "x")
        self.catalog_source = empty_source("y", "text", "x")
        predicted = self.figure.hspan(
            y="y", source=self.predicted_source, line_color="#4477AA", line_dash="dashed", line_width=2
        )
        catalog = self.figure.hspan(
            y="y", source=self.catalog_source, line_color="#AA8833", line_dash="dotted", line_width=2
        )
        self._texts = [
            self.figure.text(
                "x", "y", text="text", source=source, text_align="right", text_baseline="bottom", x_offset=-2,
                y_offset=-2, text_font=TEXT_FONT, text_font_size="11px",
            )
            for source in (self.predicted_source, self.catalog_source)
        ]  # fmt: skip
        self._hover(self.source, ("took", "@y{0.0000} s"))
        self._add_legend(
            [
                ("measured", [thin]),
                ("running median", [bold]),
                ("predicted", [predicted]),
                ("catalog", [catalog]),
            ]
        )
        self._recolour()
        self.update([], [])

    def _recolour(self) -> None:
        super()._recolour()
        for text in self._texts:
            text.glyph.update(
                text_color=self.look.text, background_fill_color=self.look.paper, background_fill_alpha=0.75
            )

    def update(
        self,
        steps: Sequence[float],
        measured_s: Sequence[float],
        predicted_s: float | None = None,
        catalog_s: float | None = None,
    ) -> None:
        """Shows a run's step times (seconds); a catalog estimate far away is named at the edge, not drawn."""
        columns = series_columns(steps, measured_s)
        put(self.source, columns)
        put(self.median_source, {"x": columns["x"], "y": rolling_median(columns["y"])})
        main = [*without_spikes(columns["y"]), *([predicted_s] if predicted_s else [])]
        near = [c for c in [catalog_s] if c and main and 0.4 * min(main) <= c <= 2.5 * max(main)]
        self._fit(columns["x"], [*main, *near], floor=0.0)
        end = float(self.figure.x_range.end)
        for source, value, word in (
            (self.predicted_source, predicted_s, "predicted"),
            (self.catalog_source, catalog_s, "catalog"),
        ):
            put(source, level(value, word, end, float(self.figure.y_range.start), float(self.figure.y_range.end)))
        self._say("" if columns["x"] else "the first step is still to come")


def level(value: float | None, word: str, x: float, low: float, high: float) -> dict[str, list]:
    """Columns of one labelled horizontal line; beyond the axis the label stays at its edge, with an arrow."""
    if value is None:
        return {"y": [], "text": [], "x": []}
    arrow = " ↑" if value > high else " ↓" if value < low else ""
    y = min(max(value, low), high - 0.08 * (high - low)) if arrow else value
    return {"y": [y], "text": [f"{word} {short_seconds(value)}{arrow}"], "x": [x]}
