"""A profile's layers: seconds of one micro-batch, by kind of device and micro-batch."""

from typing import Any

from hetplanner.profiles.model import Profile

Columns = dict[str, list[Any]]


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
