"""The Run page: start a run, say what it is doing, and one of its sections."""

import asyncio
import html
import io
import time
from collections.abc import Mapping
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.runs.reading.telemetry import PHASES
from hetplanner.runs.status import RunStatus
from hetplanner.ui.run.models.run import SECTIONS
from hetplanner.ui.run.views.events import Events
from hetplanner.ui.run.views.hosts import Hosts
from hetplanner.ui.run.views.launch import ConfirmDialog, LaunchBar
from hetplanner.ui.run.views.network import Network
from hetplanner.ui.run.views.progress import Progress
from hetplanner.ui.run.views.run_list import RunList
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.swarm import Swarm
from hetplanner.ui.run.views.text import TextSection
from hetplanner.ui.run.views.timeline import TimelineSection
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import change_text, count_text, seconds_text
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.widgets.binding import at_once, on_click
from hetplanner.ui.widgets.buttons import Button, FileDownload
from hetplanner.ui.widgets.cards import (
    BORDER,
    COLOURS,
    FONT,
    LONG_OPTIONS,
    MetricRow,
    Words,
    colour_all,
    frame,
    full_width,
    html_pane,
    page,
    set_html,
    show_if,
    toolbar,
)
from hetplanner.ui.widgets.choice import Choice
from hetplanner.ui.widgets.deck import Deck
from hetplanner.units import short_bytes

_KINDS: dict[str, type[Section]] = {
    "progress": Progress,
    "timeline": TimelineSection,
    "network": Network,
    "hosts": Hosts,
    "swarm": Swarm,
    "events": Events,
    "text": TextSection,
    "runs": RunList,
}
_TITLES = {
    "progress": "Progress",
    "timeline": "Timeline",
    "network": "Network",
    "hosts": "Hosts",
    "swarm": "Swarm",
    "events": "Events\u00a0&\u00a0logs",
    "text": "Text",
    "runs": "All\u00a0runs",
}
_STATE_COLOURS = {"running": "good", "finished": "good", "failed": "bad", "stopped": "warn", "preempted": "warn"}
_WAYS = ("arrow_forward", "arrow_back")
_STEP_METRICS = ("Loss", "Step time, measured", "Throughput", "Late deliveries")

BEATS_PER_SECTION = 8


