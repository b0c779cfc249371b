"""A swarm's life as bars and marks: a row for every peer, in the colour of the stage it serves, and one for all."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.swarm_history import Commit, Stay, SwarmHistory
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
STAY_NAMES = ("y", "left", "right", "colour", "peer", "stage", "state", "took")
MARK_NAMES = ("x", "y", "marker", "colour", "edge", "peer", "text")
COMMIT_NAMES = ("x", "y", "text")
MARKS = {
    "join": ("triangle", "#228833"),
    "move": ("diamond", "#CCBB44"),
    "leaves": ("circle_dot", "#77AADD"),
    "left": ("circle", "#4477AA"),
    "lost": ("x", "#CC3311"),
    "cut off": ("square_x", "#AA3377"),
    "cut": ("hex", "#EE8866"),
    "work lost": ("dash", "#CC3311"),
    "gone": ("x", "#CC3311"),
    "garbage": ("asterisk", "#AA3377"),
    "not closed": ("dash", "#EE8866"),
    "refused": ("square", "#AA3377"),
    "trainer lost": ("plus", "#CC3311"),
    "restart": ("inverted_triangle", "#EE8866"),
    "restarted": ("inverted_triangle", "#228833"),
    "not restarted": ("y", "#CC3311"),
    "preempted": ("inverted_triangle", "#77AADD"),
    "set back": ("inverted_triangle", "#CC3311"),
    "trouble": ("x", "#AA3377"),
}
"""Kind of mark -> marker and colour."""
OPEN_MARKERS = ("x", "asterisk", "dash", "plus", "y")
EDGE = "#ffffff"
"""Of filled marks, so that they are seen on a bar of their own colour."""
MAX_ROWS = 48
MOST_COMMITS = 800
"""Of more than so many commits only those are drawn that a screen can tell apart."""
TOP_Y = 1.0
"""The row of the swarm as a whole; those of the peers are 0, -1, …"""


def shown_peers(history: SwarmHistory, most: int = MAX_ROWS) -> list[str]:
    """The peers that get a row: present ones, then those that left last; sorted by name."""
    newest = dict.fromkeys([*history.now, *(stay.peer for stay in reversed(history.stays))])
    return sorted(list(newest)[:most], key=by_name)


def by_name(peer: str) -> list[tuple[bool, int, str]]:
    """Key that sorts peer-2 before peer-10."""
    parts = re.split(r"([0-9]{1,9})", peer)
    return [(i % 2 == 0, int(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def stay_columns(stays: Iterable[Stay], rows: Sequence[str], origin_s: float, now_s: float) -> Columns:
    """A bar for every stay of a peer that has a row, by stage; x is seconds from `origin_s`."""
    row = {peer: -float(i) for i, peer in enumerate(rows)} | {"": TOP_Y}
    columns: Columns = {name: [] for name in STAY_NAMES}
    for stay in sorted((s for s in stays if s.peer in row), key=lambda s: (s.stage, s.start_s)):
        end_s = now_s if stay.end_s is None else stay.end_s
        took = short_seconds(end_s - stay.start_s) + (" so far" if stay.end_s is None else "")
        bar = (row[stay.peer], stay.start_s - origin_s, end_s - origin_s, line_colour(stay.stage))
        for name, value in zip(STAY_NAMES, (*bar, stay.peer, f"stage {stay.stage}", stay.state, took), strict=True):
            columns[name].append(value)
    return columns


def mark_columns(history: SwarmHistory, rows: Sequence[str], origin_s: float) -> Columns:
    """A mark for everything that happened to a peer with a row, or to the swarm."""
    row = {peer: -float(i) for i, peer in enumerate(rows)} | {"": TOP_Y}
    shown = [mark for mark in history.marks if mark.peer in row]
    return {
        "x": [mark.time_s - origin_s for mark in shown],
        "y": [row[mark.peer] for mark in shown],
        "marker": [MARKS[mark.kind][0] for mark in shown],
        "colour": [MARKS[mark.kind][1] for mark in shown],
        "edge": [MARKS[mark.kind][1] if MARKS[mark.kind][0] in OPEN_MARKERS else EDGE for mark in shown],
        "peer": [mark.peer or "the swarm" for mark in shown],
        "text": [mark.text for mark in shown],
    }


def commit_columns(commits: Sequence[Commit], origin_s: float) -> Columns:
    """A stroke for every commit, in the swarm's row; of many only those that lie apart."""
    span_s = commits[-1].time_s - commits[0].time_s if commits else 0.0
    apart = {int(c.time_s * MOST_COMMITS / span_s): c for c in commits} if len(commits) > MOST_COMMITS else {}
    shown = list(apart.values()) or list(commits)
    return {
        "x": [c.time_s - origin_s for c in shown],
        "y": [TOP_Y] * len(shown),
        "text": [_commit_text(c) for c in shown],
    }


def _commit_text(commit: Commit) -> str:
    loss = "" if commit.loss is None else f", loss {commit.loss:.4f}"
    return f"step {commit.step}{loss}, {short_seconds(commit.seconds)}"
