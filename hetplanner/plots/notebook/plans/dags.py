"""A model's operators and what they read, with a plan's stages."""

from html import escape
from pathlib import Path
from typing import Any

import holoviews as hv

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.dags import DagLayout
from hetplanner.plots.notebook.backend import FRAME, LEGEND, NO_AXES, boxes, ready, table, texts, tooltips
from hetplanner.plots.theme import LIGHT, OP_COLOURS
from hetplanner.schema import write_text
from hetplanner.workload.workload import Workload

WIDTH = 1100
ROW_PX = 34.0
"""Height of one unit of the drawing."""
LEAST_HEIGHT = 260
"""Room for the legend."""
SKIP_COLOUR = "#EE6677"
TIED_COLOUR = "#AA3377"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><link rel="icon" href="data:,">
{head}
</head>
<body>{place}{script}</body>
</html>
"""


def dag(workload: Workload | Plan, plan: Plan | None = None) -> hv.Overlay:
    """The OP-DAG: ops by kind, their area by FLOPs, lines as wide as the bytes they carry, skips as arcs.

    Ops stand in the order that stages cut; a plan's stages lie below as coloured bands. Dashed: tied weights. Hover
    for the facts.

    Args:
        workload: the model, or a plan, whose model and stages are shown.
        plan: a plan of this model.

    Raises:
        InvalidInput: the plan is of another model.
    """
    if isinstance(workload, Plan):
        plan, workload = workload, workload.problem.workload
    if plan is not None and plan.problem.workload.graph != workload.graph:
        raise InvalidInput(f"plan: is of {plan.problem.workload.name}, not of {workload.name}; give the plan alone")
    ready()
    layout = DagLayout(workload)
    top = 1.4 if layout.skips else 0.8
    bottom = -(layout.rows - 1) * layout.row_height - 0.8 * max(layout.lanes) - 1.0
    layers = [*_stages(layout, plan), *_groups(layout), *_edges(layout), *_nodes(layout)]
    graph = workload.graph
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME
            | LEGEND
            | NO_AXES
            | {"legend_opts": LEGEND["legend_opts"] | {"location": "top_left"}}
            | {"width": WIDTH, "height": max(LEAST_HEIGHT, int(110 + ROW_PX * (top - bottom))), "active_tools": []},
            xlim=(-1.2, layout.columns + 0.2),
            ylim=(bottom, top),
            title=f"{workload.name}: {len(graph.ops)} ops, {graph.num_params:,} parameters",
        )
    )


def write_dag(workload: Workload | Plan, path: Path | str, plan: Plan | None = None) -> Path:
    """Writes `dag` as one HTML file that needs no network.

    Raises:
        InvalidInput: the plan is of another model, or the file cannot be written.
    """
    from bokeh.embed import components
    from bokeh.resources import Resources

    figure = hv.renderer("bokeh").get_plot(dag(workload, plan)).state
    name = workload.problem.workload.name if isinstance(workload, Plan) else workload.name
    script, place = components(figure)
    # Bokeh alone, and no links: Panel, which HoloViews loads, would add a script from beside the page.
    head = "".join(f"<script>{code}</script>" for code in Resources(mode="inline", components=["bokeh"]).js_raw)
    page = PAGE.format(title=escape(name), head=head, script=script, place=place)
    target = Path(path)
    write_text(target, page)
    return target


def _stages(layout: DagLayout, plan: Plan | None) -> list[hv.Element]:
    if plan is None:
        return []
    columns = layout.stage_columns(plan)
    hover = tooltips(
        ("stage", "@stage"), ("ops", "@ops"), ("parameters", "@params"), ("sends on", "@message"), ("on", "@devices")
    )
    facts = table(columns, ["colour", "stage", "ops", "params", "message", "devices"])
    edges = (columns["x0"], columns["x1"]), (columns["y0"], columns["y1"])
    bands = boxes(*edges, facts, color="colour", alpha=0.45, tools=[hover])
    words = texts(columns["label_x"], columns["label_y"], columns["label"], text_align="left", text_font_size="8pt")
    return [bands, words]


def _groups(layout: DagLayout) -> list[hv.Element]:
    columns = layout.group_columns()
    data = {name: columns[name] for name in ("x0", "y", "x1")} | {"y1": columns["y"]}
    lines = hv.Segments(data, ["x0", "y", "x1", "y1"]).opts(color=LIGHT.axis, line_width=1)
    words = texts(columns["x"], [y - 0.22 for y in columns["y"]], columns["text"], text_font_size="7pt")
    arrows = layout.arrow_columns()
    signs = texts(arrows["x"], arrows["y"], arrows["text"], text_color=LIGHT.axis, text_font_size="11pt")
    return [lines, words, signs]


def _paths(columns: dict[str, list[Any]], facts: list[str], label: str, **options: Any) -> hv.Contours:
    rows = [
        {"x": xs, "y": ys} | {name: columns[name][i] for name in facts}
        for i, (xs, ys) in enumerate(zip(columns["xs"], columns["ys"], strict=True))
    ]
    return hv.Contours(rows, ["x", "y"], facts, label=label).opts(show_legend=True, **options)


def _edges(layout: DagLayout) -> list[hv.Element]:
    found = []
    hover = tooltips(("", "@source → @target"), ("carries", "@bytes per sample"))
    facts = ["width", "source", "target", "bytes"]
    for label, skips, colour in (("to the next op", False, LIGHT.axis), ("skip", True, SKIP_COLOUR)):
        columns = layout.edge_columns(skips=skips)
        if columns["xs"]:
            options = {"color": colour, "line_width": "width", "alpha": 0.75, "tools": [hover]}
            found.append(_paths(columns, facts, label, **options))
    tied = layout.tied_columns()
    if tied["xs"]:
        hover = tooltips(("tied weight", "@owner, used by @user"), ("parameters", "@params"))
        options = {"color": TIED_COLOUR, "line_width": 1.5, "line_dash": "dashed", "tools": [hover]}
        found.append(_paths(tied, ["owner", "user", "params"], "tied weight", **options))
    return found


def _nodes(layout: DagLayout) -> list[hv.Element]:
    columns = layout.node_columns()
    hover = tooltips(
        ("@name", "@kind, layer @layer"),
        ("reads", "@reads"),
        ("parameters", "@params"),
        ("FLOPs per sample", "@flops"),
        ("keeps", "@kept"),
        ("gives", "@output"),
    )
    facts = ["size", "name", "kind", "layer", "params", "flops", "kept", "output", "reads"]
    found = []
    for kind, colour in OP_COLOURS.items():
        rows = [i for i, name in enumerate(columns["kind"]) if name == kind]
        if rows:
            data = {name: [columns[name][i] for i in rows] for name in ("x", "y", *facts)}
            options = {"color": colour, "size": "size", "line_color": "white", "line_width": 1, "tools": [hover]}
            found.append(hv.Points(data, ["x", "y"], facts, label=kind).opts(**options))
    return found
