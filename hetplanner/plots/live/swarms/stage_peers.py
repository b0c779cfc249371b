"""Peers that serve every stage of a swarm, over time."""

import numpy as np
from bokeh.models import AdaptiveTicker

from hetplanner.plots.data.swarms.stage_peers import STAIR_NAMES, stage_stairs
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.runs.reading.swarm_history import SwarmHistory


class StagePeers(LiveFigure):
    """A staircase for every stage in its colour; equal ones lie a little apart."""

    def __init__(self, *, dark: bool = False, height: int = 260) -> None:
        labels = {"x_axis_label": "seconds since the coordinator began", "y_axis_label": "peers that serve"}
        super().__init__(dark=dark, height=height, **labels)
        self.source = empty_source(*STAIR_NAMES)
        stairs = self.figure.multi_line("xs", "ys", source=self.source, line_color="colour", line_width=2)
        self.figure.yaxis.ticker = AdaptiveTicker(min_interval=1, num_minor_ticks=0)
        tips = [("", "@stage: $y{0} peers at $x{0.0} s")]
        self._add_tips([stairs], tips, line_policy="nearest")
        self._add_legend([({"field": "stage"}, [stairs])])
        self._recolour()
        self.update(None)

    def update(self, history: SwarmHistory | None, num_stages: int = 0, now_s: float | None = None) -> None:
        """Shows a swarm as far as its history was polled; None empties the figure.

        Args:
            history: of the run.
            num_stages: of the plan.
            now_s: unix time until which stays that go on are drawn; None: the last event's.
        """
        if history is None or history.first_s is None:
            put(self.source, {name: [] for name in STAIR_NAMES})
            self._say("the coordinator has told nothing yet")
            return
        end_s = history.last_s if history.is_over or now_s is None else max(now_s, history.last_s)
        columns = stage_stairs(history, num_stages, end_s)
        put(self.source, columns)
        set_range(self.figure.x_range, 0.0, 1.02 * (end_s - history.first_s) or 1.0)
        set_range(self.figure.y_range, 0.0, max((float(np.max(ys)) for ys in columns["ys"]), default=0.0) + 0.7)
        self._say("")