class RunView(PageView):
    """Widgets of the page; sections are made when they are first opened."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model, self.session = app, app.run, app.session
        self.dark = False
        self._beats = 0
        self.sections: dict[str, Section] = {}
        self.bar, self.dialog = LaunchBar(app), ConfirmDialog(app)
        self.metrics = MetricRow("State", *_STEP_METRICS, least=165)
        self.alerts = html_pane(margin=(6, 10))
        self.choice = Choice(_TITLES, self._choose_section, look="buttons", margin=(6, 10), sizing_mode="stretch_width")
        self.deck = Deck("section", SECTIONS)
        self.view = page(
            full_width(self.bar.view),
            self._news_bar(),
            full_width(self._run_bar()),
            self.alerts,
            self.metrics.view,
            self.choice,
            self.deck.view,
            self.dialog.view,
        )
        self._wire()

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page, also of sections that are still to be made."""
        self.dark = dark
        self.dialog.set_dark(dark)
        for section in self.sections.values():
            colour_all(section.figures, dark)

    # -- parts ------------------------------------------------------------------------------------

    def _news_bar(self) -> Any:
        self.news = html_pane(margin=(8, 14))
        self.read = Button(label="Dismiss", variant="text", margin=(6, 8))
        on_click(self.read, lambda _: self.model.dismiss_news())
        self.news_bar = pn.Row(self.news, self.read, sizing_mode="stretch_width", margin=(6, 10))
        self.news_bar.styles = {"border": f"1px solid {COLOURS['warn']}", "border-radius": "6px"}
        show_if(self.news_bar, False)
        return self.news_bar

    def _run_bar(self) -> Any:
        self.name = pmui.Select(label="Run", options=[], width=310, size="small", margin=(10, 10), sx=LONG_OPTIONS)
        self.phases = html_pane(margin=(14, 8), sizing_mode=None)
        self.stop = Button(label="Stop run", icon="stop", variant="contained", color="error", margin=(10, 4))
        self.restart = Button(label="Restart from checkpoint", icon="restart_alt", variant="outlined", margin=(10, 4))
        self.report = FileDownload(
            callback=self._report, filename="report.html", label="Report", size="small", margin=(10, 4)
        )
        on_click(self.stop, lambda _: self.model.ask_to_stop())
        on_click(self.restart, lambda _: self.model.restart())
        at_once(self.name).param.watch(self._chosen, "value")
        self.message = Words()
        self.goes_on, self.came_from = (Button(variant="text", icon=icon, margin=(0, 4, 6, 4)) for icon in _WAYS)
        on_click(self.goes_on, lambda _: self.model.select(self.model.goes_on_as))
        on_click(self.came_from, lambda _: self.model.select(self.model.goes_on_from))
        others = pn.FlexBox(self.goes_on, self.came_from, flex_wrap="wrap", margin=0)
        # None of them comes or goes: a click would hit what has moved under it.
        bar = toolbar(pn.Row(self.name, self.phases, margin=0), pn.Row(self.restart, self.stop, self.report, margin=0))
        return frame(bar, self._stop_question(), self.message.view, others)

    def _stop_question(self) -> Any:
        """Below the buttons, where no other button ever stands."""
        words = Words(margin=(8, 14))
        words.set("Stop this run? It ends its step, saves the model and ends.")
        words.view.sizing_mode = None
        yes = Button(label="Yes, stop it", variant="contained", color="error", margin=(4, 6))
        no = Button(label="Keep it running", variant="outlined", margin=(4, 6))
        on_click(yes, lambda _: self.model.stop())
        on_click(no, lambda _: self.model.keep_running())
        self.question = pn.FlexBox(
            words.view, yes, no, flex_wrap="wrap", justify_content="flex-end", align_items="center"
        )
        show_if(self.question, False)
        return self.question

    def _wire(self) -> None:
        model = self.model
        model.param.watch(self.show_runs, ["runs", "selected"])
        model.param.watch(self.show_others, ["runs", "selected", "status"])
        model.param.watch(self.show_news, "news")
        model.param.watch(self.show_status, ["status", "selected", "stop_asked", "phase_changed", "detail_changed"])
        model.param.watch(self.show_steps, ["steps_changed", "status"])
        self.session.param.watch(self.show_status, "unlocked")
        model.param.watch(self._open_section, "section")
        signals = {name for kind in _KINDS.values() for name in kind.signals}
        model.param.watch(self._redraw, sorted(signals), queued=False)
        self.session.param.watch(lambda e: self._open_section() if e.new == "run" else None, "page")
        for show in (
            self.show_runs,
            self.show_others,
            self.show_news,
            self.show_status,
            self.show_steps,
            self._open_section,
        ):
            show()

    # -- actions ----------------------------------------------------------------------------------

    def _chosen(self, event: Any) -> None:
        if event.new and event.new != self.model.selected:
            with pn.io.hold():
                self.model.select(event.new)

    def _choose_section(self, name: str) -> None:
        self.model.section = name

    async def _report(self) -> io.BytesIO:
        self.report.filename = f"{self.model.selected or 'run'}.html"
        content: bytes = await asyncio.wrap_future(self.model.report())
        return io.BytesIO(content)

    # -- sections ---------------------------------------------------------------------------------

    def _open_section(self, *_: Any) -> None:
        name = self.model.section
        self.choice.value = name
        section = self._make(name)
        self.deck.show(name)
        section.show()

    def beat(self) -> None:
        """While the user opens none, the sections of the open page are made one by one: each takes a while."""
        self._beats += 1
        waiting = [name for name in SECTIONS if name not in self.sections]
        if waiting and self.session.page == "run" and self._beats % BEATS_PER_SECTION == 0:
            self._make(waiting[0])

    def _make(self, name: str) -> Section:
        if name not in self.sections:
            self.sections[name] = _KINDS[name](self.model, self.session, self.dark)
            self.deck.put(name, self.sections[name].view)
        return self.sections[name]

    def _redraw(self, *events: Any) -> None:
        section = self.sections.get(self.model.section)
        if section is not None and any(event.name in section.signals for event in events):
            section.show()

    # -- redrawing --------------------------------------------------------------------------------

    def show_runs(self, *_: Any) -> None:
        """The list to choose from; each with its state."""
        model = self.model
        called = [f"{row.name} · {row.run[-4:]}" if row.name else row.run for row in model.runs]
        options = {f"{name} · {row.state}": row.run for name, row in zip(called, model.runs, strict=True)}
        if model.selected and model.selected not in options.values():
            options[model.selected] = model.selected
        value = model.selected or None
        if self.name.options != options or self.name.value != value:
            self.name.param.update(options=options, value=value)

    def show_others(self, *_: Any) -> None:
        """The runs before and after the one that is shown, where it is one of several that go on in turn."""
        model = self.model
        for button, words, run in (
            (self.goes_on, "Goes on as", model.goes_on_as),
            (self.came_from, "Goes on from", model.goes_on_from),
        ):
            label = f"{words} {model.called(run)}" if run else ""
            if button.label != label:
                button.label = label
            show_if(button, bool(run))

    def show_news(self, *_: Any) -> None:
        """What happened while the page was closed."""
        news, closed_s = self.model.news, self.model.closed_s
        show_if(self.news_bar, bool(news))
        if not news or closed_s is None:
            return
        since = time.strftime("%H:%M on %d %B", time.localtime(closed_s))
        lines = "".join(
            f"<div>{time.strftime('%H:%M:%S', time.localtime(r.time_s))} <b>{html.escape(r.run)}</b>"
            f" {html.escape(r.text[:300])}</div>"
            for r in news
        )
        style = f"{FONT}font-size:13px;color:var(--panel-on-background-color);overflow-wrap:anywhere"
        set_html(self.news, f'<div style="{style}"><div>Since this page was closed ({since}):</div>{lines}</div>')

    def show_status(self, *_: Any) -> None:
        """State, stages of starting, the message, the stragglers, and what can be done."""
        model, status = self.model, self.model.status
        unlocked = self.session.unlocked
        self.stop.disabled = not model.can_stop or not unlocked or model.stop_asked
        show_if(self.question, model.stop_asked)
        self.restart.disabled = not model.can_restart
        label = f"Restart from step {model.checkpoint}" if model.checkpoint is not None else "Restart from checkpoint"
        if self.restart.label != label:
            self.restart.label = label
        self.report.disabled = status is None
        set_html(self.phases, phase_chips(model.reached, status))
        self._show_alerts()
        if status is None:
            self.metrics.clear()
            self.message.set("" if model.runs else "No run yet: press Rehearse here.")
            return
        restarts = f", restarted {status.restarts} ×" if status.restarts else ""
        self.metrics.set(
            "State",
            status.word,
            ("a swarm" if model.is_swarm else f"{status.ranks} ranks") + restarts,
            _STATE_COLOURS.get(status.word, ""),
        )
        ended_badly = status.word in ("failed", "preempted")
        last = [line for line in status.last_lines[-6:] if ended_badly and line not in status.message]
        message = "" if status.message in (status.state, "training") else status.message  # state and chips say so
        self.message.set("\n".join(filter(None, (message, *last))))

    def _show_alerts(self) -> None:
        detail, silent_s = self.model.detail, self.model.silent_s()
        lines = []
        if silent_s is not None:
            lines.append(f"No rank has written anything for {silent_s:.0f} s.")
        if self.model.status is not None and self.model.can_stop:
            lines += [text[0].upper() + text[1:] + "." for text in self.model.status.degraded]
        if detail is not None and self.model.can_stop:
            lines += [late.text for late in detail.stragglers[:2]]
        style = (
            f"{FONT}border:1px solid {COLOURS['warn']};border-radius:6px;padding:9px 14px;font-size:14px;"
            "color:var(--panel-on-background-color);overflow-wrap:anywhere"
        )
        shown = "".join(f"<div>⚠ {html.escape(line)}</div>" for line in lines)
        set_html(self.alerts, f'<div style="{style}">{shown}</div>' if lines else "")
        show_if(self.alerts, bool(lines))

    def show_steps(self, *_: Any) -> None:
        """Numbers of the steps so far."""
        reader = self.model.reader
        summaries = reader.steps() if reader is not None else []
        if reader is None or not summaries:
            for name in _STEP_METRICS:
                self.metrics.set(name, "–")
            return
        last = summaries[-1]
        loss = next((s.loss for s in reversed(summaries) if s.loss is not None), None)
        words = f"step {last.step + 1} of {reader.config.steps}"
        self.metrics.set("Loss", f"{loss:.4f}" if loss is not None else "–", words)
        measured_s, predicted_s = reader.measured_step_s(), reader.predicted_step_s()
        note = f"predicted {seconds_text(predicted_s)}" if predicted_s else "not predicted"
        if predicted_s and measured_s:
            note += f" ({change_text(measured_s, predicted_s)})"
        self.metrics.set("Step time, measured", seconds_text(measured_s), note)
        sent = f"{short_bytes(reader.bytes_boundary)} boundary, {short_bytes(reader.bytes_reduce)} reduction"
        rate = reader.tokens_per_s()
        self.metrics.set(
            "Throughput", f"{count_text(rate)} {reader.any_plan.problem.workload.token_word}/s" if rate else "–", sent
        )
        late, late_s = reader.late
        words = f"{seconds_text(late_s)} in all" if late else "the emulator kept every link's time"
        if not reader.config.emulate_links:
            words = "links are not emulated"
        self.metrics.set("Late deliveries", str(late), words)


