"""One simulated step as columns: Gantt rows, where each stage's time goes, the busiest links, memory over time.

Legend of array suffixes: as in `hetplanner.simulator.replay`; M lanes of a rank, Q bars.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetplanner.cost.terms import term_label
from hetplanner.plan.model import Plan
from hetplanner.plots.data.search.grid import layers_text, shortened
from hetplanner.plots.data.steps.spans import COMPUTE_LANE, LANES, MAX_SPANS
from hetplanner.plots.theme import TERM_COLOURS, ink_on, line_colour, term_colours
from hetplanner.simulator.replay import LOADS, MEMORY_PARTS, Replay
from hetplanner.simulator.spans import KINDS, SpanTable
from hetplanner.simulator.terms import TERMS
from hetplanner.units import short_bytes, short_seconds

Columns = dict[str, Any]

MOST_LANES = 24
"""Rows of a Gantt chart that have room for a label each; with more, a worker group has one row instead of its lanes."""
SHARED_KINDS = ("forward", "backward", "step")
"""What all members of a group do at the same time; the first one sends, receives and reduces for them."""
MEMBER_HEIGHT = 0.5
"""Of the bars of the other members, which have their lanes to themselves."""
MOST_LINKS = 14
LOAD_COLOURS = {"activation": "#EE6677", "gradient": "#FFAABB", "reduction": TERM_COLOURS["data_parallel"]}
"""A transfer has the hue of `pipeline`, a reduction that of `data_parallel`, as in the Gantt chart."""


@dataclass(frozen=True)
class Rows:
    """Rows of a chart, the first on top: the rank and the label of each.

    The rank of a worker group may have several rows next to each other: a lane for each member.
    """

    ranks: tuple[int, ...]
    labels: tuple[str, ...]

    @property
    def lanes(self) -> dict[int, int]:
        """How many rows each rank has, in the order of the rows."""
        return dict(Counter(self.ranks))


def rows_of(plan: Plan, pipeline: int | None = None) -> Rows:
    """The ranks of one route in its order, or (None) all of them, stage by stage; a rank once, with its members' lanes.

    Where these are more than `MOST_LANES`, a rank has one row.
    """
    if pipeline is not None:
        replicas = plan.routes[pipeline].replicas
        found = dict.fromkeys(plan.rank_at(s, r) for s, r in enumerate(replicas))
    else:
        found = dict.fromkeys(
            plan.rank_at(s, r) for s, stage in enumerate(plan.stages) for r in range(len(stage.replicas))
        )
    lanes = [(rank, device) for rank in found for device in plan.problem.members_of(plan.ranks[rank])]
    if len(lanes) > MOST_LANES:
        lanes = [(rank, plan.problem.worker_name(plan.ranks[rank])) for rank in found]
    return Rows(tuple(rank for rank, _ in lanes), tuple(f"{stages_text(plan, rank)} · {name}" for rank, name in lanes))


def stages_text(plan: Plan, rank: int) -> str:
    """'3', or of a rank that serves several stages '0+2'."""
    return "+".join(str(s) for s, _ in plan.places_of_rank[rank])


# -- Gantt -----------------------------------------------------------------------------------------


def gantt_columns(
    replay: Replay, plan: Plan, rows: Rows, window_s: tuple[float, float] | None = None, max_spans: int = MAX_SPANS
) -> tuple[dict[str, Columns], bool]:
    """For every kind of span the columns of its bars; row i is at y = -i. And whether neighbours were joined.

    What all members of a group do together has a bar in each of their lanes.

    `rank` and `peer` are places in `rank_labels` (peer -1: none), `role` in `ROLES`; micro-batch -1: of several.

    Args:
        replay: one simulated step.
        plan: what was simulated.
        rows: ranks to show.
        window_s: only what lies in this part of the step.
        max_spans: bars at most; beyond, neighbours of one rank and kind are joined, the closest first.
    """
    lanes = rows.lanes
    row_NM = np.full((len(plan.ranks), max(lanes.values(), default=1)), -1)
    first = 0
    for rank, count in lanes.items():
        row_NM[rank, :count] = np.arange(first, first + count)
        first += count
    spans = replay.spans
    shown = (row_NM[spans.rank_J, 0] >= 0) & (spans.end_s_J > spans.start_s_J)
    if window_s is not None:
        shown &= (spans.end_s_J >= window_s[0]) & (spans.start_s_J <= window_s[1])
    spans = spans.take(shown)
    most = max_spans * len(lanes) // max(len(rows.ranks), 1)  # a span has a bar in each lane
    merged = len(spans) > most
    if merged:
        spans = joined_spans(spans, most)
    columns = {kind: _bars(spans.take(spans.kind_J == k), kind, row_NM) for k, kind in enumerate(KINDS)}
    return columns, merged


def rank_labels(plan: Plan) -> list[str]:
    """What ranks are called, in their order."""
    return [f"{rank} · {plan.problem.worker_name(device)}" for rank, device in enumerate(plan.ranks)]


def joined_spans(spans: SpanTable, most: int) -> SpanTable:
    """At most `most` spans (or one for every rank and kind): neighbours become one, the closest first.

    A joined span counts the bytes of its parts and names no micro-batch and no peer.
    """
    spans = spans.take(np.lexsort((spans.start_s_J, spans.kind_J, spans.rank_J)))
    same = (np.diff(spans.rank_J) == 0) & (np.diff(spans.kind_J) == 0)
    gap_s = np.where(same, spans.start_s_J[1:] - spans.end_s_J[:-1], np.inf)
    closest = np.argsort(gap_s, kind="stable")[: max(len(spans) - most, 0)]
    begins = np.ones(len(spans), dtype=bool)
    begins[closest[np.isfinite(gap_s[closest])] + 1] = False
    first = np.flatnonzero(begins)
    several = np.diff([*first, len(spans)]) > 1
    out = spans.take(first)
    return SpanTable(
        out.rank_J,
        out.kind_J,
        out.stage_J,
        np.where(several, -1, out.micro_batch_J),
        out.start_s_J,
        np.maximum.reduceat(spans.end_s_J, first),
        np.add.reduceat(spans.bytes_J, first),
        np.where(several, -1, out.peer_J),
        np.where(several, 0, out.role_J),
    )


def _bars(spans: SpanTable, kind: str, row_NM: np.ndarray) -> Columns:
    """Bars of one kind of spans. `row_NM`: rows of each rank's lanes, -1 where it has fewer."""
    offset, height = LANES.get(kind, COMPUTE_LANE)
    row_JM = row_NM[spans.rank_J] if kind in SHARED_KINDS else row_NM[spans.rank_J, :1]
    span_Q, lane_Q = np.nonzero(row_JM >= 0)
    spans, row_Q, is_first_Q = spans.take(span_Q), row_JM[span_Q, lane_Q], lane_Q == 0
    return {
        "left": spans.start_s_J,
        "right": spans.end_s_J,
        "y": np.where(is_first_Q, offset, 0.0) - row_Q,
        "height": np.where(is_first_Q, height, MEMBER_HEIGHT),
        "milliseconds": (spans.end_s_J - spans.start_s_J) * 1e3,
        "bytes": spans.bytes_J.astype(np.float64),
        "rank": spans.rank_J.astype(np.int32),
        "role": spans.role_J.astype(np.int32),
        "micro_batch": spans.micro_batch_J.astype(np.int32),
        "step": np.zeros(len(spans), dtype=np.int32),
        "peer": spans.peer_J.astype(np.int32),
    }


