"""Loss over steps."""

from collections.abc import Mapping, Sequence

from hetplanner.plots.data.curves import series_columns
from hetplanner.plots.live.base import empty_source, put
from hetplanner.plots.live.runs.curve import StepCurve

Pairs = Mapping[int, float] | Sequence[tuple[float, float]]


class LossCurve(StepCurve):
    """Training loss as a line, validation loss as points on a line."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__("loss (nats a token)", dark=dark, height=height)
        self.source, line = self._line("#4477AA", line_width=2)
        # Small dots, so that the first step shows before there is a line.
        dots = self.figure.scatter("x", "y", source=self.source, size=3, color="#4477AA")
        self.validation_source = empty_source("x", "y")
        points = self.figure.scatter("x", "y", source=self.validation_source, size=7, color="#EE6677")
        joined = self.figure.line("x", "y", source=self.validation_source, line_color="#EE6677", line_dash="dashed")
        self._hover(self.source, ("loss", "@y{0.0000}"))
        self._add_legend([("training", [line, dots]), ("validation", [points, joined])])
        self._recolour()
        self.update([], [])

    def update(self, steps: Sequence[float], loss: Sequence[float], validation: Pairs | None = None) -> None:
        """Shows a run's loss.

        Args:
            steps, loss: one value a step.
            validation: step -> loss, or pairs of them.
        """
        columns = series_columns(steps, loss)
        pairs = list(validation.items() if isinstance(validation, Mapping) else validation or ())
        checked = series_columns([s for s, _ in pairs], [v for _, v in pairs])
        put(self.source, columns)
        put(self.validation_source, checked)
        self._fit([*columns["x"], *checked["x"]], [*columns["y"], *checked["y"]])
        self._say("" if columns["x"] else "the first step is still to come")
