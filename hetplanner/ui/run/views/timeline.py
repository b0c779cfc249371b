"""The per-rank timeline: follows the newest steps, pauses, goes back; and who holds the others up."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import Timeline
from hetplanner.runs.reports.comparison import WORDS
from hetplanner.runs.reports.stragglers import own_work_s
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.tables import html_table, note
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import seconds_text
from hetplanner.ui.widgets.binding import bind, on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import Words, card, chart, full_width, html_pane, page, set_html, toolbar

HEIGHT = 380


class TimelineSection(Section):
    """A Gantt chart with a scroll bar over all steps, and a row for every rank."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        replay = model.replay
        self.timeline = Timeline(height=HEIGHT, dark=dark)
        self.figures = [self.timeline]
        small: dict[str, Any] = {"margin": (6, 4), "variant": "outlined"}
        self.earlier = Button(label="Earlier", icon="chevron_left", **small)
        self.pause = Button(label="Pause", icon="pause", width=120, **small)
        self.later = Button(label="Later", icon="chevron_right", **small)
        self.slider = pmui.IntSlider(label="Latest step shown", start=0, end=1, width=320, margin=(4, 16))
        self.count = bind(
            pmui.IntInput(label="Steps shown", start=1, end=20, width=110, size="small", margin=(6, 6)),
            replay,
            "count",
            session,
        )
        self.slider.param.watch(self._slid, "value_throttled")
        on_click(self.earlier, lambda _: replay.earlier())
        on_click(self.later, lambda _: replay.later())
        on_click(self.pause, lambda _: setattr(replay, "following", not replay.following))
        self.words = Words()
        self.ranks = html_pane(margin=(4, 14, 12, 14))
        buttons = pn.Row(self.earlier, self.pause, self.later, self.slider, self.count, margin=0)
        self.view = page(
            full_width(card("Per-rank timeline", toolbar(buttons), chart(self.timeline), self.words.view)),
            full_width(card("Ranks: seconds a step, predicted → measured", self.ranks)),
        )
        replay.param.watch(self._show_trace, "changed")
        replay.param.watch(self._show_buttons, ["following", "last", "step"])
        self._show_buttons()
        self._show_trace()

    def _slid(self, event: Any) -> None:
        with pn.io.hold():
            self.model.replay.step = min(int(event.new), self.model.replay.last)

    def _show_buttons(self, *_: Any) -> None:
        replay = self.model.replay
        label = "Pause" if replay.following else "Follow"
        if self.pause.label != label:
            self.pause.param.update(label=label, icon="pause" if replay.following else "play_arrow")
        if not replay.following or self.slider.end != replay.last:
            self.slider.param.update(end=max(replay.last, 1), value=replay.step)
        elif self.slider.value != replay.step:
            self.slider.value = replay.step
        self.slider.disabled = replay.last < 2
        self.later.disabled = replay.following
        shown = f"Steps up to {replay.step} of {replay.last}"
        self.words.set("Follows the newest steps." if replay.following else f"{shown}; Follow goes back to the newest.")

    def _show_trace(self, *_: Any) -> None:
        if self.model.section == "timeline":
            self.timeline.update(self.model.replay.trace)

    def show(self) -> None:
        """The trace as it is, and the ranks."""
        self._show_trace()
        detail = self.model.detail
        if detail is None or not any(r.predicted or r.measured for r in detail.comparison.ranks):
            set_html(self.ranks, note("shown from the first complete steps"))
            return
        late = {s.rank for s in detail.stragglers}
        rows, bad = [], []
        for r in detail.comparison.ranks:
            cells = [" → ".join(_seconds(t, name) for t in (r.predicted, r.measured)) for name in WORDS]
            own = own_work_s(r.measured) if r.measured else None
            rows.append([str(r.rank), r.device, *cells, seconds_text(own)])
            bad.append(r.rank in late)
        head = ["rank", "device", *WORDS.values(), "own work"]
        set_html(self.ranks, html_table(head, rows, numbers=len(WORDS) + 1, bad=bad, height=420))


def _seconds(terms: Any, name: str) -> str:
    return seconds_text(getattr(terms, name)) if terms is not None else "–"
