"""The measured profile on the Cluster page: import, download, sources of seconds, measured layers and collectives."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import CollectiveCurves
from hetplanner.profiles.imports.interface import MAX_FILES
from hetplanner.profiles.layer_table import NUMBERS
from hetplanner.ui.run.views.tables import html_table, note
from hetplanner.ui.settings.models.problem import PROBLEM_SETTINGS
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.binding import bind, on_click, upload_button
from hetplanner.ui.widgets.buttons import Button, FileDownload
from hetplanner.ui.widgets.cards import (
    ErrorWords,
    Words,
    caption,
    card,
    chart,
    html_pane,
    set_html,
    show_if,
    side_by_side,
)
from hetplanner.ui.widgets.deferred import Deferred

TABLE_HEIGHT = 320
FIGURE_HEIGHT = 330
LEAST_PX = 520
"""Table and figure stand side by side where each has so much room."""


class ProfilePart:
    """`view` is the card; `collectives` its figure, made with the first profile that has some."""

    def __init__(self, app: PlannerApp) -> None:
        self.model = model = app.profile
        upload = upload_button(
            "Import profile",
            model.take_files,
            model.refuse_files,
            multiple=True,
            most=MAX_FILES,
            larger="plan with larger ones on the command line, hetplanner plan --profile",
        )
        kind = pmui.TextInput(
            label="Kind of device",
            placeholder="where files do not say it",
            max_length=120,
            size="small",
            width=230,
            margin=(8, 10),
        )
        self.download = FileDownload(
            callback=model.download, filename="profile.json", label="Download profile", margin=(5, 10)
        )
        self.remove = Button(label="Remove", icon="delete", variant="text", margin=(5, 10))
        on_click(self.remove, lambda _: model.remove())
        bar = pn.FlexBox(
            upload,
            bind(kind, model, "kind", app.session),
            self.download,
            self.remove,
            align_items="center",
            sizing_mode="stretch_width",
            margin=(2, 4),
        )
        self.error, self.misfit = ErrorWords(), ErrorWords(colour="warn")
        self.text, self.sources = Words(), Words()
        self.table = html_pane(margin=(0, 14, 10, 14))
        self.collectives: CollectiveCurves | None = None
        self.use = Words(margin=(6, 14, 4, 14))
        self.curves = pn.Column(sizing_mode="stretch_width", margin=(0, 0, 8, 0))
        self._is_dark = False
        measured = side_by_side(self.table, self.curves, least=LEAST_PX)
        measured.margin = 0
        words = (self.error.view, self.text.view, self.misfit.view, self.sources.view)
        self.view = card("Measured profile", bar, *words, measured)
        model.param.watch(lambda _: self.error.set(model.error), "error")
        app.plan.param.watch(Deferred()(self._show), [*PROBLEM_SETTINGS, "settled"])
        self._show()

    def _show(self, *_: Any) -> None:
        model = self.model
        head, rows, more = model.table()
        for part in (self.download, self.remove, self.table):
            show_if(part, bool(rows))
        self.text.set(model.text, bold=model.lead)
        self.misfit.set(model.misfit)
        self.sources.set(model.sources, bold="Compute seconds from" if model.sources else "")
        numbers = sum(name in NUMBERS for name in head)
        shown = html_table(head, rows, numbers=numbers, height=TABLE_HEIGHT) + (note(more) if more else "")
        set_html(self.table, shown if rows else "")
        self._show_collectives()

    def _show_collectives(self) -> None:
        profile = self.model.settings.profile
        has_some = profile is not None and bool(profile.collectives)
        show_if(self.curves, has_some)
        if has_some and self.collectives is None:
            self.collectives = CollectiveCurves(dark=self._is_dark, height=FIGURE_HEIGHT)
            self.curves[:] = [caption("Measured collectives"), chart(self.collectives), self.use.view]
        if self.collectives is not None:
            self.collectives.update(profile)
        self.use.set(self.model.collectives_use)

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        self._is_dark = dark
        if self.collectives is not None:
            self.collectives.set_dark(dark)
