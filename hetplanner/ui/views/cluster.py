"""The Cluster page: choose or import, the map, the links, the devices."""

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import DeviceMap
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.views.binding import bind, upload_button
from hetplanner.ui.views.cards import Coloured, Words, card, chart, frame, full_width, page
from hetplanner.ui.views.links import LinksPart

MAP_HEIGHT = 400


def cluster_view(app: PlannerApp) -> tuple[pn.Column, list[Coloured]]:
    """The page, and its figures for the theme switch."""
    model = app.cluster
    world = DeviceMap(height=MAP_HEIGHT)
    links = LinksPart(app)
    about = Words()
    table = pn.widgets.Tabulator(
        pd.DataFrame(),
        show_index=False,
        disabled=True,
        height=320,
        layout="fit_data_stretch",
        sizing_mode="stretch_width",
        selectable=False,
        margin=(4, 12, 12, 12),
    )

    def show(*_: Any) -> None:
        cluster = model.cluster
        if cluster is None:
            return
        world.update(cluster)
        about.set(model.summary)
        table.value = pd.DataFrame(model.device_rows())

    model.param.watch(show, "cluster")
    show()
    view = page(
        full_width(_chooser(app)),
        full_width(card("Sites and devices", about.view, chart(world))),
        *links.rows,
        full_width(card("Devices", table)),
    )
    return view, [world, *links.figures]


def _chooser(app: PlannerApp) -> Any:
    model = app.cluster
    sample = bind(
        pmui.Select(
            label="Sample cluster", options=model.param.sample.objects, size="small", width=280, margin=(8, 10)
        ),
        model,
        "sample",
        app.session,
    )
    upload = upload_button("Import JSON, CSV or NPY", ".json,.csv,.npy", app.session, model.import_files, multiple=True)
    download = pmui.FileDownload(
        callback=model.download,
        filename="cluster.json",
        label="Download",
        icon="download",
        variant="outlined",
        size="small",
        button_style="outlined",
        margin=(5, 10),
    )
    halve = bind(
        pmui.Checkbox(label="Imported latencies are round trips", size="small", margin=(8, 10)),
        model,
        "round_trip",
        app.session,
    )
    hint = Words(
        "Import one JSON file, or tables (CSV, NPY) whose names say bandwidth, latency, devices; drop them here.",
        margin=(8, 12),
        size=12,
    )
    return frame(
        pn.FlexBox(sample, upload, halve, download, hint.view, align_items="center", sizing_mode="stretch_width")
    )
