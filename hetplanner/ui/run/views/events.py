"""What happened to a run and when, and the logs of its ranks, followed or searched."""

import re
import time
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import Lifelines
from hetplanner.runs.reading.events import RunEvent
from hetplanner.ui.run.models.logs import LAUNCHER_LOG, STEPS_LOG
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.tables import note
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.binding import bind
from hetplanner.ui.widgets.cards import (
    BORDER,
    COLOURS,
    FONT,
    card,
    chart,
    full_width,
    html_pane,
    page,
    set_html,
    side_by_side,
)

LOG_HEIGHT = 380
SHOWN_EVENTS = 80
_LOG_STYLE = (
    f"height:{LOG_HEIGHT}px;overflow:auto;display:flex;flex-direction:column-reverse;background:#14181d;color:#d7dde4;"
    "font:12px/1.45 'Roboto Mono',Menlo,Consolas,monospace;padding:8px 10px;border-radius:4px;white-space:pre-wrap;"
    "overflow-wrap:anywhere"
)
_NOTHING = {STEPS_LOG: "the first step is still to come", LAUNCHER_LOG: "the launcher has printed nothing"}
_MARK = "background:#CCBB44;color:#14181d;border-radius:2px"


class Events(Section):
    """Lifelines, the same as a list, and logs."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        log = model.log
        self.life = Lifelines(height=270, dark=dark)
        self.figures = [self.life]
        self.list = html_pane(margin=(4, 14, 12, 14))
        small: dict[str, Any] = {"size": "small", "margin": (6, 6)}
        self.rank = pmui.Select(label="Log", options=_log_names(log.choices), width=130, **small)
        self.words = pmui.TextInput(label="Search the logs", placeholder="error", width=170, **small)
        self.everywhere = pmui.Checkbox(label="in all ranks", margin=(14, 6))
        self.text = html_pane(margin=(4, 12, 12, 12))
        log.param.watch(
            self._show_choices, ["rank", "changed"]
        )  # another run's ranks are offered before one of them is chosen
        bind(self.rank, log, "rank", session)
        self.words.param.watch(self._search, ["value", "enter_pressed"])
        bind(self.everywhere, log, "everywhere", session)
        tools = pn.Row(self.rank, self.words, self.everywhere, margin=(0, 6))
        self.view = page(
            full_width(card("What happened", chart(self.life))),
            side_by_side(card("In order", self.list), card("Logs", tools, self.text), least=420),
        )
        log.param.watch(self._show_log, "changed")
        model.param.watch(self._show_choices, ["status"])
        self._show_choices()

    def _search(self, *_: Any) -> None:
        with pn.io.hold():
            self.model.log.words = (self.words.value or "")[:200]

    def _show_choices(self, *_: Any) -> None:
        log = self.model.log
        options = _log_names(log.choices)
        if self.rank.options != options:
            self.rank.param.update(options=options, value=log.rank)

    def _show_log(self, *_: Any) -> None:
        if self.model.section != "events":
            return
        log = self.model.log
        if log.words.strip():
            many = f"{len(log.hits)} lines hold “{escape(log.words.strip())}”\n\n"
            lines = [_hit(hit.source, hit.number, hit.line, log.words.strip()) for hit in log.hits]
            text = (many + "\n".join(lines)) if lines else many
        else:
            text = escape("\n".join(log.lines)) or _NOTHING.get(
                log.rank, "this rank has printed nothing; see “steps” for its work"
            )
        set_html(self.text, f'<div style="{_LOG_STYLE}" data-log><div>{text}</div></div>')

    def show(self) -> None:
        """Everything."""
        self._show_log()
        detail, reader, status = self.model.detail, self.model.reader, self.model.status
        if detail is None or reader is None or status is None:
            self.life.update([], [], (), 0.0)
            set_html(self.list, note("nothing has happened yet"))
            return
        self.life.update(detail.life, detail.events, reader.labels, status.created_unix_s)
        set_html(self.list, event_list(detail.events[-SHOWN_EVENTS:], self.model.closed_s))


def _log_names(choices: list[str]) -> dict[str, str]:
    """A rank's log is called so."""
    return {name if name in _NOTHING else f"rank {name}": name for name in choices}


def event_list(events: Any, closed_s: float | None) -> str:
    """HTML: the newest first; what happened while the page was closed stands out."""
    lines = [_event(event, closed_s is not None and event.time_s > closed_s) for event in reversed(events)]
    style = f"{FONT}font-size:13px;max-height:{LOG_HEIGHT + 60}px;overflow:auto;color:var(--panel-on-surface-color)"
    return f'<div style="{style}">{"".join(lines)}</div>'


def _event(event: RunEvent, is_new: bool) -> str:
    look = f"color:{COLOURS['bad']};font-weight:600" if event.kind in ("error", "degraded", "notice") else ""
    if event.kind == "end":
        look = "font-weight:600"
    who = "" if event.rank is None else f"rank {event.rank}: "
    new = f' <span style="color:{COLOURS["warn"]};font-size:11px">while the page was closed</span>' if is_new else ""
    clock = time.strftime("%H:%M:%S", time.localtime(event.time_s))
    return (
        f'<div style="display:flex;gap:12px;padding:3px 0;border-bottom:{BORDER}">'
        f'<span style="opacity:.7">{clock}</span>'
        f'<span style="{look};overflow-wrap:anywhere">{escape(who + event.text)}{new}</span></div>'
    )


def _hit(source: str, number: int | None, line: str, words: str) -> str:
    """A found line, its words marked."""
    parts = re.split(f"({re.escape(words)})", line, flags=re.IGNORECASE)
    marked = "".join(
        f'<mark style="{_MARK}">{escape(part)}</mark>' if i % 2 else escape(part) for i, part in enumerate(parts)
    )
    place = f"{source}:{number}" if number is not None else source
    return f'<span style="color:#77AADD">[{escape(place)}]</span> {marked}'