# -- where the time goes ---------------------------------------------------------------------------


def share_columns(replay: Replay, plan: Plan) -> Columns:
    """One row for every term of every stage, mean over its replicas; stage s is at y = -s.

    Columns: y, label, term, left, right, middle (shares of the step), colour, ink, text, value, share.
    """
    colours = term_colours(TERMS)
    names = ("y", "label", "term", "left", "right", "middle", "colour", "ink", "text", "value", "share")
    columns: Columns = {name: [] for name in names}
    for s, label in enumerate(stage_labels(plan)):
        terms_s = stage_terms(replay, plan, s)
        left = 0.0
        for term, seconds in zip(TERMS, terms_s.tolist(), strict=True):
            share = seconds / replay.step_s if replay.step_s else 0.0
            text = f"{100 * share:.0f} %" if share >= 0.08 else ""
            values = (-s, label, term_label(term), left, left + share, left + share / 2, colours[term],
                      ink_on(colours[term]), text, short_seconds(seconds), f"{100 * share:.1f} %")  # fmt: skip
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
            left += share
    return columns


def stage_terms(replay: Replay, plan: Plan, stage: int) -> np.ndarray:
    """Seconds of a stage by term, mean over its replicas."""
    ranks = [plan.rank_at(stage, r) for r in range(len(plan.stages[stage].replicas))]
    return np.asarray(replay.terms_s_NT[ranks].mean(axis=0))


def stage_labels(plan: Plan) -> list[str]:
    """'0 · L0–5' for every stage."""
    return [f"{s} · {shortened(layers_text(plan, s), 14)}" for s in range(len(plan.stages))]


