"""Starting runs: the bar with the rehearsal, and the dialog that shows what will run before anything does."""

import html
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.ui.plan.models.elastic import peer_lines
from hetplanner.ui.run.models.launch import Proposal
from hetplanner.ui.run.models.launch_form import REHEARSAL, TRAINING, LaunchForm
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import counted, plan_name, seconds_text
from hetplanner.ui.shell.views.unlock import Unlock
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import (
    CODE_STYLE,
    FONT,
    ErrorWords,
    Words,
    frame,
    html_pane,
    set_html,
    show_if,
    toolbar,
)
from hetplanner.ui.widgets.form import SettingsPanel

_IN_A_ROW = [".grid{grid-template-columns:112px 92px 62px 68px;margin:2px 4px}"]
_IN_DIALOG = [
    ".grid{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}.grid .wide{grid-column:span 2}"
    ".field.flag{grid-column:1/-1;display:grid;grid-template-columns:16px 1fr;gap:0 8px}"
    ".field.flag .words{grid-column:2;grid-row:1}.field.flag input{grid-column:1;grid-row:1;margin-top:1px}"
    ".field.flag .label{font-size:13px;color:inherit}.grid .field.flag .hint{display:block;font-size:12px}"
]
SHOWN_HOSTS = 1
"""Commands of so many hosts are shown; those of the others differ by their numbers alone."""
NOTE = (
    "A rehearsal re-plans the same sites and links with few stages × replicas and a tiny model, and trains it for real"
    " on this machine; every transfer is delayed as its link would."
)


class LaunchBar:
    """What to rehearse, the two buttons that propose a run, and the launch token."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.launch, self.session = app, app.run.launch, app.session
        form = LaunchForm(self.launch, REHEARSAL)
        size: dict[str, Any] = {"sizing_mode": "fixed", "width": 371, "height": 58}
        self.fields = SettingsPanel(form, app.rehearse, stylesheets=_IN_A_ROW, margin=(4, 4), **size)
        self.rehearse = Button(label="Rehearse here", icon="science", variant="contained", margin=(12, 4))
        self.propose = Button(label="Launch the plan…", variant="outlined", margin=(12, 4))
        on_click(self.rehearse, lambda _: app.rehearse())
        on_click(self.propose, lambda _: self._propose())
        self.unlock = Unlock(self.session)
        bar = toolbar(
            pn.FlexBox(
                self.fields,
                pn.Row(self.rehearse, self.propose, margin=0),
                flex_wrap="wrap",
                align_items="center",
                sizing_mode=None,
                styles={"min-width": "0", "max-width": "100%"},
            ),
            self.unlock.view,
        )
        self.note = Words(NOTE, margin=(0, 14, 8, 14), size=12)
        self.view = frame(bar, self.note.view)
        self.session.param.watch(self.show, ["plan", "elastic"])
        self.launch.param.watch(self.show, ["preparing", "launching"])
        app.run.param.watch(self.show, "runs")
        self.show()

    def _propose(self) -> None:
        with self.session.reporting():
            if self.session.in_hand is not None:
                self.launch.propose(self.session.in_hand)

    def show(self, *_: Any) -> None:
        """Which buttons can be pressed."""
        busy = self.launch.preparing or self.launch.launching
        self.rehearse.disabled = busy
        self.rehearse.label = "Re-planning…" if self.launch.preparing else "Rehearse here"
        self.propose.disabled = busy or self.session.plan is None
        self.propose.label = "Launch the plan…" if self.session.elastic is None else "Launch the swarm…"
        show_if(self.note.view, not self.app.run.runs)  # a user who has rehearsed once knows it


class ConfirmDialog:
    """Shows what will run, where, on what, and with which command; its settings can still be changed."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.launch = app, app.run.launch
        self.text, self.command = html_pane(), html_pane()
        self.form = LaunchForm(self.launch, TRAINING, offers=True)
        self.fields = SettingsPanel(self.form, self._confirm, stylesheets=_IN_DIALOG)
        self.token = pmui.PasswordInput(
            label="Launch token (printed in the server's terminal)", sizing_mode="stretch_width"
        )
        self.confirm = Button(label="Launch", icon="rocket_launch", variant="contained")
        self.cancel = Button(label="Cancel", variant="text")
        buttons = pn.Row(pn.HSpacer(), self.cancel, self.confirm, sizing_mode="stretch_width")
        self.refusal = ErrorWords()
        parts = (self.text, self.fields, self.command, self.token, self.refusal.view, buttons)
        self.view = pmui.Dialog(*parts, title="Launch?", open=False, show_close_button=True, width_option="md")
        on_click(self.confirm, lambda _: self._confirm())
        self.token.param.watch(lambda _: self._confirm(), "enter_pressed")
        on_click(self.cancel, lambda _: self.launch.dismiss())
        self.view.param.watch(lambda e: None if e.new else self.launch.dismiss(), "open")
        self.launch.param.watch(self.show, "proposal")
        self.launch.param.watch(self._show_buttons, ["launching", "error"])
        self.form.param.watch(self._show_buttons, "errors")
        app.session.param.watch(self._show_lock, "unlocked")
        app.session.param.watch(self._show_refusal, "notice", onlychanged=False)
        self.show()

    def set_dark(self, dark: bool) -> None:
        """A dialog's parts stand outside of the page's own tree: they have to be told."""
        for part in (self.view, self.token):
            part.dark_theme = dark

    def _confirm(self) -> None:
        session = self.app.session
        self.refusal.set("")
        text, self.token.value = self.token.value_input or self.token.value or "", ""
        if self.form.refusal():
            session.notify("error", self.form.refusal())
        elif session.unlocked or (text and session.unlock(text)):
            self.launch.confirm()
        elif not text:
            session.notify("error", "launch: type the launch token first; it is printed in the server's terminal")

    def _show_buttons(self, *_: Any) -> None:
        launching, proposal = self.launch.launching, self.launch.proposal
        self.confirm.disabled = launching or bool(self.launch.error)
        asks = launching and proposal is not None and not proposal.place.is_local
        self.confirm.label = "Asking the hosts…" if asks else "Launch"

    def _show_refusal(self, *_: Any) -> None:
        """An error while the dialog is open is said in it: the page's own notices are dimmed behind it."""
        kind, text = self.app.session.notice
        if kind == "error" and self.launch.proposal is not None:
            self.refusal.set(text)

    def _show_lock(self, *_: Any) -> None:
        show_if(self.token, not self.app.session.unlocked)

    def show(self, *_: Any) -> None:
        """Opens with the proposal, closes without one."""
        proposal = self.launch.proposal
        self.refusal.set("")
        if proposal is not None:
            set_html(self.text, proposal_words(proposal))
            set_html(self.command, command_words(proposal))
            what = "swarm" if isinstance(proposal.plan, ElasticPlan) else "plan"
            title = f"Launch the {'rehearsal' if proposal.is_rehearsal else what}?"
            self.view.title = "Go on from the checkpoint?" if proposal.choice.resume else title
            self._show_lock()
            self._show_buttons()
        if self.view.open != (proposal is not None):
            self.view.open = proposal is not None


