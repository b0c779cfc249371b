"""One simulated step: a row for every rank, of a worker group a lane for every member, a bar for everything it does."""

import re

from bokeh.models import BoxZoomTool, CustomJSHover, SaveTool

from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.data.steps.replays import Rows, gantt_columns, rank_labels, rows_of
from hetplanner.plots.data.steps.spans import KINDS, MAX_SPANS, NUMBERS, WORDS
from hetplanner.plots.live.base import empty_source, put, set_range
from hetplanner.plots.live.steps.timeline import LABEL_PX, Timeline
from hetplanner.simulator.replay import Replay
from hetplanner.simulator.spans import ROLES

IDLE = "idle"
ROOM = 1.01
_WORD = 'return words[value] ?? "–"'
"""Words stay on the page: thousands of texts for every step shown would take longer than all else."""
WIDER = 0.6
"""So much more than the window is drawn on both sides of it, so that a small move needs nothing new."""


class StepGantt(Timeline):
    """Stage by stage; where a step has more spans than can be drawn, neighbours are joined until one zooms in."""

    def __init__(self, *, dark: bool = False, height: int = 420, max_spans: int = MAX_SPANS) -> None:
        self.idle_source = empty_source("y", "right", "height")
        self._ranks = CustomJSHover(code=_WORD, args={"words": []})
        super().__init__(dark=dark, height=height, max_spans=max_spans)
        self._idle = self.figure.hbar(
            y="y", left=0, right="right", height="height", source=self.idle_source, line_color=None, level="underlay"
        )
        self._idle_swatch = self._swatch("#888888")
        assert self._legend is not None
        self._legend.items = [
            *(item for item in self._legend.items if item.label.value != "wait"),
            self._legend_item(IDLE),
        ]
        self.figure.add_tools(BoxZoomTool(dimensions="width"), SaveTool(filename="hetplanner-step"))
        self._shown: tuple[Plan, Replay, Rows] | None = None
        self._drawn: tuple[float, float] | None = None
        self.joined = False
        self._recolour()
        self.show(None, None)

    @property
    def _formatters(self) -> dict[str, CustomJSHover]:
        roles = CustomJSHover(code=_WORD, args={"words": list(ROLES)})
        numbers = CustomJSHover(code='return value < 0 ? "–" : value')
        return {"@rank": self._ranks, "@peer": self._ranks, "@role": roles, "@micro_batch": numbers}

    def _tooltips(self, kind: str) -> list[tuple[str, str]]:
        texts = [(name, text.replace(", step @step", "")) for name, text in super()._tooltips(kind)]
        return [(name, re.sub("@(rank|peer|role|micro_batch)", r"@\1{custom}", text)) for name, text in texts]

    def _legend_item(self, label: str):  # type: ignore[no-untyped-def]
        from bokeh.models import LegendItem

        return LegendItem(label=label, renderers=[self._idle_swatch])

    def _recolour(self) -> None:
        super()._recolour()
        if hasattr(self, "_idle"):
            for bars in (self._idle, self._idle_swatch):
                bars.glyph.update(fill_color=self.look.grid)

    def show(self, plan: Plan | None, replay: Replay | None, pipeline: int | None = None) -> None:
        """Shows a whole step, of all ranks or of one pipeline; None empties the figure."""
        if plan is None or replay is None:
            self._shown = None
            self.joined = False
            for source in self.sources.values():
                put(source, {name: [] for name in (*NUMBERS, *WORDS)})
            put(self.idle_source, {"y": [], "right": [], "height": []})
            self._label_ranks(())
            self._say("no plan yet: press Search, or upload a plan on the Export page")
            return
        rows = rows_of(plan, pipeline)
        self._ranks.args = {"words": rank_labels(plan)}
        self._shown = plan, replay, rows
        put(self.idle_source, _idle_columns(rows, replay.step_s))
        self._label_rows(rows)
        self._say("")
        self._draw(None)
        set_range(self.figure.x_range, 0.0, (replay.step_s or 1.0) * ROOM)

    def follow_zoom(self) -> bool:
        """Draws the part in view in more detail, if what is drawn was joined; returns whether anything changed."""
        if self._shown is None:
            return False
        whole_s = self._shown[1].step_s
        start, end = float(self.figure.x_range.start), float(self.figure.x_range.end)
        if end - start >= 0.8 * whole_s:
            if self._drawn is None:
                return False
            self._draw(None)
            return True
        first, last = self._drawn or (0.0, whole_s)
        covered = first <= max(start, 0.0) and min(end, whole_s) <= last
        if covered and (not self.joined or end - start > 0.35 * (last - first)):
            return False
        margin = WIDER * (end - start)
        self._draw((start - margin, end + margin))
        return True

    def _draw(self, window_s: tuple[float, float] | None) -> None:
        assert self._shown is not None
        plan, replay, rows = self._shown
        columns, self.joined = gantt_columns(replay, plan, rows, window_s, self.max_spans)
        self._drawn = window_s
        for kind in KINDS:
            if kind in columns:
                put(self.sources[kind], columns[kind])

    def _label_rows(self, rows: Rows) -> None:
        room = max((self.figure.height - 90) // LABEL_PX, 1)
        every = -(-len(rows.labels) // room) or 1
        places = [float(-i) for i in range(0, len(rows.labels), every)]
        self._label_axis(self.figure.yaxis[0], places, [shortened(label, 20) for label in rows.labels[::every]])
        set_range(self.figure.y_range, 0.5 - max(len(rows.labels), 1), 0.5)


def _idle_columns(rows: Rows, step_s: float) -> dict[str, list[float]]:
    """A bar behind the rows of each rank: the lanes of a group are one block."""
    columns: dict[str, list[float]] = {"y": [], "right": [], "height": []}
    first = 0
    for count in rows.lanes.values():
        columns["y"].append(-(first + (count - 1) / 2))
        columns["right"].append(step_s)
        columns["height"].append(count - 0.14)
        first += count
    return columns
