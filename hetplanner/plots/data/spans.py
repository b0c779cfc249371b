"""Spans of a trace as rows of a Gantt chart, few enough to draw."""

from collections.abc import Sequence
from typing import Any

from hetplanner.plan.trace import Span, Trace
from hetplanner.units import short_bytes, short_seconds

Columns = dict[str, list[Any]]

MAX_SPANS = 13_000
"""A canvas redraws this many in well under a second."""
KINDS = ("forward", "backward", "send", "recv", "reduce", "step", "wait")
LANES = {"send": (-0.10, 0.18), "recv": (-0.27, 0.12), "reduce": (-0.38, 0.10)}
"""Offset below a rank's middle and height of what runs beside compute; the rest has the upper lane."""
COMPUTE_LANE = (0.2, 0.4)

_NAMES = ("left", "right", "y", "height", "rank", "what", "step", "duration", "when", "bytes", "peer")


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
    """At most `max_spans` spans: neighbours of one rank and kind with a gap below a resolution become one.

    The resolution starts at a 20,000th of the whole and doubles until few enough are left; bytes are added up.
    """
    kept = sorted(spans, key=lambda s: (s.rank, s.kind, s.start_s))
    if len(kept) <= max_spans:
        return kept
    gap = (max(s.end_s for s in kept) - min(s.start_s for s in kept)) / 20_000 or 1e-9
    while len(kept) > max_spans:
        joined = _joined(kept, gap)
        if len(joined) == len(kept) and gap > 1e12:
            return joined[:max_spans]
        kept, gap = joined, gap * 2
    return kept


def _joined(spans: Sequence[Span], gap: float) -> list[Span]:
    out: list[Span] = []
    for s in spans:
        last = out[-1] if out else None
        if last and (last.rank, last.kind, last.step) == (s.rank, s.kind, s.step) and s.start_s - last.end_s <= gap:
            end = max(last.end_s, s.end_s)
            out[-1] = Span(s.rank, s.kind, s.step, -1, last.start_s, end, last.bytes + s.bytes, -1, s.stage, "")
        else:
            out.append(s)
    return out


def span_columns(spans: Sequence[Span], rank_labels: Sequence[str], origin_s: float = 0.0) -> dict[str, Columns]:
    """For every kind of `KINDS` the columns of its bars; row of rank r is y = -r. Unknown kinds count as waiting."""
    columns: dict[str, Columns] = {kind: {name: [] for name in _NAMES} for kind in KINDS}
    for s in spans:
        offset, height = LANES.get(s.kind, COMPUTE_LANE)
        duration = s.end_s - s.start_s
        label = " ".join(
            part for part in (s.kind, s.role, f"micro-batch {s.micro_batch}" if s.micro_batch >= 0 else "") if part
        )
        values = (
            s.start_s - origin_s,
            s.end_s - origin_s,
            offset - s.rank,
            height,
            f"{s.rank} · {rank_labels[s.rank]}" if 0 <= s.rank < len(rank_labels) else str(s.rank),
            label,
            s.step,
            short_seconds(duration),
            f"{short_seconds(s.start_s - origin_s)} – {short_seconds(s.end_s - origin_s)}",
            short_bytes(s.bytes) if s.bytes else "–",
            rank_labels[s.peer] if 0 <= s.peer < len(rank_labels) else "–",
        )
        target = columns.get(s.kind, columns["wait"])
        for name, value in zip(_NAMES, values, strict=True):
            target[name].append(value)
    return columns
