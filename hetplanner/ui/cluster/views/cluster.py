"""The Cluster page: what to go back to; choose, draw or import, the map, measuring, profile, links, devices."""

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from panel.models.tabulator import CellClickEvent
from panel_material_ui.theme import MaterialDesign

from hetplanner.cluster.model import Cluster
from hetplanner.ui.cluster.views.exchange import ExchangePart
from hetplanner.ui.cluster.views.links import LinksPart
from hetplanner.ui.cluster.views.map import MapView
from hetplanner.ui.cluster.views.probe import ProbePart
from hetplanner.ui.cluster.views.profile import ProfilePart
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.shell.views.recent import recent_card
from hetplanner.ui.widgets.binding import bind
from hetplanner.ui.widgets.cards import Words, card, colour_all, frame, full_width, page
from hetplanner.ui.widgets.deferred import Deferred
from hetplanner.ui.widgets.island import Island

TABLE_HEIGHT = 340
DELETE = "✕"


class ClusterView(PageView):
    """Its parts below each other: what is in sight first, the rest once the browser has drawn that."""

    def __init__(self, app: PlannerApp) -> None:
        self._app, self._dark = app, False
        self.profile: ProfilePart | None = None
        world = MapView(app)
        self._exchange = ExchangePart(app)
        self._rest = Island()
        self.figures = [world.map]
        self.view = page(recent_card(app), full_width(_chooser(app, self._exchange)), world.view, self._rest)

    def set_dark(self, dark: bool) -> None:
        """See PageView."""
        self._dark = dark
        super().set_dark(dark)
        if self.profile is not None:
            self.profile.set_dark(dark)

    def beat(self) -> None:
        """See PageView."""
        self._app.recent.beat(in_sight=self._app.session.page == "cluster")
        if not self._rest.parts:
            links = LinksPart(self._app)
            colour_all(links.figures, self._dark)
            self.figures = [*self.figures, *links.figures]
            table = full_width(_device_table(self._app))
            measuring = full_width(ProbePart(self._app).view)
            self.profile = ProfilePart(self._app)
            self.profile.set_dark(self._dark)
            profile = full_width(self.profile.view)
            self._rest.parts = [page(measuring, profile, *links.rows, full_width(self._exchange.view), table)]


def _device_table(app: PlannerApp) -> pn.Column:
    """All devices; a click on `used` excludes or includes one, a click on the cross deletes it."""
    model = app.cluster
    table = pn.widgets.Tabulator(
        pd.DataFrame(),
        show_index=False,
        disabled=True,
        height=TABLE_HEIGHT,
        layout="fit_data_stretch",
        sizing_mode="stretch_width",
        selectable=False,
        design=MaterialDesign,
        formatters={"used": {"type": "lookup", "true": "✓", "false": "✗"}},
        margin=(4, 12, 12, 12),
    )

    shown: list[Cluster | None] = [None]

    def show(*_: Any) -> None:
        before, now = shown[0], model.cluster
        shown[0] = now
        if before is not None and now is not None and _same_rows(before, now):
            return
        rows = model.device_rows()
        rows.insert(1, DELETE, DELETE)
        if not rows.equals(table.value):  # a new value scrolls the table to its top
            table.value = rows

    def mark(*_: Any) -> None:
        used = model.used
        if "used" in table.value and len(used) == len(table.value):
            changed = [
                (i, now) for i, (was, now) in enumerate(zip(table.value["used"], used, strict=True)) if was != now
            ]
            if changed:
                table.patch({"used": changed})

    def click(event: CellClickEvent) -> None:
        if model.cluster is None or not 0 <= event.row < len(model.cluster.devices):
            return
        device = str(table.value["id"].iloc[event.row])
        with pn.io.hold():
            if event.column == "used":
                app.drawing.toggle([device])
            elif event.column == DELETE:
                app.drawing.delete_devices([device])

    model.param.watch(Deferred()(show), "cluster")
    model.editor.param.watch(mark, "excluded")
    table.on_click(click)
    show()
    hint = Words("Click a tick to exclude a device from plans, a cross to include it again; ✕ deletes it.", size=12)
    return card("Devices", hint.view, table)


def _same_rows(one: Cluster, two: Cluster) -> bool:
    """Whether the tables of two clusters are alike: sites may have moved. Making a large one takes a while."""
    return one.devices == two.devices and one.hosts == two.hosts and one.links == two.links


def _chooser(app: PlannerApp, exchange: ExchangePart) -> Any:
    model = app.cluster
    sample = bind(
        pmui.Select(
            label="Sample cluster", options=model.param.sample.objects, size="small", width=280, margin=(8, 10)
        ),
        model,
        "sample",
        app.session,
    )
    bar = pn.FlexBox(sample, *exchange.bar, align_items="center", sizing_mode="stretch_width")
    return frame(bar, *exchange.bar_words)
