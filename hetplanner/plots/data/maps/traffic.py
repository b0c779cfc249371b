"""A run's traffic between sites as arcs, coloured by how much of each link it uses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetplanner.cluster.model import Cluster
from hetplanner.plots.coastline import mercator
from hetplanner.plots.data.maps.maps import arc, shorter_way
from hetplanner.runs.reading.loads import SiteLoad
from hetplanner.units import short_rate

Columns = dict[str, list[Any]]
LOAD_NAMES = ("xs", "ys", "colour", "width", "sites", "rate", "share", "busiest", "limit")
STEPS = ((0.8, "#CC3311", "80 % and more"), (0.5, "#EE8866", "50–80 %"), (0.2, "#DDAA33", "20–50 %"))
LOW = ("#4477AA", "below 20 %")


def load_colour(share: float) -> str:
    """Blue, then yellow, orange and red as a link comes near its limit."""
    return next((colour for least, colour, _ in STEPS if share >= least), LOW[0])


def load_columns(cluster: Cluster, loads: Sequence[SiteLoad]) -> Columns:
    """One arc for every direction between two sites; both directions of a pair bow to different sides.

    Columns: xs, ys (Mercator metres), colour and width by the share of the fullest link, and words for a hover.
    """
    x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
    place = {site.name: i for i, site in enumerate(cluster.sites)}
    columns: Columns = {name: [] for name in LOAD_NAMES}
    for load in reversed(loads):  # the fullest on top
        i, j = place[load.source], place[load.target]
        end = shorter_way(x_S[i], x_S[j])
        xs, ys = arc((x_S[i], end), (y_S[i], y_S[j]), 0.08 if i < j else 0.2)
        link = load.busiest
        facts = {
            "colour": load_colour(link.share),
            "width": round(1.2 + 4.0 * float(np.sqrt(min(link.share, 1.0))), 2),
            "sites": f"{load.source} → {load.target}",
            "rate": short_rate(load.bytes_per_s),
            "share": f"{100 * link.share:.0f} %",
            "busiest": f"{link.source_device} → {link.target_device}",
            "limit": short_rate(link.limit_bytes_per_s),
        }
        # Across the antimeridian the arc leaves one edge of the map and comes in at the other.
        for shift in (0.0,) if end == x_S[j] else (0.0, x_S[j] - end):
            columns["xs"].append(xs + shift)
            columns["ys"].append(ys)
            for name, value in facts.items():
                columns[name].append(value)
    return columns
