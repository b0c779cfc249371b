"""The Export page: the plan file, and the lines that run it elsewhere."""

import io
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.errors import HetplannerError
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.ui.export.host_files import FILES, host_file
from hetplanner.ui.export.model import (
    MAX_SHOWN_FILE,
    cli_lines,
    cut_text,
    notebook_snippet,
    plan_text,
    shown_text,
    summary_text,
    torchrun_lines,
)
from hetplanner.ui.jobs.compute import process_compute
from hetplanner.ui.plan.models.elastic import peer_lines
from hetplanner.ui.plan.models.report import PlanReportModel
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.widgets.binding import bind, upload_button
from hetplanner.ui.widgets.buttons import FileDownload
from hetplanner.ui.widgets.cards import CODE_STYLE, COLOURS, FONT, Words, card, html_pane, page, set_html, side_by_side
from hetplanner.ui.widgets.choice import Choice
from hetplanner.ui.widgets.island import Island
from hetplanner.ui.widgets.json_tree import tree_html

_EMPTY = "No plan yet: press Search, upload a plan file, or launch a rehearsal; the plan appears here."
SHOWN_PEERS = 64
"""Peers of larger swarms are listed once the user asks."""
_LAUNCHERS = {"torchrun": "torchrun", "ssh": "ssh", "slurm": "Slurm", "kubernetes": "Kubernetes"}
_HEIGHT = "height:640px;overflow:auto"


class ExportView(PageView):
    """Plan JSON as a tree or as text, its download and upload, and snippets; follows `session.in_hand`."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.export
        self.made = PlanReportModel(app.session, app.plan, lambda: process_compute("long"))
        self.text = html_pane(margin=(4, 14, 14, 14))
        self.hint = Words(_EMPTY)
        self.peers = html_pane(margin=(0, 14, 2, 14))
        self.error = html_pane(margin=(0, 14, 6, 14))
        self.snippets = [html_pane(margin=(0, 14, 6, 14)) for _ in range(4)]
        self.download = FileDownload(
            callback=self._file, filename="plan.json", label="Download plan.json", variant="contained", margin=(8, 6)
        )
        self.report = FileDownload(
            callback=self._report, filename="plan-report.html", label="Download report", margin=(8, 6)
        )
        self.launchers = Choice(_LAUNCHERS, self._choose_launcher, look="buttons", margin=(8, 14, 4, 14))
        self.hosts_file = FileDownload(
            callback=self._hosts_file, filename=FILES[self.model.launcher], label="Download", margin=(4, 14)
        )
        self.upload = upload_button(
            "Open a plan file", self._take, self.model.refuse, larger="open larger plans in a notebook, hp.load_plan"
        )
        self.form = bind(
            pmui.RadioButtonGroup(options={"Tree": "tree", "Text": "text"}, size="small", margin=(10, 6)),
            self.model, "form", app.session,
        )  # fmt: skip
        self.view = self._layout()
        self._drawn: tuple[Any, ...] = ()
        self.model.param.watch(lambda _: self.show(), ["form", "launcher"])
        self.model.param.watch(self.show_upload, "error")
        self.show()
        self.show_upload()

    def _layout(self) -> Island:
        self.hosts = card("On its hosts", self.launchers, self.hosts_file, self.snippets[3], margin=(12, 0, 0, 0))
        lines = pn.Column(
            card("Command line", self.snippets[0]),
            card("By hand", self.snippets[1], margin=(12, 0, 0, 0)),
            self.hosts,
            card("Notebook", self.snippets[2], margin=(12, 0, 0, 0)),
            sizing_mode="stretch_width",
            margin=0,
        )
        tools = pn.FlexBox(
            self.download,
            self.report,
            self.upload,
            self.form,
            align_items="center",
            sizing_mode="stretch_width",
            margin=(2, 6),
        )
        return page(side_by_side(card("plan.json", tools, self.error, self.hint.view, self.peers, self.text), lines))

    def _take(self, files: dict[str, bytes]) -> bool:
        return self.model.upload(*next(iter(files.items())))

    def _file(self) -> io.StringIO:
        plan = self.app.session.in_hand
        return io.StringIO(plan_text(plan) if plan is not None else "")

    def _choose_launcher(self, name: str) -> None:
        self.model.launcher = self.launchers.value = name

    def _hosts_file(self) -> io.StringIO:
        plan = self.app.session.in_hand
        return io.StringIO(host_file(plan, self.model.launcher) if plan is not None else "")

    async def _report(self) -> io.StringIO:
        try:
            return io.StringIO(await self.made.text())
        except HetplannerError as error:
            self.app.session.notify("error", str(error))
            raise

    def show_upload(self, *_: Any) -> None:
        """What became of the file that was given last, beside its button."""
        style = f"{FONT}font-size:13px;line-height:1.45;color:{COLOURS['bad']};overflow-wrap:anywhere"
        text = self.model.error
        set_html(self.error, f'<div role="alert" style="{style}">{escape(text)}</div>' if text else "")

    def beat(self) -> None:
        """Draws what changed while the page was hidden: the page comes first, its content right after."""
        if self.app.session.page == "export":
            self.show()

    def show(self) -> None:
        """The current plan."""
        plan = self.app.session.in_hand
        if (plan, self.model.form, self.model.launcher) == self._drawn:
            return
        self._drawn = (plan, self.model.form, self.model.launcher)
        self.download.disabled = self.report.disabled = self.form.disabled = plan is None
        self.hint.set(_EMPTY if plan is None else summary_text(plan))
        set_html(self.peers, peers_html(plan) if isinstance(plan, ElasticPlan) else "")
        if plan is None:
            set_html(self.text, "")
        elif self.model.form == "tree":
            set_html(self.text, f'<div style="{CODE_STYLE};{_HEIGHT}">{tree_html(plan_to_data(plan))}</div>')
        else:
            set_html(self.text, f'<pre tabindex="0" style="{CODE_STYLE};{_HEIGHT}">{escape(shown_text(plan))}</pre>')
        files = host_file(plan, self.model.launcher) if plan is not None else ""
        self.hosts.visible = bool(files)
        self.hosts_file.filename = FILES[self.model.launcher]
        self.hosts_file.label = f"Download {FILES[self.model.launcher]}"
        lines = (cli_lines(plan), torchrun_lines(plan), notebook_snippet(plan), cut_text(files, MAX_SHOWN_FILE))
        for pane, text in zip(self.snippets, lines, strict=True):
            set_html(
                pane, f'<pre tabindex="0" style="{CODE_STYLE};max-height:420px;overflow:auto">{escape(text)}</pre>'
            )


def peers_html(plan: ElasticPlan) -> str:
    """HTML: who serves which stage at the start; folded, as a swarm may be large."""
    style = f"{FONT}font-size:13px;line-height:1.5;opacity:.86;overflow-wrap:anywhere"
    rows = "".join(f"<div><b>{escape(stage)}</b> {escape(peers)}</div>" for stage, peers in peer_lines(plan))
    state = " open" if len(plan.peers) <= SHOWN_PEERS else ""
    return f'<details{state} style="{style}"><summary>Peers at the start, by stage</summary>{rows}</details>'
