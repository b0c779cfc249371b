"""The life of a run: phases of every rank as bars, checkpoints, restarts and failures as marks."""

from collections.abc import Sequence

from hetplanner.plots.data.runs.lifelines import MARK_NAMES, MARKS, PHASE_NAMES, mark_columns, phase_columns
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import PHASE_COLOURS
from hetplanner.runs.reading.events import LifeSpan, RunEvent

MAX_LABELS = 16


class Lifelines(LiveFigure):
    """A row for every rank, and one above them for the run as a whole."""

    def __init__(self, *, dark: bool = False, height: int = 260) -> None:
        super().__init__(
            dark=dark, height=height, y_range=(-0.6, 1.2), x_axis_label="seconds since the run was handed to the agent"
        )
        self.phase_source = empty_source(*PHASE_NAMES)
        self.mark_source = empty_source(*MARK_NAMES)
        self._bars = self.figure.hbar(
            y="y", left="left", right="right", height=0.5, source=self.phase_source, color="colour", line_color=None
        )
        self._marks = self.figure.scatter(
            "x", "y", marker="marker", size=12, source=self.mark_source, fill_color="colour", line_color="colour",
            line_width=2,
        )  # fmt: skip
        self._add_tips([self._bars], [("rank", "@rank"), ("", "@phase"), ("took", "@took")])
        self._add_tips([self._marks], [("", "@rank, at @x{0.0} s"), ("", "@text")])
        swatches = [(name, [self._swatch(colour)]) for name, colour in PHASE_COLOURS.items()]
        kinds = [(kind, [self._mark(*look, size=10)]) for kind, look in MARKS.items()]
        self._add_legend([*swatches, *kinds])
        self.figure.ygrid.visible = False
        self._label_axis(self.figure.yaxis[0], [], [])
        self._recolour()
        self.update([], [], (), 0.0)

    def update(
        self, spans: Sequence[LifeSpan], events: Sequence[RunEvent], labels: Sequence[str], origin_s: float
    ) -> None:
        """Shows a run.

        Args:
            spans, events: as `runs.events` reads them.
            labels: device of every rank.
            origin_s: unix time that counts as 0.
        """
        put(self.phase_source, phase_columns(spans, labels, origin_s))
        put(self.mark_source, mark_columns(events, len(labels), origin_s))
        every = -(-len(labels) // MAX_LABELS) or 1
        words = [f"{rank} · {shortened(label, 14)}" for rank, label in enumerate(labels)]
        self._label_axis(self.figure.yaxis[0], [0.75, *(float(-r) for r in range(0, len(labels), every))],
                         ["the run", *words[::every]])  # fmt: skip
        set_range(self.figure.y_range, 0.4 - max(len(labels), 1), 1.2)
        ends = [s.end_s - origin_s for s in spans] + [e.time_s - origin_s for e in events]
        set_range(self.figure.x_range, 0.0, 1.03 * max(ends, default=0.0) or 1.0)
        self._say("" if spans or events else "nothing has happened yet")
