"""The Run page: rehearse or launch, unlock, and watch a run live."""

import html
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import LossCurve, StepTimes, ThroughputCurve, Timeline
from hetplanner.runs.status import RunStatus
from hetplanner.runs.telemetry import PHASES
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.run import Proposal
from hetplanner.ui.models.texts import change_text, count_text, seconds_text
from hetplanner.ui.views.binding import bind, on_click
from hetplanner.ui.views.cards import (
    CODE_STYLE,
    COLOURS,
    FONT,
    Coloured,
    MetricRow,
    Words,
    card,
    chart,
    frame,
    full_width,
    html_pane,
    page,
    set_html,
    side_by_side,
    toolbar,
)
from hetplanner.units import short_bytes

HEIGHT = 280
LOG_HEIGHT = 270
_STATE_COLOURS = {"running": "good", "finished": "good", "failed": "bad", "stopped": "warn"}
_SMALL: dict[str, Any] = {"size": "small", "margin": (8, 6)}
_RUN_COLUMNS = {"": 40, "run": 360, "state": 110, "kind": 110, "began": 180, "ranks": 80}
_LOG_STYLE = (
    f"height:{LOG_HEIGHT}px;overflow:auto;display:flex;flex-direction:column-reverse;background:#14181d;color:#d7dde4;"
    "font:12px/1.45 monospace;padding:8px 10px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere"
)


