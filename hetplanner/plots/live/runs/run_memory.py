"""What every rank's process holds in memory while it trains."""

from collections.abc import Sequence

import numpy as np

from hetplanner.plots.data.runs.run_memory import memory_lines
from hetplanner.plots.live.base import empty_source, put
from hetplanner.plots.live.runs.curve import StepCurve
from hetplanner.runs.reading.reader import RunReader

LINE_NAMES = ("xs", "ys", "colour", "rank", "stage", "label")


class RunMemory(StepCurve):
    """A line for every rank over steps, in its stage's colour; accelerator memory dashed."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__("MB", dark=dark, height=height)
        self.source, self.device_source = empty_source(*LINE_NAMES), empty_source(*LINE_NAMES)
        lines = [
            self.figure.multi_line("xs", "ys", source=source, line_color="colour", line_width=2, line_dash=dash)
            for source, dash in ((self.source, "solid"), (self.device_source, "dashed"))
        ]
        for renderer, words in zip(lines, ("process", "accelerator"), strict=True):
            self._add_tips(
                [renderer],
                [("rank", "@rank"), ("stage", "@stage"), (words, "$y{0,0} MB at step $x{0}")],
                line_policy="nearest",
            )
        self._add_legend([({"field": "label"}, [lines[0]])])
        self._recolour()
        self.update(None)

    def update(self, run: RunReader | None) -> None:
        """Shows a run as far as it was polled."""
        resident, device = memory_lines(run) if run is not None else ([], [])
        put(self.source, _columns(resident))
        put(self.device_source, _columns(device))
        xs = [x for row in (*resident, *device) for x in (row["xs"][0], row["xs"][-1])]
        ys = [y for row in (*resident, *device) for y in (float(np.min(row["ys"])), float(np.max(row["ys"])))]
        self._fit(xs, [0.0, *ys], floor=0.0)
        self._say("" if xs else "the first step is still to come")


def _columns(rows: Sequence[dict]) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in LINE_NAMES}