# -- links -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkRows:
    """The busiest links and NICs.

    Attributes:
        columns: one row for every load of every link: y, label, load, left, right (shares of the step), colour, words.
        totals: one row for every link: y, total, text.
        labels: of the links, the busiest first.
        num_links: how many there are.
    """

    columns: Columns
    totals: Columns
    labels: tuple[str, ...]
    num_links: int


def link_rows(replay: Replay, plan: Plan, most: int = MOST_LINKS) -> LinkRows:
    """The busiest links between ranks, and NICs of hosts whose limit is known; shares of the step."""
    step_s = replay.step_s or 1.0
    found: list[tuple[float, str, Any, Any]] = [
        (float(busy.sum()), f"{shortened(plan.ranks[a], 16)} → {shortened(plan.ranks[b], 16)}", busy, moved)
        for a, b, busy, moved in zip(
            replay.source_L.tolist(), replay.target_L.tolist(), replay.busy_s_LR, replay.bytes_LR, strict=True
        )
    ]
    count = len(found)
    for way, seconds_H in (("out", replay.nic_out_s_H), ("in", replay.nic_in_s_H)):
        for h in np.flatnonzero(seconds_H).tolist():
            host = plan.problem.cluster.hosts[h].id
            found.append((float(seconds_H[h]), f"{shortened(host, 20)}: NIC {way}", None, None))
    found.sort(key=lambda row: -row[0])
    names = ("y", "label", "load", "left", "right", "colour", "words")
    columns: Columns = {name: [] for name in names}
    totals: Columns = {"y": [], "total": [], "text": []}
    for row, (busy_s, label, busy, moved) in enumerate(found[:most]):
        for load, left, right, colour, words in _loads(busy_s, busy, moved, step_s):
            for name, value in zip(names, (-row, label, load, left, right, colour, words), strict=True):
                columns[name].append(value)
        size = "" if moved is None else f" · {short_bytes(float(moved.sum()))}"
        totals["y"].append(-row)
        totals["total"].append(busy_s / step_s)
        totals["text"].append(f"{100 * busy_s / step_s:.0f} %{size}")
    return LinkRows(columns, totals, tuple(label for _, label, _, _ in found[:most]), count)


def _loads(busy_s: float, busy: Any, moved: Any, step_s: float) -> list[tuple[str, float, float, str, str]]:
    if busy is None:
        return [("all messages", 0.0, busy_s / step_s, TERM_COLOURS["compute"], short_seconds(busy_s))]
    parts, left = [], 0.0
    for r, load in enumerate(LOADS):
        if moved[r]:
            right = left + float(busy[r]) / step_s
            words = f"{short_bytes(float(moved[r]))} in {short_seconds(float(busy[r]))}"
            parts.append((load, left, right, LOAD_COLOURS[load], words))
            left = right
    return parts


# -- memory ----------------------------------------------------------------------------------------


def memory_lines(replay: Replay, plan: Plan, pipeline: int | None = None) -> Columns:
    """A line for every stage: the rank of the given pipeline, or (None) the replica that comes nearest its limit.

    Columns: xs (seconds), ys (share of the device's memory), colour, label, words. Empty without an estimate.
    """
    columns: Columns = {name: [] for name in ("xs", "ys", "colour", "label", "words")}
    limits = {e.device: e.limit_bytes for e in plan.estimate.devices} if plan.estimate else {}
    if not limits:
        return columns
    limit_N = np.array([limits.get(device, np.inf) or np.inf for device in plan.ranks])
    share_NB = replay.memory_NB / limit_N[:, None]
    # Every part of the step as a flat piece of line, drawn at its peak.
    edges_s = np.linspace(0.0, replay.step_s, MEMORY_PARTS + 1)
    xs = np.repeat(edges_s, 2)[1:-1]
    for s, rank in enumerate(_memory_ranks(plan, share_NB, pipeline)):
        peak = float(replay.memory_NB[rank].max())
        columns["xs"].append(xs)
        columns["ys"].append(np.repeat(share_NB[rank], 2))
        columns["colour"].append(line_colour(s))
        columns["label"].append(f"stage {s}")
        name = plan.problem.worker_name(plan.ranks[rank])
        columns["words"].append(f"{name}: peak {short_bytes(peak)} of {short_bytes(float(limit_N[rank]))}")
    return columns


def _memory_ranks(plan: Plan, share_NB: np.ndarray, pipeline: int | None) -> Sequence[int]:
    if pipeline is not None:
        return [plan.rank_at(s, r) for s, r in enumerate(plan.routes[pipeline].replicas)]
    peak_N = share_NB.max(axis=1)
    of_stage = ([plan.rank_at(s, r) for r in range(len(stage.replicas))] for s, stage in enumerate(plan.stages))
    return [max(ranks, key=lambda rank: peak_N[rank]) for ranks in of_stage]
