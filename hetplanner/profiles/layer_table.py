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


def collective_lines(profile: Profile) -> list[str]:
    """'CPU generic, 2 devices: all-gather 110 µs for 4.1 kB, 5 ms for 16.8 MB', for the least and the most bytes."""
    found: dict[tuple[str, int], list[str]] = {}
    for kind, degree, collective in dict.fromkeys((c.kind, c.degree, c.collective) for c in profile.collectives):
        curve = profile.collective_curve(kind, degree, collective)
        least_and_most = dict.fromkeys((curve[0], curve[-1]))
        ends = ", ".join(f"{short_seconds(seconds)} for {short_bytes(size)}" for size, seconds in least_and_most)
        found.setdefault((kind, degree), []).append(f"{collective} {ends}")
    return [f"{kind}, {degree} devices: {'; '.join(parts)}" for (kind, degree), parts in found.items()]