class RunView:
    """Widgets and figures of the page."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model, self.session = app, app.run, app.session
        self.loss = LossCurve(height=HEIGHT)
        self.throughput = ThroughputCurve(height=LOG_HEIGHT + 50)
        self.times = StepTimes(height=HEIGHT)
        self.timeline = Timeline(height=HEIGHT)
        self.figures: list[Coloured] = [self.loss, self.throughput, self.times, self.timeline]
        self.metrics = MetricRow("State", "Loss", "Step time, measured", "Throughput", "Late deliveries")
        self.dialog = ConfirmDialog(app)
        self.view = page(
            full_width(self._launch_bar()),
            full_width(self._run_bar()),
            self.metrics.view,
            side_by_side(
                card("Loss", chart(self.loss)),
                card("Step time: measured, predicted from profile, catalog", chart(self.times)),
            ),
            full_width(card("Per-rank timeline, last steps", chart(self.timeline))),
            side_by_side(card("Throughput", chart(self.throughput)), self._log_card()),
            full_width(card("Runs (click one to see it)", self._run_table())),
            self.dialog.view,
        )
        self._wire()

    # -- parts ------------------------------------------------------------------------------------

    def _launch_bar(self) -> Any:
        model, session = self.model, self.session
        kinds = model.param.rehearsal_model.objects
        name = bind(
            pmui.Select(label="Rehearse with", options=kinds, width=130, **_SMALL), model, "rehearsal_model", session
        )
        numbers = [
            bind(pmui.IntInput(label=text, start=low, end=high, width=105, **_SMALL), model, field, session)
            for field, text, low, high in (
                ("rehearsal_stages", "Stages", 1, 16),
                ("rehearsal_replicas", "Replicas", 1, 16),
                ("steps", "Steps", 1, 1_000_000),
            )
        ]
        self.rehearse = pmui.Button(label="Rehearse here", icon="science", variant="contained", margin=(10, 6))
        self.launch = pmui.Button(label="Launch the plan…", icon="rocket_launch", variant="outlined", margin=(10, 6))
        on_click(self.rehearse, lambda _: self.app.rehearse())
        on_click(self.launch, lambda _: self._propose())
        self.token = pmui.PasswordInput(label="Launch token", width=190, **_SMALL)
        self.unlock = pmui.Button(label="Unlock", icon="lock_open", variant="outlined", margin=(10, 6))
        self.lock_words = Words(margin=(14, 12))
        self.lock_words.view.sizing_mode = None
        on_click(self.unlock, lambda _: self._unlock())
        self.token.param.watch(lambda _: self._unlock(), "enter_pressed")
        note = Words(
            "A rehearsal re-plans the same sites and links with few stages × replicas and a tiny model, and trains it"
            " for real on this machine; every transfer is delayed as its link would.",
            margin=(0, 14, 8, 14),
            size=12,
        )
        bar = toolbar(
            pn.Row(name, *numbers, self.rehearse, self.launch, margin=0),
            pn.Row(self.token, self.unlock, self.lock_words.view, margin=0),
        )
        return frame(bar, note.view)

    def _run_bar(self) -> Any:
        self.name = Words(size=15, margin=(10, 14))
        self.stop = pmui.Button(label="Stop run", icon="stop", variant="contained", color="error", margin=(10, 6))
        on_click(self.stop, lambda _: self.model.stop())
        self.phases = html_pane(margin=(8, 8), sizing_mode=None)
        self.message = Words()
        self.name.view.sizing_mode = None
        bar = toolbar(pn.Row(self.name.view, self.phases, margin=0), self.stop)
        return frame(bar, self.message.view)

    def _run_table(self) -> pn.widgets.Tabulator:
        self.table = pn.widgets.Tabulator(
            pd.DataFrame(columns=list(_RUN_COLUMNS)),
            show_index=False,
            disabled=True,
            selectable=False,
            height=220,
            layout="fit_columns",
            widths=_RUN_COLUMNS,
            sizing_mode="stretch_width",
            margin=(4, 12, 12, 12),
        )
        return self.table

    def _log_card(self) -> Any:
        self.log_rank = pmui.Select(label="Log of rank", options=["0"], width=130, **_SMALL)
        self.log = html_pane(margin=(4, 12, 12, 12))
        bind(self.log_rank, self.model, "log_rank", self.session)
        return card("Logs", self.log_rank, self.log)

    def _wire(self) -> None:
        model, session = self.model, self.session
        session.param.watch(self.show_lock, "unlocked")
        session.param.watch(self.show_launch, "plan")
        model.param.watch(self.show_launch, ["preparing", "launching"])
        model.param.watch(self.show_runs, ["runs", "selected"])
        model.param.watch(self.show_status, ["status", "selected", "phase_changed"])
        model.param.watch(self.show_steps, ["steps_changed", "status"])
        model.param.watch(lambda _: self.timeline.update(model.trace), "trace_changed")
        model.param.watch(self.show_log, "log_changed")
        on_click(self.table, lambda event: model.select(model.runs[event.row].run))
        for show in (
            self.show_lock,
            self.show_launch,
            self.show_runs,
            self.show_status,
            self.show_steps,
            self.show_log,
        ):
            show()
        self.timeline.update(model.trace)

    # -- actions ----------------------------------------------------------------------------------

    def _propose(self) -> None:
        with self.session.reporting():
            if self.session.plan is not None:
                self.model.propose(self.session.plan)

    def _unlock(self) -> None:
        text, self.token.value = self.token.value_input or self.token.value or "", ""
        if text:
            self.session.unlock(text)

    # -- redrawing --------------------------------------------------------------------------------

    def show_lock(self, *_: Any) -> None:
        """Token field, or that it is unlocked."""
        unlocked = self.session.unlocked
        self.token.visible = self.unlock.visible = not unlocked
        self.lock_words.set("Launching is unlocked." if unlocked else "")
        self.show_status()

    def show_launch(self, *_: Any) -> None:
        """Which of the two launch buttons can be pressed."""
        busy = self.model.preparing or self.model.launching
        self.rehearse.disabled = busy
        self.rehearse.label = "Re-planning…" if self.model.preparing else "Rehearse here"
        self.launch.disabled = busy or self.session.plan is None

    def show_runs(self, *_: Any) -> None:
        """The list of runs; the one shown bears a mark."""
        rows = [{"": "▶" if r.run == self.model.selected else "", **asdict(r)} for r in self.model.runs]
        self.table.value = pd.DataFrame(rows, columns=list(_RUN_COLUMNS))

    def show_status(self, *_: Any) -> None:
        """State, stages of starting, the message."""
        status = self.model.status
        self.stop.disabled = not self.model.can_stop or not self.session.unlocked
        set_html(self.phases, phase_chips(self.model.reached, status))
        self.name.set(self.model.selected)
        if status is None:
            self.metrics.clear()
            self.message.set("" if self.model.runs else "No run yet: press Rehearse here.")
            return
        self.metrics.set("State", status.state, f"{status.ranks} ranks", _STATE_COLOURS.get(status.state, ""))
        last = [line for line in status.last_lines[-6:] if status.state == "failed" and line not in status.message]
        message = status.message if status.message != status.state else ""
        self.message.set("\n".join(filter(None, (message, *last))))
        self.log_rank.options = self.model.log_choices

    def show_steps(self, *_: Any) -> None:
        """Curves and numbers of the steps so far."""
        reader = self.model.reader
        summaries = reader.steps() if reader is not None else []
        losses = reader.losses() if reader is not None else []
        validation = reader.validation_losses() if reader is not None else []
        self.loss.update([s for s, _ in losses], [v for _, v in losses], validation)
        timed = [(s.step, s.step_s, s.num_tokens / s.step_s) for s in summaries if s.step_s]
        prediction = reader.prediction() if reader is not None else None
        predicted_s, catalog_s = (prediction or {}).get("step_s"), (prediction or {}).get("catalog_step_s")
        steps = [step for step, _, _ in timed]
        self.times.update(steps, [seconds for _, seconds, _ in timed], predicted_s, catalog_s)
        self.throughput.update(steps, [rate for _, _, rate in timed])
        if reader is None or not summaries:
            for name in ("Loss", "Step time, measured", "Throughput", "Late deliveries"):
                self.metrics.set(name, "–")
            return
        total = reader.config.steps
        self.metrics.set("Loss", f"{losses[-1][1]:.4f}" if losses else "–", f"step {summaries[-1].step + 1} of {total}")
        measured_s = reader.measured_step_s()
        note = f"predicted {seconds_text(predicted_s)}" if predicted_s else "not predicted"
        if predicted_s and measured_s:
            note += f", measured {change_text(measured_s, predicted_s)}"
        self.metrics.set("Step time, measured", seconds_text(measured_s), note)
        sent = f"{short_bytes(reader.bytes_boundary)} boundary, {short_bytes(reader.bytes_reduce)} reduction"
        rate = reader.tokens_per_s()
        self.metrics.set("Throughput", f"{count_text(rate)} tokens/s" if rate else "–", sent)
        late, late_s = reader.late
        words = f"{seconds_text(late_s)} in all" if late else "the emulator kept every link's time"
        if not reader.config.emulate_links:
            words = "links are not emulated"
        self.metrics.set("Late deliveries", str(late), words)

    def show_log(self, *_: Any) -> None:
        """The end of the chosen log."""
        text = html.escape("\n".join(self.model.log_lines)) or "nothing written yet"
        set_html(self.log, f'<div style="{_LOG_STYLE}"><div>{text}</div></div>')


class ConfirmDialog:
    """Shows what will run, where and with which command, before anything runs."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.run
        self.text = html_pane()
        self.token = pmui.PasswordInput(
            label="Launch token (printed in the server's terminal)", sizing_mode="stretch_width"
        )
        self.launch = pmui.Button(label="Launch", icon="rocket_launch", variant="contained")
        self.cancel = pmui.Button(label="Cancel", variant="text")
        buttons = pn.Row(pn.HSpacer(), self.cancel, self.launch, sizing_mode="stretch_width")
        self.view = pmui.Dialog(
            self.text, self.token, buttons, title="Launch?", open=False, show_close_button=True, width_option="md"
        )
        on_click(self.launch, lambda _: self._launch())
        self.token.param.watch(lambda _: self._launch(), "enter_pressed")
        on_click(self.cancel, lambda _: self.model.dismiss())
        self.view.param.watch(lambda e: None if e.new else self.model.dismiss(), "open")
        self.model.param.watch(self.show, "proposal")
        self.model.param.watch(self._show_launching, "launching")
        app.session.param.watch(self._show_lock, "unlocked")

    def _launch(self) -> None:
        session = self.app.session
        text, self.token.value = self.token.value_input or self.token.value or "", ""
        if session.unlocked or (text and session.unlock(text)):
            self.model.confirm()
        elif not text:
            session.notify("error", "launch: type the launch token first; it is printed in the server's terminal")

    def _show_launching(self, *_: Any) -> None:
        self.launch.disabled = self.model.launching

    def _show_lock(self, *_: Any) -> None:
        self.token.visible = not self.app.session.unlocked

    def show(self, *_: Any) -> None:
        """Opens with the proposal, closes without one."""
        proposal = self.model.proposal
        if proposal is not None:
            set_html(self.text, proposal_words(proposal))
            self.view.title = "Launch the rehearsal?" if proposal.is_rehearsal else "Launch the plan?"
            self._show_lock()
        self.view.open = proposal is not None


