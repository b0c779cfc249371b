"""A run's life as bars and marks: what every rank was at, and when something happened."""

from collections.abc import Sequence
from typing import Any

from hetplanner.plots.theme import OTHER_COLOUR, PHASE_COLOURS
from hetplanner.runs.reading.events import LifeSpan, RunEvent
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
PHASE_NAMES = ("y", "left", "right", "colour", "rank", "phase", "took")
MARK_NAMES = ("x", "y", "marker", "colour", "text", "rank")
MARKS = {
    "checkpoint": ("diamond", "#228833"),
    "resumed": ("triangle", "#66CCEE"),
    "restart": ("inverted_triangle", "#EE8866"),
    "error": ("x", "#CC3311"),
    "end": ("square", "#AA3377"),
}
"""Kind of event -> marker and colour; other kinds are told by the bars."""


def phase_columns(spans: Sequence[LifeSpan], labels: Sequence[str], origin_s: float) -> Columns:
    """A bar for every stay of a rank in a phase; the row of rank r is y = -r, x is seconds from `origin_s`."""
    return {
        "y": [float(-s.rank) for s in spans],
        "left": [s.start_s - origin_s for s in spans],
        "right": [s.end_s - origin_s for s in spans],
        "colour": [PHASE_COLOURS.get(s.phase, OTHER_COLOUR) for s in spans],
        "rank": [f"{s.rank} · {labels[s.rank]}" for s in spans],
        "phase": [s.phase for s in spans],
        "took": [short_seconds(s.end_s - s.start_s) + (" so far" if s.is_open else "") for s in spans],
    }


def mark_columns(events: Sequence[RunEvent], num_ranks: int, origin_s: float) -> Columns:
    """A mark for every event that the bars do not tell; what is about the whole run stands above the ranks."""
    shown = [e for e in events if e.kind in MARKS and (e.rank is None or e.rank < num_ranks)]
    return {
        "x": [e.time_s - origin_s for e in shown],
        "y": [0.75 if e.rank is None else float(-e.rank) for e in shown],
        "marker": [MARKS[e.kind][0] for e in shown],
        "colour": [MARKS[e.kind][1] for e in shown],
        "text": [e.text[:200] for e in shown],
        "rank": ["the run" if e.rank is None else f"rank {e.rank}" for e in shown],
    }
