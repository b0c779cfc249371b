"""A cluster, or a plan's allocation, on the world map."""

from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import numpy as np
from numpy.typing import NDArray

from hetplanner.cluster.model import Cluster
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.model import Plan
from hetplanner.plots.coastline import Ring, border_lines, land_rings
from hetplanner.plots.data.maps.labels import LINE_PX, block_size, named_sites, placed_blocks, runs_of
from hetplanner.plots.data.maps.maps import arc_columns, fitted, shared_columns, site_columns, stages_at_sites, view_box
from hetplanner.plots.notebook.backend import MAP_HEIGHT, NO_AXES, WIDTH, ready, table, texts, tooltips
from hetplanner.plots.theme import LIGHT, TERM_COLOURS


def cluster_map(cluster: Cluster) -> hv.Overlay:
    """Sites of a cluster on an offline world map, sized by their number of devices."""
    ready()
    return _map(cluster, [], {})


def allocation(plan: Plan) -> hv.Overlay:
    """A plan on the map: routes as arcs (width by traffic), stages at sites, gradient exchange dotted."""
    ready()
    shared = _paths(
        shared_columns(plan), ["sites", "traffic", "groups"], [("", "@sites"), ("gradients a step", "@traffic")]
    ).opts(color=TERM_COLOURS["data_parallel"], line_dash="dotted", line_width=1.5)
    facts = ["colour", "width", "route", "link", "traffic", "latency", "bandwidth"]
    hover = [
        ("", "@link"),
        ("", "@route"),
        ("bytes a step", "@traffic"),
        ("latency", "@latency"),
        ("bandwidth", "@bandwidth"),
    ]
    arcs = _paths(arc_columns(plan), facts, hover).opts(color="colour", line_width="width", alpha=0.85)
    stages = {i: stages_text(list(at)) for i, at in enumerate(stages_at_sites(plan)) if at}
    return _map(plan.problem.cluster, [shared, arcs], stages, plan.problem.groups or ())


def stages_text(stages: list[int]) -> str:
    """'stages 0–2, 5' or 'stage 3'."""
    runs = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs_of(stages))
    return f"stage{'s' if len(stages) > 1 else ''} {runs}"


def _paths(columns: Mapping[str, Any], facts: list[str], hover: list[tuple[str, str]]) -> hv.Contours:
    rows = [
        {"x": columns["xs"][i], "y": columns["ys"][i]} | {name: columns[name][i] for name in facts}
        for i in range(len(columns["xs"]))
    ]
    return hv.Contours(rows, ["x", "y"], facts).opts(tools=[tooltips(*hover)], show_legend=False)


def _world() -> hv.Overlay:
    land = hv.Polygons([_in_one(land_rings())], ["x", "y"])
    borders = hv.Path([_in_one(border_lines())], ["x", "y"])
    return land.opts(color=LIGHT.land, line_color=LIGHT.coast, line_width=0.6) * borders.opts(
        color=LIGHT.coast, line_width=0.5
    )


def _in_one(lines: Sequence[Ring]) -> dict[str, NDArray[np.float32]]:
    """All lines in one, with gaps between them: HoloViews takes milliseconds for each path."""
    gap = np.full(1, np.nan, dtype=np.float32)
    x, y = (np.concatenate([part for line in lines for part in (line[axis], gap)][:-1]) for axis in (0, 1))
    return {"x": x, "y": y}


def _map(
    cluster: Cluster, traffic: list[hv.Element], stages: dict[int, str], groups: Sequence[WorkerGroup] = ()
) -> hv.Overlay:
    sites = site_columns(cluster, groups=groups)
    west, east, south, north = view_box(sites["x"], sites["y"])
    west, east, south, north = fitted((west, east, south, north + 0.08 * (east - west)), WIDTH, MAP_HEIGHT)
    hover = tooltips(("site", "@name"), ("devices", "@kinds"), ("", "@devices"))
    points = hv.Points(
        table(sites, ["x", "y", "name", "colour", "size", "kinds", "devices"]),
        ["x", "y"],
        ["name", "colour", "size", "kinds", "devices"],
    ).opts(color="colour", size="size", line_color=LIGHT.outline, tools=[hover])
    labels = _labels(sites, stages, (west, north), (east - west) / WIDTH)
    layers = hv.Overlay([*_world(), *traffic, points, labels])
    return layers.opts(
        hv.opts.Overlay(
            width=WIDTH,
            height=MAP_HEIGHT,
            xlim=(west, east),
            ylim=(south, north),
            bgcolor=LIGHT.ocean,
            title=cluster.name,
            show_legend=False,
            active_tools=["pan"],
            **NO_AXES,
        )
    )


def _labels(
    sites: Mapping[str, Any], stages: dict[int, str], corner: tuple[float, float], metres_per_px: float
) -> hv.Labels:
    """Names (and stages) beside the markers, where they cover the least; `corner` is the view's north-west."""
    named = named_sites(sites["size"])
    words = [sites["label"][i] + (f"\n{stages[i]}" if i in stages else "") for i in named]
    sites = {name: [values[i] for i in named] for name, values in sites.items()}
    x_px = [(x - corner[0]) / metres_per_px for x in sites["x"]]
    y_px = [(corner[1] - y) / metres_per_px for y in sites["y"]]
    sizes = [(block_size(max(w.split("\n"), key=len), ())[0], LINE_PX * (1 + w.count("\n"))) for w in words]
    blocks = placed_blocks(x_px, y_px, [size / 2 for size in sites["size"]], sizes, (WIDTH, MAP_HEIGHT))
    x = [x + (b.left + b.width / 2) * metres_per_px for x, b in zip(sites["x"], blocks, strict=True)]
    y = [y - (b.top + b.height / 2) * metres_per_px for y, b in zip(sites["y"], blocks, strict=True)]
    return texts(x, y, words)