def phase_chips(reached: Mapping[str, int], status: RunStatus | None) -> str:
    """HTML: the stages of a worker's life, how far the ranks are, and whether the run is a rehearsal."""
    ranks = status.ranks if status is not None else 0
    chips = []
    if status is not None and status.rehearsal:
        chips.append(_chip("REHEARSAL", f"background:{COLOURS['warn']};color:#fff;font-weight:700"))
    for name in PHASES:
        count = reached.get(name, 0)
        look = "opacity:.45;border:1px solid currentColor"
        if count:
            look = f"background:{COLOURS['good'] if count >= ranks else '#4477AA'};color:#fff"
        text = f"{name} {count}/{ranks}" if 0 < count < ranks else name
        chips.append(_chip(text, look))
    style = f"{FONT}display:flex;flex-wrap:wrap;gap:5px;color:var(--panel-on-surface-color)"
    return f'<div style="{style}">{"".join(chips)}</div>'


def _chip(text: str, look: str) -> str:
    return f'<span style="font-size:12px;padding:2px 9px;border-radius:11px;{look}">{html.escape(text)}</span>'


def proposal_words(proposal: Proposal) -> str:
    """HTML: what will run, on which hosts, with which command."""
    plan, problem = proposal.plan, proposal.plan.problem
    shape = f"{len(plan.stages)} stages × {max(len(s.replicas) for s in plan.stages)} replicas"
    sites = ", ".join(dict.fromkeys(problem.cluster.site_of(d).name for d in plan.ranks))
    facts = [
        ("Model", f"{problem.workload.name}, {shape}, {len(plan.ranks)} ranks, {proposal.config.steps} steps"),
        ("Links emulated between", sites),
    ]
    if problem.rehearsal_of:
        facts.insert(0, ("A rehearsal of", f"{problem.rehearsal_of}: the same sites and links, a tiny model"))
    if plan.estimate is not None:
        facts.append(("Estimated", f"{seconds_text(plan.estimate.step_s)} a step; {plan.estimate.bottleneck.text}"))
    parts = [f"<p><b>{html.escape(name)}</b> {html.escape(text)}</p>" for name, text in facts]
    for command in proposal.request.commands:
        host = html.escape(command.host)
        parts.append(f"<p><b>Host {host}</b> runs {command.num_ranks} processes, on the loopback interface only:</p>")
        parts.append(f'<pre style="{CODE_STYLE}">{html.escape(command.script())}</pre>')
    return f'<div style="{FONT}font-size:14px;color:var(--panel-on-surface-color)">{"".join(parts)}</div>'
