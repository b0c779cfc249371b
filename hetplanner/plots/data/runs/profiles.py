"""A profile's layers over the micro-batch, and its collectives over bytes."""

from typing import Any

from hetplanner.profiles.model import COLLECTIVES, Collective, CollectiveCost, Profile

Columns = dict[str, list[Any]]
MOST_GROUPS = 8
"""Groups whose collectives are drawn; one figure of more cannot be read."""


def layer_columns(profile: Profile) -> Columns:
    """One row for every curve's point: series (kind, layer and way), micro-batch, and seconds of all such layers."""
    times: dict[str, int] = {}
    for run in profile.layers:
        times[run.name] = times.get(run.name, 0) + run.times
    columns: Columns = {name: [] for name in ("series", "layer", "kind", "degree", "way", "micro_batch", "seconds")}
    for row in sorted(profile.rows, key=lambda row: row.micro_batch):
        for way in ("forward", "backward"):
            count = times[row.layer]
            degree = f", degree {row.degree}" if row.degree > 1 else ""
            layer = f"{row.layer} × {count}" if count > 1 else row.layer
            columns["series"].append(f"{layer} {way}, {row.kind}{degree}")
            columns["layer"].append(layer)
            columns["kind"].append(row.kind)
            columns["degree"].append(row.degree)
            columns["way"].append(way)
            columns["micro_batch"].append(row.micro_batch)
            columns["seconds"].append(getattr(row, way) * count)
    return columns


def collective_curves(profile: Profile) -> tuple[list[dict[str, Any]], int]:
    """A curve for each collective and group: by kind in the profile's order, by degree, by collective.

    Returns:
        Of each: collective, group ('2 × T4'), sizes (bytes of the whole tensor, ascending) and seconds, for the first
        `MOST_GROUPS` groups; and how many groups there are.
    """
    rows: dict[tuple[str, int], dict[Collective, list[CollectiveCost]]] = {}
    place = {kind: i for i, kind in enumerate(profile.kinds)}
    for row in sorted(profile.collectives, key=lambda row: (place[row.kind], row.degree, row.size)):
        rows.setdefault((row.kind, row.degree), {}).setdefault(row.collective, []).append(row)
    curves = [
        {
            "collective": name,
            "group": f"{degree} × {kind}",
            "sizes": [row.size for row in found[name]],
            "seconds": [row.seconds for row in found[name]],
        }
        for (kind, degree), found in list(rows.items())[:MOST_GROUPS]
        for name in COLLECTIVES
        if name in found
    ]
    return curves, len(rows)
