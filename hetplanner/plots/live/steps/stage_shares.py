"""Where each stage's time goes in a simulated step."""

from bokeh.models import NumeralTickFormatter

from hetplanner.plan.model import Plan
from hetplanner.plots.data.steps.replays import share_columns, stage_labels
from hetplanner.plots.live.base import INK_COLUMNS, LiveFigure, by_ink, empty_source, put, set_range
from hetplanner.simulator.replay import Replay

SHARE_NAMES = ("y", "label", "term", "left", "right", "middle", "colour", "ink", "text", "value", "share")


class StageShares(LiveFigure):
    """One bar for every stage, the first on top; its parts are shares of the step, mean over the replicas."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height, y_range=(-0.6, 0.6), x_axis_label="share of the step")
        self.source = empty_source(*SHARE_NAMES, *INK_COLUMNS.values())
        self._bars = self.figure.hbar(
            y="y", left="left", right="right", height=0.74, source=self.source, fill_color="colour", line_color=None
        )
        self._ink_texts("middle", "y", self.source)
        self._add_tips([self._bars], [("stage", "@label"), ("@term", "@share of the step (@value)")])
        self._add_legend([({"field": "term"}, [self._bars])])
        self.figure.xaxis.formatter = NumeralTickFormatter(format="0 %")
        self.figure.ygrid.visible = False
        self._label_axis(self.figure.yaxis[0], [], [])
        self._recolour()
        self.update(None, None)

    def update(self, plan: Plan | None, replay: Replay | None) -> None:
        """Shows one simulated step of a plan; None empties the figure."""
        if plan is None or replay is None:
            put(self.source, {name: [] for name in self.source.column_names})
            self._say("no plan yet")
            return
        labels = stage_labels(plan)
        put(self.source, by_ink(share_columns(replay, plan)))
        every = -(-len(labels) // 26) or 1
        self._label_axis(self.figure.yaxis[0], [float(-s) for s in range(0, len(labels), every)], labels[::every])
        set_range(self.figure.y_range, 0.4 - max(len(labels), 1), 0.6)
        self._say("")
