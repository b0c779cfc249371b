"""Links between devices, and a plan's stages and replicas, as matrices."""

import holoviews as hv
import numpy as np

from hetplanner.cluster.model import Cluster
from hetplanner.plan.model import Plan
from hetplanner.plots.data.maps.links import KNOWN, LinkMatrix, What, colour_limits, link_matrix
from hetplanner.plots.data.search.grid import grid_columns, layers_text
from hetplanner.plots.notebook.backend import FRAME, HEIGHT, LEGEND, boxes, ready, texts, tooltips
from hetplanner.plots.theme import DARK_INK, SOURCE_COLOURS

MAX_CELLS = 96**2
"""Up to this size every pair is a cell of its own with a hover; beyond, one image."""


def heatmap(cluster: Cluster, what: What = "bandwidth") -> hv.Overlay:
    """Bandwidth or latency of every ordered pair of devices (rows send), grouped by site, on a logarithmic scale.

    Or, with `known`, whether the links are measured, specified or assumed.
    """
    ready()
    matrix = link_matrix(cluster, what)
    size = len(matrix.ids)
    known = what == "known"
    unit = {"bandwidth": "Mbit/s", "latency": "ms"}.get(what, "")
    names = list(zip(matrix.site_centres, matrix.site_names, strict=True))
    image = hv.Image(matrix.value_DD.astype(np.float32), bounds=(0, 0, size, size), vdims="value").opts(
        cmap=list(SOURCE_COLOURS.values()) if known else "cividis" if what == "bandwidth" else "cividis_r",
        cnorm="linear" if known else "log",
        clim=(-0.5, len(KNOWN) - 0.5) if known else colour_limits(matrix.value_DD),
        clipping_colors={"NaN": "transparent"},
        colorbar=True,
        clabel=" · ".join(KNOWN) if known else f"{what} ({unit})",
    )
    # An image has one number a pixel; the ids and texts of a hover need boxes, which are too many beyond 96 devices.
    layers = [image, _cells(matrix, unit)] if size * size <= MAX_CELLS else [image.opts(tools=["hover"])]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            width=580,
            height=480,
            xlim=(0, size),
            ylim=(0, size),
            title=f"{cluster.name}: {what}",
            xlabel="to",
            ylabel="from",
            xticks=names,
            yticks=[(size - c, name) for c, name in names],
            xrotation=40,
            active_tools=[],
        )
    )


def _cells(matrix: LinkMatrix, unit: str) -> hv.Rectangles:
    size = len(matrix.ids)
    rows, columns = (m.ravel() for m in np.indices((size, size)))
    ids = np.array(matrix.ids, dtype=object)
    facts = {
        "from": ids[rows],
        "to": ids[columns],
        "value": matrix.value_DD[rows, columns],
        "known": np.array(matrix.sources, dtype=object)[matrix.source_DD[rows, columns]],
    }
    hover = tooltips(
        ("from", "@from"), ("to", "@to"), ("", f"@value{{0,0.[000]}} {unit}, @known" if unit else "@known")
    )
    return boxes((columns, columns + 1), (size - 1 - rows, size - rows), facts, alpha=0.0, tools=[hover])


def allocation_grid(plan: Plan) -> hv.Overlay:
    """Stages across, replicas down: which device holds what; the colour is the site."""
    ready()
    columns = grid_columns(plan, id_chars=max(int(600 / len(plan.stages) / 6), 3))
    stage, replica = np.array(columns["stage"]), np.array(columns["replica"])
    hover = tooltips(
        ("device", "@device (@kind), rank @rank"),
        ("site", "@site"),
        ("holds", "@ops (@params parameters)"),
        ("share", "@share"),
        ("computes", "@busy a step"),
        ("memory", "@memory"),
    )
    facts = ("device", "kind", "site", "rank", "ops", "params", "share", "busy", "memory")
    layers: list[hv.Element] = []
    for site in (s.name for s in plan.problem.cluster.sites if s.name in columns["site"]):
        at = [i for i, name in enumerate(columns["site"]) if name == site]
        x, y = stage[at], -replica[at]
        known = {fact: [columns[fact][i] for i in at] for fact in facts}
        colour = columns["colour"][at[0]]
        layers.append(boxes((x - 0.47, x + 0.47), (y - 0.45, y + 0.45), known, site, color=colour, tools=[hover]))
    words = [f"{one}\n{two}" for one, two in zip(columns["line_1"], columns["line_2"], strict=True)]
    layers.append(texts(stage, -replica, words, text_font_size="8pt", text_color=DARK_INK))
    rows = max(columns["replica"]) + 1
    ticks = [(s, f"stage {s}\n{layers_text(plan, s)}") for s in range(len(plan.stages))]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": max(HEIGHT, 46 * rows + 80), "show_grid": False},
            xlim=(-0.55, len(plan.stages) - 0.45),
            ylim=(0.45 - rows, 0.55),
            xticks=ticks,
            yticks=[(-r, f"replica {r}") for r in range(rows)],
            xlabel="",
            ylabel="",
            title="Stages and replicas",
        )
    )
