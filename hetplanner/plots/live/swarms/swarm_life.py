"""The life of a swarm: who served which stage when, joins, deaths and moves as marks, and the commits above."""

from collections.abc import Mapping

from bokeh.models import GlyphRenderer, LegendItem

from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.data.swarms.swarm_life import (
    COMMIT_NAMES,
    MARK_NAMES,
    MARKS,
    STAY_NAMES,
    TOP_Y,
    commit_columns,
    mark_columns,
    shown_peers,
    stay_columns,
)
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.runs.reading.swarm_history import SwarmHistory

MAX_LABELS = 24
NAME_LENGTH = 18


class SwarmLife(LiveFigure):
    """A row for every peer in the colour of its stage, pale while it joins or waits; one above for all."""

    def __init__(self, *, dark: bool = False, height: int = 360) -> None:
        super().__init__(
            dark=dark, height=height, y_range=(-0.6, TOP_Y + 0.6), x_axis_label="seconds since the coordinator began"
        )
        self.serving_source, self.joining_source = empty_source(*STAY_NAMES), empty_source(*STAY_NAMES)
        self.pause_source = empty_source(*STAY_NAMES)
        self.mark_source, self.commit_source = empty_source(*MARK_NAMES), empty_source(*COMMIT_NAMES)
        self._joining = self._bars(self.joining_source, fill_color="colour", fill_alpha=0.3)
        self._serving = self._bars(self.serving_source, fill_color="colour")
        self._pauses = self._bars(self.pause_source, fill_color="#CC3311", fill_alpha=0.35)
        self._commits = self.figure.scatter(
            "x", "y", marker="dash", angle=1.5708, size=12, source=self.commit_source, line_width=1.5
        )
        self._marks = self.figure.scatter(
            "x", "y", marker="marker", size=12, source=self.mark_source, fill_color="colour", line_color="edge",
            line_width=1.5,
        )  # fmt: skip
        self._add_hovers()
        self._add_words()
        self._recolour()
        self.update(None)

    def _bars(self, source: object, **options: object) -> GlyphRenderer:
        return self.figure.hbar(
            y="y", left="left", right="right", height=0.62, source=source, line_color=None, **options
        )

    def _add_hovers(self) -> None:
        bars = [("", "@peer"), ("", "@state at @stage"), ("took", "@took")]
        for renderers, tooltips in (
            ([self._serving, self._joining], bars),
            ([self._pauses], [("paused", "no peer serves @stage"), ("took", "@took")]),
            ([self._commits], [("commit", "@text")]),
            ([self._marks], [("", "@peer, at @x{0.0} s"), ("", "@text")]),
        ):
            self._add_tips(renderers, tooltips)

    def _add_words(self) -> None:
        self._commit_key = self._stroke(line_width=1.5)
        self._kinds = {kind: LegendItem(label=kind, renderers=[self._mark(*look)]) for kind, look in MARKS.items()}
        legend = self._add_legend([])
        legend.items = [
            LegendItem(label={"field": "stage"}, renderers=[self._serving]),
            LegendItem(label="joins or waits", renderers=[self._swatch("#888888", fill_alpha=0.3)]),
            LegendItem(label="paused", renderers=[self._swatch("#CC3311", fill_alpha=0.35)]),
            LegendItem(label="commit", renderers=[self._commit_key]),
            *self._kinds.values(),
        ]
        self.figure.ygrid.visible = False
        self._label_axis(self.figure.yaxis[0], [], [])

    def _recolour(self) -> None:
        super()._recolour()
        for strokes in (self._commits, self._commit_key):
            strokes.glyph.line_color = self.look.text

    def update(
        self, history: SwarmHistory | None, now_s: float | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        """Shows a swarm as far as its history was polled; None empties the figure.

        Args:
            history: of the run.
            now_s: unix time until which stays that go on are drawn; None: the last event's.
            names: by peer, where it is shown by another name.
        """
        rows = shown_peers(history) if history is not None else []
        self._label_rows([(names or {}).get(peer, peer) for peer in rows])
        for kind, item in self._kinds.items():
            item.visible = history is not None and kind in history.counts
        if history is None or history.first_s is None:
            self._empty()
            return
        start_s = history.first_s
        end_s = history.last_s if history.is_over or now_s is None else max(now_s, history.last_s)
        by_state = {True: self.serving_source, False: self.joining_source}
        for serves, source in by_state.items():
            stays = [stay for stay in history.stays if (stay.state == "serving") is serves]
            put(source, stay_columns(stays, rows, start_s, end_s))
        put(self.pause_source, stay_columns(history.pauses, rows, start_s, end_s))
        put(self.mark_source, mark_columns(history, rows, start_s))
        put(self.commit_source, commit_columns(list(history.commits), start_s))
        set_range(self.figure.x_range, 0.0, 1.02 * (end_s - start_s) or 1.0)
        self._say("")

    def _empty(self) -> None:
        for source in (self.serving_source, self.joining_source, self.pause_source, self.mark_source,
                       self.commit_source):  # fmt: skip
            put(source, {name: [] for name in source.data})
        self._say("the coordinator has told nothing yet")

    def _label_rows(self, rows: list[str]) -> None:
        every = -(-len(rows) // MAX_LABELS) or 1
        names = [plain(shortened(peer, NAME_LENGTH)) for peer in rows[::every]]
        places = [TOP_Y, *(float(-i) for i in range(0, len(rows), every))]
        self._label_axis(self.figure.yaxis[0], places, ["the swarm", *names])
        set_range(self.figure.y_range, 0.4 - max(len(rows), 1), TOP_Y + 0.6)


def plain(text: str) -> str:
    r"""A stranger's name for an axis, where Bokeh reads $$…$$, \[…\] and \(…\) as TeX."""
    return text.replace("$$", "$ $").replace("\\", "/")