def _block(text: str) -> str:
    return f'<div style="{FONT}font-size:14px;color:var(--panel-on-surface-color)">{text}</div>'


def proposal_words(proposal: Proposal) -> str:
    """HTML: what will run, of what precision, and where its links are emulated."""
    plan, problem = proposal.plan, proposal.plan.problem
    if isinstance(plan, ElasticPlan):
        devices, who = plan.peers, "peers"
    else:
        devices, who = plan.ranks, "ranks"
    sites = ", ".join(dict.fromkeys(problem.cluster.site_of(d).name for d in devices))
    facts = [("Plan", f"{plan_name(plan)}, in {problem.workload.dtype}, {len(devices)} {who}")]
    if proposal.place.is_local:
        facts.append(("Links emulated between", sites))
    else:
        facts += _facts_of_hosts(proposal)
    if isinstance(plan, ElasticPlan):
        facts.append(("A swarm", "training continues while peers leave and join; see the Swarm section of this page"))
        facts += peer_lines(plan)
    if problem.rehearsal_of:
        facts.insert(0, ("A rehearsal of", f"{problem.rehearsal_of}: the same sites and links, a tiny model"))
    if proposal.choice.resume:
        left = proposal.config.steps - proposal.done
        facts.insert(
            0, ("Goes on from", f"{proposal.choice.resume}, step {proposal.done}: {left} steps are left to do")
        )
    if plan.estimate is not None:
        facts.append(("Estimated", f"{seconds_text(plan.estimate.step_s)} a step; {plan.estimate.bottleneck.text}"))
    facts.append(("Disk" if proposal.place.is_local else "Disk here", f"{proposal.disk}; {proposal.free}"))
    if proposal.tight:
        facts.append(("Warning", proposal.tight))
    rows = (f'<p style="margin:6px 0"><b>{html.escape(n)}</b> {html.escape(t)}</p>' for n, t in facts)
    return _block("".join(rows))


def _facts_of_hosts(proposal: Proposal) -> list[tuple[str, str]]:
    """Which hosts run it, and what happens when one is lost."""
    names = [command.host for command in proposal.request.commands]
    listed = f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
    facts = [("Runs on", f"{counted(len(names), 'host')} of {proposal.place.label}: {listed}")]
    if isinstance(proposal.plan, ElasticPlan):
        facts.append(("Coordinator and trainers", f"on {names[0]}"))
    if proposal.config.replan and proposal.hosts is not None:
        facts.append(("A lost host", f"the run waits {proposal.hosts.return_s} s for it, then continues without it"))
    return facts


def command_words(proposal: Proposal) -> str:
    """HTML: which hosts run which command."""
    parts = [f'<p style="margin:6px 0"><b>Warning</b> {html.escape(text)}</p>' for text in proposal.request.warnings]
    if proposal.request.file:
        parts.append('<p style="margin:6px 0">Slurm is given this batch file:</p>')
        parts.append(_code(proposal.request.file))
        return _block("".join(parts))
    where = ", on the loopback interface only" if proposal.place.is_local else ""
    for command in proposal.request.commands[:SHOWN_HOSTS]:
        host = html.escape(command.host)
        processes = "one process" if command.num_ranks == 1 else f"{command.num_ranks} processes"
        parts.append(f'<p style="margin:6px 0"><b>Host {host}</b> runs {processes}{where}:</p>')
        parts.append(_code(command.script()))
    others = len(proposal.request.commands) - SHOWN_HOSTS
    if others > 0:
        parts.append(f'<p style="margin:6px 0">The same on {counted(others, "other host")}.</p>')
    return _block("".join(parts))


def _code(text: str) -> str:
    return f'<pre tabindex="0" style="{CODE_STYLE};max-height:170px;overflow:auto">{html.escape(text)}</pre>'
