"""The Export page: the plan file, and the lines that run it elsewhere."""

import io
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.export import cli_lines, notebook_snippet, plan_text, shown_text, torchrun_line
from hetplanner.ui.views.cards import CODE_STYLE, Words, card, html_pane, page, set_html, side_by_side

_EMPTY = "No plan yet: press Search, or launch a rehearsal; its plan appears here."


class ExportView:
    """Plan JSON as a tree, its download, and snippets; follows `session.plan`."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self.text = html_pane(margin=(4, 14, 14, 14))
        self.hint = Words(_EMPTY)
        self.snippets = [html_pane(margin=(0, 14, 6, 14)) for _ in range(3)]
        self.download = pmui.FileDownload(
            callback=self._file,
            filename="plan.json",
            label="Download plan.json",
            icon="download",
            variant="contained",
            margin=(8, 12),
        )
        lines = pn.Column(
            card("Command line", self.snippets[0]),
            card("torchrun", self.snippets[1], margin=(12, 0, 0, 0)),
            card("Notebook", self.snippets[2], margin=(12, 0, 0, 0)),
            sizing_mode="stretch_width",
            margin=0,
        )
        self.view = page(side_by_side(card("plan.json", self.hint.view, self.download, self.text), lines))
        app.session.param.watch(self.show, "plan")
        self.show()

    def _file(self) -> io.StringIO:
        plan = self.app.session.plan
        return io.StringIO(plan_text(plan) if plan is not None else "")

    def show(self, *_: Any) -> None:
        """The plan in hand."""
        plan = self.app.session.plan
        self.download.disabled = plan is None
        self.hint.view.visible = plan is None
        self.text.visible = plan is not None
        if plan is not None:
            set_html(
                self.text, f'<pre style="{CODE_STYLE};height:600px;overflow:auto">{escape(shown_text(plan))}</pre>'
            )
        lines = (cli_lines(plan), torchrun_line(plan), notebook_snippet(plan))
        for pane, text in zip(self.snippets, lines, strict=True):
            set_html(pane, f'<pre style="{CODE_STYLE}">{escape(text)}</pre>')
