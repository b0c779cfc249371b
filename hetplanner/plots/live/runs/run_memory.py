"""What every rank's process holds in memory while it trains."""

from collections.abc import Sequence

import numpy as np
from bokeh.models import HoverTool, LegendItem, Range1d

from hetplanner.plots.data.curves import padded_range
from hetplanner.plots.data.runs.run_memory import memory_lines
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.runs.reading.reader import RunReader

LINE_NAMES = ("xs", "ys", "colour", "rank", "stage", "label")


class RunMemory(LiveFigure):
    """A line for every rank over steps, in its stage's colour; accelerator memory dashed."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(
            dark=dark,
            height=height,
            x_range=Range1d(0, 1),
            y_range=Range1d(0, 1),
            x_axis_label="step",
            y_axis_label="MB",
        )
        self.source, self.device_source = empty_source(*LINE_NAMES), empty_source(*LINE_NAMES)
        lines = [
            self.figure.multi_line("xs", "ys", source=source, line_color="colour", line_width=2, line_dash=dash)
            for source, dash in ((self.source, "solid"), (self.device_source, "dashed"))
        ]
        for renderer, words in zip(lines, ("process", "accelerator"), strict=True):
            self.figure.add_tools(
                HoverTool(
                    renderers=[renderer],
                    tooltips=[("rank", "@rank"), ("stage", "@stage"), (words, "$y{0,0} MB at step $x{0}")],
                    line_policy="nearest",
                    visible=False,
                )
            )
        legend = self._add_legend([])
        legend.items = [LegendItem(label={"field": "label"}, renderers=[lines[0]])]
        self._recolour()
        self.update(None)

    def update(self, run: RunReader | None) -> None:
        """Shows a run as far as it was polled."""
        resident, device = memory_lines(run) if run is not None else ([], [])
        put(self.source, _columns(resident))
        put(self.device_source, _columns(device))
        xs = [x for row in (*resident, *device) for x in (row["xs"][0], row["xs"][-1])]
        ys = [y for row in (*resident, *device) for y in (float(np.min(row["ys"])), float(np.max(row["ys"])))]
        set_range(self.figure.x_range, min(xs, default=0.0), max(max(xs, default=0.0), min(xs, default=0.0) + 1.0))
        set_range(self.figure.y_range, 0.0, padded_range([0.0, *ys])[1])
        self._say("" if xs else "the first step is still to come")


def _columns(rows: Sequence[dict]) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in LINE_NAMES}
