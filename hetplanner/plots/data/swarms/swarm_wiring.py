"""A swarm's wiring as nodes and lines: a column for every stage, a node for every peer, a line for every pair.

A node's area is the peer's share of its stage, a line's width the micro-batches that went that way. In front of the
first stage stand the trainers, where the coordinator tells what they sent.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hetplanner.plots.data.swarms.swarm_life import by_name
from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.swarm_flow import PeerWork, SwarmFlow

Columns = dict[str, list[Any]]
NODE_NAMES = ("x", "y", "size", "colour", "alpha", "label", "peer", "stage", "speed", "expected", "done")
LINE_NAMES = ("xs", "ys", "width", "colour", "pair", "count", "share")
MOST_PEERS = 32
"""Of a stage; those with the most micro-batches are drawn."""
MOST_LINES = 800
LEAST_PX, MOST_PX = 9.0, 34.0
"""Diameters of nodes without and with all of a stage's micro-batches."""
LINE_PX = 14.0
"""Of the widest line."""
GONE_ALPHA = 0.25
TRAINER_X, TRAINER_COLOUR = -1.0, "#888888"
CURVE = np.linspace(0.0, 1.0, 17)


def shown_nodes(flow: SwarmFlow) -> list[int]:
    """Places of the peers that are drawn, by stage and name."""
    stages: dict[int, list[int]] = {}
    for place, peer in enumerate(flow.peers):
        stages.setdefault(peer.stage, []).append(place)
    shown = []
    for stage in sorted(stages):
        most = sorted(stages[stage], key=lambda i: -flow.peers[i].micro_batches)[:MOST_PEERS]
        shown += sorted(most, key=lambda i: by_name(flow.peers[i].peer))
    return shown


def node_spots(flow: SwarmFlow, shown: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Where each drawn peer is: x is its stage, y counts down from the middle of its column."""
    column: dict[int, list[int]] = {}
    for place in shown:
        column.setdefault(flow.peers[place].stage, []).append(place)
    return {
        place: (float(stage), (len(places) - 1) / 2 - i)
        for stage, places in column.items()
        for i, place in enumerate(places)
    }


def trainer_spots(flow: SwarmFlow) -> dict[str, tuple[float, float]]:
    """Where each trainer is, of many those that sent most; nothing where none is told of."""
    sent = sent_by(flow)
    shown = sorted(sorted(sent, key=lambda trainer: -sent[trainer])[:MOST_PEERS], key=by_name)
    return {trainer: (TRAINER_X, (len(shown) - 1) / 2 - i) for i, trainer in enumerate(shown)}


def sent_by(flow: SwarmFlow) -> Counter[str]:
    """Micro-batches by trainer."""
    sent: Counter[str] = Counter()
    for (trainer, _), count in flow.sent.items():
        sent[trainer] += count
    return sent


def trainer_columns(flow: SwarmFlow, spots: Mapping[str, tuple[float, float]]) -> Columns:
    """A node for every drawn trainer."""
    columns: Columns = {name: [] for name in NODE_NAMES}
    sent = sent_by(flow)
    for trainer, (x, y) in spots.items():
        share = sent[trainer] / sent.total() if sent.total() else 0.0
        done = f"{sent[trainer]} sent, {share:.0%} of all"
        words = f"{trainer[:18]}  {share:.0%}", trainer, "a trainer", "–", "–", done
        for name, value in zip(NODE_NAMES, (x, y, _size(share), TRAINER_COLOUR, 1.0, *words), strict=True):
            columns[name].append(value)
    return columns


def _size(share: float) -> float:
    return math.sqrt(LEAST_PX**2 + share * (MOST_PX**2 - LEAST_PX**2))


def node_columns(
    flow: SwarmFlow,
    spots: Mapping[int, tuple[float, float]],
    present: Collection[tuple[str, int]] | None = None,
    expected: Mapping[str, Sequence[float]] | None = None,
    names: Mapping[str, str] | None = None,
) -> Columns:
    """A node for every drawn peer.

    Args:
        flow: of some steps.
        spots: of `node_spots`.
        present: (peer, stage) pairs present now; other peers are pale. None: all peers are present.
        expected: by peer, micro-batches per second in each stage.
        names: by peer, where it is shown by another name.
    """
    columns: Columns = {name: [] for name in NODE_NAMES}
    for place, (x, y) in spots.items():
        peer = flow.peers[place]
        name = (names or {}).get(peer.peer, peer.peer)
        share, is_here = flow.share(place), present is None or (peer.peer, peer.stage) in present
        row = (
            x, y, _size(share), line_colour(peer.stage), 1.0 if is_here else GONE_ALPHA,
            _label(peer, name, share), name,
            f"stage {peer.stage}" + ("" if is_here else ", not there now"), speed_text(peer.speed),
            speed_text(expected_speed(expected or {}, peer)),
            f"{peer.micro_batches} contributed, {share:.0%} of its stage",
        )  # fmt: skip
        for column, value in zip(NODE_NAMES, row, strict=True):
            columns[column].append(value)
    return columns


def line_columns(
    flow: SwarmFlow,
    spots: Mapping[int, tuple[float, float]],
    trainers: Mapping[str, tuple[float, float]],
    names: Mapping[str, str] | None = None,
) -> Columns:
    """A line for every pair of drawn peers, and of trainer and peer; the widest first so that it covers none."""
    sent, known, ways = sent_by(flow), names or {}, []
    for (a, b), count in sorted(flow.pairs.items(), reverse=True):
        if count and a in spots and b in spots:
            sender = flow.peers[a]
            ways.append((count, sender.micro_batches, spots[a], spots[b], line_colour(sender.stage), sender.peer, b))
    for (trainer, b), count in flow.sent.items():
        if count and trainer in trainers and b in spots:
            ways.append((count, sent[trainer], trainers[trainer], spots[b], TRAINER_COLOUR, trainer, b))
    ways = sorted(ways, key=lambda way: -way[0])[:MOST_LINES]
    most = max((way[0] for way in ways), default=1)
    smooth = CURVE * CURVE * (3 - 2 * CURVE)
    columns: Columns = {name: [] for name in LINE_NAMES}
    for count, all_of_it, (x0, y0), (x1, y1), colour, sender_name, b in ways:
        share = count / all_of_it if all_of_it else 0.0
        words = " → ".join(known.get(end, end) for end in (sender_name, flow.peers[b].peer))
        curve = x0 + CURVE * (x1 - x0), y0 + smooth * (y1 - y0)
        row = (*curve, max(0.8, LINE_PX * count / most), colour, words, str(count), f"{share:.0%}")
        for name, value in zip(LINE_NAMES, row, strict=True):
            columns[name].append(value)
    return columns


def expected_speed(expected: Mapping[str, Sequence[float]], peer: PeerWork) -> float | None:
    """Of a peer in its stage; None: it is not of the plan."""
    speeds = expected.get(peer.peer, ())
    return speeds[peer.stage] if peer.stage < len(speeds) else None


def speed_text(speed: float | None) -> str:
    """'12.3/s'; a dash where it is not known."""
    if speed is None:
        return "–"
    return f"{speed:,.0f}/s" if speed >= 1000 else f"{speed:.3g}/s"


def _label(peer: PeerWork, name: str, share: float) -> str:
    return f"{name[:18]}  {speed_text(peer.speed)}  {share:.0%}"
