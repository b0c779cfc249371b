"""HoloViews with its Bokeh backend, loaded when the first plot is made and without a request to a CDN."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import holoviews as hv

from hetplanner.plots.notebook.offline import install
from hetplanner.plots.theme import LIGHT

WIDTH = 780
HEIGHT = 340
MAP_HEIGHT = 400

FRAME: dict[str, Any] = {
    "width": WIDTH,
    "height": HEIGHT,
    "show_grid": True,
    "gridstyle": {"grid_line_color": LIGHT.grid},
    "toolbar": "above",
    "active_tools": [],
}
NO_AXES: dict[str, Any] = {"xaxis": None, "yaxis": None, "show_grid": False}
LEGEND: dict[str, Any] = {"legend_position": "right", "legend_opts": {"border_line_color": None}}


def ready() -> None:
    """Loads the Bokeh backend once, with scripts and style sheets inline: a notebook works offline."""
    _load()
    hv.Store.set_current_backend("bokeh")


@cache
def _load() -> None:
    hv.extension("bokeh", inline=True, logo=False)
    install()


def table(columns: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The named columns alone, in this order."""
    return {name: columns[name] for name in names}


def boxes(
    x: tuple[Any, Any], y: tuple[Any, Any], facts: Mapping[str, Any], label: str = "", **options: Any
) -> hv.Rectangles:
    """Boxes from x[0] to x[1] and y[0] to y[1], with facts for colour and hover."""
    data = {"x0": x[0], "y0": y[0], "x1": x[1], "y1": y[1]} | dict(facts)
    found = hv.Rectangles(data, ["x0", "y0", "x1", "y1"], list(facts), label=label)
    return found.opts(**{"line_color": None} | options)


def texts(x: Any, y: Any, text: Any, **options: Any) -> hv.Labels:
    """Words at points."""
    labels = hv.Labels({"x": list(x), "y": list(y), "text": list(text)}, ["x", "y"], "text")
    return labels.opts(**{"text_color": LIGHT.text, "text_font_size": "9pt", "text_baseline": "middle"} | options)


def tooltips(*rows: tuple[str, str]) -> Any:
    """A hover tool with these lines."""
    from bokeh.models import HoverTool

    return HoverTool(tooltips=list(rows))