def phase_chips(reached: Mapping[str, int], status: RunStatus | None) -> str:
    """HTML: whether the run is a rehearsal; while it starts, the stages of a worker's life and how far the ranks are;
    while it runs only the last one; afterwards none, since ranks that saved are "done" however the run ended.
    """
    ranks = status.ranks if status is not None else 0
    chips = []
    if status is not None and status.rehearsal:
        chips.append(_chip("REHEARSAL", f"background:{COLOURS['warn']};color:#fff;font-weight:700"))
    is_starting = status is not None and status.state in ("queued", "starting")
    known = [name for name in PHASES if reached.get(name)]
    is_over = status is not None and status.is_over
    for name in PHASES if is_starting else () if is_over else known[-1:]:
        count = reached.get(name, 0)
        look = f"opacity:.45;border:{BORDER}"
        if count:
            look = f"background:{COLOURS['good'] if count >= ranks else '#4477AA'};color:#fff"
        text = f"{name} {count}/{ranks}" if 0 < count < ranks else name
        chips.append(_chip(text, look))
    style = f"{FONT}display:flex;flex-wrap:wrap;gap:5px;color:var(--panel-on-surface-color)"
    return f'<div style="{style}">{"".join(chips)}</div>'


def _chip(text: str, look: str) -> str:
    return f'<span style="font-size:12px;padding:2px 9px;border-radius:11px;{look}">{html.escape(text)}</span>'
