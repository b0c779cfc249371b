"""Memory in use during a simulated step."""

from bokeh.models import LegendItem, NumeralTickFormatter

from hetplanner.plan.model import Plan
from hetplanner.plots.data.steps.replays import memory_lines
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.simulator.replay import Replay

LINE_NAMES = ("xs", "ys", "colour", "label", "words")
LIMIT_COLOUR = "#CC3311"
MOST_LEGENDS = 16


class MemoryCurves(LiveFigure):
    """A line for every stage, as a share of what its device holds; the red line is the limit."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        labels = {"x_axis_label": "seconds", "y_axis_label": "share of the device's memory"}
        super().__init__(dark=dark, height=height, y_range=(0, 1.1), **labels)
        self.source = empty_source(*LINE_NAMES)
        self._lines = self.figure.multi_line(
            "xs", "ys", source=self.source, line_color="colour", line_width=1.6, line_join="bevel"
        )
        self._limit = self.figure.hspan(y=[1.0], line_color=LIMIT_COLOUR, line_width=1.5, line_dash="dashed")
        self._add_tips([self._lines], [("", "@label"), ("", "@words")], line_policy="nearest")
        self._labels = LegendItem(label={"field": "label"}, renderers=[self._lines], visible=False)
        limit = LegendItem(label="limit", renderers=[self._stroke(line_color=LIMIT_COLOUR, line_dash="dashed")])
        self._add_legend([]).items = [self._labels, limit]
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0 %")
        self._recolour()
        self.update(None, None)

    def update(self, plan: Plan | None, replay: Replay | None, pipeline: int | None = None) -> None:
        """Shows one simulated step: of a pipeline, or the replica of each stage that comes nearest its limit."""
        columns = memory_lines(replay, plan, pipeline) if plan and replay else {name: [] for name in LINE_NAMES}
        put(self.source, columns)
        count = len(columns["label"])
        self._labels.visible = 0 < count <= MOST_LEGENDS
        highest = max((float(ys.max()) for ys in columns["ys"]), default=0.0)
        set_range(self.figure.y_range, 0.0, 1.08 * max(highest, 1.0))
        set_range(self.figure.x_range, 0.0, replay.step_s if count and replay else 1.0)
        self._say("" if count else "no plan yet" if plan is None else "no estimate")
