"""Spans of a trace as rows of a Gantt chart, few enough to draw."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hetplanner.plan.trace import Span, Trace

Columns = dict[str, Any]

MAX_SPANS = 13_000
"""A canvas redraws this many in well under a second."""
KINDS = ("forward", "backward", "send", "recv", "reduce", "step", "wait")
LANES = {"send": (-0.10, 0.18), "recv": (-0.27, 0.12), "reduce": (-0.38, 0.10)}
"""Offset below a rank's middle and height of what runs beside compute; the rest has the upper lane."""
COMPUTE_LANE = (0.2, 0.4)

NUMBERS = ("left", "right", "y", "height", "milliseconds", "bytes")
WORDS = ("rank", "role", "micro_batch", "step", "peer")


def chosen_spans(trace: Trace, step: int | None, max_spans: int = MAX_SPANS) -> tuple[list[Span], float]:
    """The spans to draw, and the time that counts as 0.

    With a step: its spans, from its start. Without: the newest steps that fit in `max_spans` as a whole.
    If one step alone has more, neighbours of one kind are merged (see `merged_spans`).
    """
    if step is not None:
        spans = [s for s in trace.spans if s.step == step]
        return merged_spans(spans, max_spans), min((s.start_s for s in spans), default=0.0)
    by_step: dict[int, list[Span]] = {}
    for span in trace.spans:
        by_step.setdefault(span.step, []).append(span)
    spans = []
    for number in sorted(by_step, reverse=True):
        if spans and len(spans) + len(by_step[number]) > max_spans:
            break
        spans += by_step[number]
    return merged_spans(spans, max_spans), 0.0


def merged_spans(spans: Sequence[Span], max_spans: int) -> list[Span]:
    """At most `max_spans` spans: neighbours of one rank, kind and step become one, the closest first.

    A merged span counts the bytes of its parts and names no micro-batch and no peer.
    """
    ordered = sorted(spans, key=lambda s: (s.rank, s.kind, s.start_s))
    surplus = len(ordered) - max_spans
    if surplus <= 0:
        return ordered
    gaps = np.array([_gap(a, b) for a, b in pairwise(ordered)])
    joined = np.zeros(len(ordered), dtype=bool)  # with the one before
    closest = np.argsort(gaps, kind="stable")[:surplus]
    joined[closest[np.isfinite(gaps[closest])] + 1] = True
    out: list[Span] = []
    for span, belongs in zip(ordered, joined.tolist(), strict=True):
        if belongs:
            last = out[-1]
            out[-1] = replace(
                last, end_s=max(last.end_s, span.end_s), bytes=last.bytes + span.bytes, micro_batch=-1, peer=-1, role=""
            )
        else:
            out.append(span)
    return out[:max_spans]


def _gap(a: Span, b: Span) -> float:
    same_row = (a.rank, a.kind, a.step) == (b.rank, b.kind, b.step)
    return b.start_s - a.end_s if same_row else math.inf


def span_columns(spans: Sequence[Span], rank_labels: Sequence[str], origin_s: float = 0.0) -> dict[str, Columns]:
    """For every kind of `KINDS` the columns of its bars; row of rank r is y = -r. Unknown kinds count as waiting.

    `NUMBERS` are arrays (sent in binary), `WORDS` lists; texts are left to the page: this runs once a second.
    """
    by_kind: dict[str, list[Span]] = {kind: [] for kind in KINDS}
    for span in spans:
        by_kind.get(span.kind, by_kind["wait"]).append(span)
    labels = dict(enumerate(f"{rank} · {label}" for rank, label in enumerate(rank_labels)))
    return {kind: _columns_of(kind, group, labels, origin_s) for kind, group in by_kind.items()}


def _columns_of(kind: str, spans: list[Span], labels: dict[int, str], origin_s: float) -> Columns:
    offset, height = LANES.get(kind, COMPUTE_LANE)
    start = np.array([s.start_s for s in spans], dtype=np.float64)
    end = np.array([s.end_s for s in spans], dtype=np.float64)
    return {
        "left": start - origin_s,
        "right": end - origin_s,
        "y": offset - np.array([s.rank for s in spans], dtype=np.float64),
        "height": np.full(len(spans), height),
        "milliseconds": (end - start) * 1e3,
        "bytes": np.array([s.bytes for s in spans], dtype=np.float64),
        "rank": [labels.get(s.rank, str(s.rank)) for s in spans],
        "role": [s.role for s in spans],
        "micro_batch": [s.micro_batch if s.micro_batch >= 0 else "–" for s in spans],
        "step": [s.step for s in spans],
        "peer": [labels.get(s.peer, "–") for s in spans],
    }
