"""Measured layers over the micro-batch, and measured collectives over bytes."""

import holoviews as hv
from bokeh.plotting import figure

from hetplanner.plots.data.runs.profiles import layer_columns
from hetplanner.plots.live import CollectiveCurves
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, tooltips
from hetplanner.plots.notebook.stills import still
from hetplanner.plots.theme import LINE_COLOURS
from hetplanner.profiles.model import Profile

MOST_SERIES = 24
"""The slowest are drawn."""


def profile(found: Profile) -> hv.Overlay:
    """Seconds of a profile's layers over the micro-batch, forward and backward; equal layers are added up.

    Args:
        found: of `hetplanner.profile`, `hetplanner.load_profile` or `hetplanner.import_profile`.
    """
    ready()
    columns = layer_columns(found)
    series = dict.fromkeys(columns["series"])
    most = {
        name: max(s for s, n in zip(columns["seconds"], columns["series"], strict=True) if n == name) for name in series
    }
    drawn = sorted(series, key=lambda name: -most[name])[:MOST_SERIES]
    hover = tooltips(("@series", ""), ("micro-batch", "@micro_batch"), ("seconds", "@seconds{0.000000} s"))
    layers: list[hv.Element] = []
    for i, name in enumerate(drawn):
        rows = [k for k, value in enumerate(columns["series"]) if value == name]
        part = {key: [columns[key][k] for k in rows] for key in ("micro_batch", "seconds", "series")}
        colour = LINE_COLOURS[i % len(LINE_COLOURS)]
        dash = "solid" if columns["way"][rows[0]] == "forward" else "dashed"
        axes = ("micro_batch", "seconds")
        layers.append(hv.Curve(part, *axes, label=name).opts(color=colour, line_dash=dash, line_width=2))
        layers.append(hv.Points(part, list(axes), ["series"]).opts(color=colour, size=7, tools=[hover]))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": 400},
            logy=True,
            padding=(0.05, 0.1),
            xticks=sorted(set(columns["micro_batch"])),
            xlabel="micro-batch (samples)",
            ylabel="seconds of all such layers",
            title=found.name,
        )
    )


def collectives(found: Profile) -> figure:
    """Seconds of a profile's collectives over bytes of the whole tensor, both logarithmic; the page's own figure.

    A curve for each collective and group; a profile without collectives gives a figure that says so.

    Args:
        found: of `hetplanner.profile` or `hetplanner.load_profile`, measured with tensor degrees above 1.
    """
    return still(CollectiveCurves(), found)
