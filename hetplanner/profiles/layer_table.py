"""A profile as a table for people."""

from collections import Counter

from hetplanner.profiles.model import Profile
from hetplanner.units import short_bytes, short_seconds

NUMBERS = ("micro-batch", "degree", "forward", "backward", "update", "kept")
"""Columns that are aligned to the right."""


def layer_table(profile: Profile, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Head and rows: what each layer takes for one micro-batch; without degree where all are 1.

    Args:
        profile: what is shown.
        most: so many of its first rows; None: all.
    """
    with_degree = any(row.degree > 1 for row in profile.rows)
    counts: Counter[str] = Counter()
    for run in profile.layers:
        counts[run.name] += run.times
    head = [name for name in ("kind", "layer", *NUMBERS) if name != "degree" or with_degree]
    rows = [
        [
            row.kind,
            f"{row.layer} × {counts[row.layer]}" if counts[row.layer] > 1 else row.layer,
            str(row.micro_batch),
            *((str(row.degree),) if with_degree else ()),
            short_seconds(row.forward),
            short_seconds(row.backward),
            "" if row.update is None else short_seconds(row.update),
            "" if row.kept is None else short_bytes(row.kept),
        ]
        for row in profile.rows[:most]
    ]
    return head, rows
