"""What a plan's devices hold at their peak, by part, against what they have."""

from typing import Any

import numpy as np

from hetplanner.cost.memory_parts import PART_WORDS, memory_parts
from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import kind_text
from hetplanner.units import short_bytes

Columns = dict[str, list[Any]]

FACTS = ("rank", "device", "name", "kind", "stage", "peak_gb", "limit_gb", "share", "peak", "limit", "free")
PARTS = tuple(PART_WORDS)
MOST_BARS = 64
"""Devices of which each has a bar that can be told from the next."""


def part_names(part: str) -> tuple[str, str, str]:
    """Columns of a part: where its bar begins and ends, in GB, and its size in words."""
    return f"{part}_from", f"{part}_to", f"{part}_text"


MEMORY_NAMES = (*FACTS, *(name for part in PARTS for name in part_names(part)))


def memory_columns(plan: Plan) -> Columns:
    """One row for every device of the estimate (of a worker group one), in rank order; empty without an estimate.

    Columns: `FACTS`, and those of each part. Parts stand on each other: the last one ends at the peak.
    """
    columns: Columns = {name: [] for name in MEMORY_NAMES}
    if plan.estimate is None:
        return columns
    parts_N = memory_parts(plan)
    for e in sorted(plan.estimate.devices, key=lambda e: plan.rank_of(e.device)):
        rank = plan.rank_of(e.device)
        peak_bytes = parts_N[rank].total
        facts = (
            rank,
            e.device,
            plan.problem.worker_name(e.device),
            kind_text(plan, e.device),
            _stages_of(plan, rank),
            peak_bytes / 1e9,
            e.limit_bytes / 1e9,
            peak_bytes / e.limit_bytes if e.limit_bytes else 0.0,
            short_bytes(peak_bytes),
            short_bytes(e.limit_bytes),
            short_bytes(e.limit_bytes - peak_bytes),
        )
        row = dict(zip(FACTS, facts, strict=True))
        sizes = [getattr(parts_N[rank], part) for part in PARTS]
        ends = np.cumsum(sizes) / 1e9
        for part, size, end in zip(PARTS, sizes, ends.tolist(), strict=True):
            row |= dict(zip(part_names(part), (end - size / 1e9, end, short_bytes(size)), strict=True))
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _stages_of(plan: Plan, rank: int) -> int | str:
    """The stage of a rank, or the stages that it serves in turn."""
    stages = [s for s, _ in plan.places_of_rank[rank]]
    return stages[0] if len(stages) == 1 else ", ".join(map(str, stages))


def fullest(columns: Columns, most: int = MOST_BARS) -> tuple[Columns, str]:
    """Rows of `memory_columns` that a figure has room for, with their places as column `x`.

    Returns:
        All rows in rank order, or the `most` fullest, fullest first; and what is shown, in words: '' for all.
    """
    count = len(columns["rank"])
    rows = list(range(count))
    words = ""
    if count > most:
        rows = sorted(rows, key=lambda row: -columns["share"][row])[:most]
        words = f"the {most} fullest of {count:,} devices, fullest first"
    kept = {name: [values[row] for row in rows] for name, values in columns.items()}
    return kept | {"x": [float(i) for i in range(len(rows))]}, words
