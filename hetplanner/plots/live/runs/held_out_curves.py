"""What a run says of held-out data over steps: perplexity and accuracy."""

from collections.abc import Sequence

from bokeh.models import FixedTicker, NumeralTickFormatter

from hetplanner.plots.data.curves import series_columns
from hetplanner.plots.live.base import fit_log_values, put
from hetplanner.plots.live.runs.curve import StepCurve
from hetplanner.runs.reading.reader import Evaluation

COLOUR = "#EE6677"
"""That of the validation loss."""


class _HeldOutCurve(StepCurve):
    """A point for every evaluation, on a dashed line."""

    def __init__(self, label: str, number: str, *, dark: bool, height: int, y_axis_type: str = "auto") -> None:
        super().__init__(label, dark=dark, height=height, y_axis_type=y_axis_type)
        self.source, _ = self._line(COLOUR, line_dash="dashed")
        self.figure.scatter("x", "y", source=self.source, size=7, color=COLOUR)
        self._hover(self.source, (label, f"@y{{{number}}}"))

    def _show(self, pairs: Sequence[tuple[int, float]], nothing: str) -> list[float]:
        """The shown values."""
        columns = series_columns([step for step, _ in pairs], [value for _, value in pairs])
        put(self.source, columns)
        self._fit(columns["x"], columns["y"], floor=0.0)
        self._say("" if pairs else nothing)
        return columns["y"]


class PerplexityCurve(_HeldOutCurve):
    """e to the loss on held-out data; the axis is logarithmic, as a model of random weights begins at its vocabulary.

    An evaluation whose perplexity is too large for a number has no point.
    """

    def __init__(self, *, dark: bool = False, height: int = 280) -> None:
        super().__init__("perplexity", "0,0.[00]", dark=dark, height=height, y_axis_type="log")
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0,0.[0000]")
        self.figure.yaxis[0].ticker = FixedTicker(ticks=[])
        self._recolour()
        self.update([])

    def update(self, evaluations: Sequence[Evaluation]) -> None:
        """Shows what `RunReader.evaluations` tells."""
        found = [(one.step, one.perplexity) for one in evaluations]
        shown = self._show([(s, v) for s, v in found if v is not None], "comes with the first evaluation")
        fit_log_values(self.figure, shown, "perplexity")


class AccuracyCurve(_HeldOutCurve):
    """Share of held-out targets (tokens, or classes) to which the model gives the greatest score."""

    def __init__(self, *, dark: bool = False, height: int = 280) -> None:
        super().__init__("accuracy", "0.0 %", dark=dark, height=height)
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0.[0] %")
        self._recolour()
        self.update([])

    def update(self, evaluations: Sequence[Evaluation]) -> None:
        """Shows what `RunReader.evaluations` tells."""
        found = [(one.step, one.accuracy) for one in evaluations]
        is_told = not evaluations or any(value is not None for _, value in found)
        nothing = "comes with the first evaluation" if is_told else "this run does not tell it"
        self._show([(s, v) for s, v in found if v is not None], nothing)
