"""What a trace of a plan's run shows: seconds of every kind of work, of every message, of reductions.

Legend of array suffixes: none; everything is by rank, stage or pair of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TypeVar

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import groups_performed, reduction_groups
from hetplanner.plan.trace import Span, Trace

K = TypeVar("K")

# A send whose span is no longer than this was not timed on the wire (a real network tells its sender nothing).
UNTIMED_S = 1e-7
# A message that starts this much later after it was made than others do has waited for its link. So many such messages,
# and most of them, must show the same wire time, within this share.
QUEUED_S = 1e-4
LEAST_QUEUED, ALIKE = 3, 0.02
OUTLIER = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A median or mean, and of how many."""

    seconds: float
    count: int


@dataclass(frozen=True)
class Observations:
    """Medians of a trace, and means of work.

    Attributes:
        forward, backward: by (rank, stage), one micro-batch.
        optimizer: by rank.
        transit: by (source, target, bytes), from hand-over to arrival: latency and wire.
        wire: by (source, target, bytes), wire time alone, of messages behind which others waited for the link.
        taking: by rank, from arrival (or asking, if later) until a message is taken.
        handing: by (source, target, bytes), from the end of what made a message until the rank goes on.
        reduce: by reduction group, from the moment when its last member came until all have ended.
    """

    forward: dict[tuple[int, int], Seen]
    backward: dict[tuple[int, int], Seen]
    optimizer: dict[int, Seen]
    transit: dict[tuple[int, int, int], Seen]
    wire: dict[tuple[int, int, int], Seen]
    taking: dict[int, Seen]
    handing: dict[tuple[int, int, int], Seen]
    reduce: dict[int, Seen]


def observe_trace(trace: Trace, plan: Plan) -> Observations:
    """Medians of a trace; its first step is left out where there are others.

    Args:
        trace: simulated or measured.
        plan: what was run.

    Raises:
        InvalidInput: if the trace is empty or is one of another plan.
    """
    check_trace(trace, plan)
    first = min(span.step for span in trace.spans)
    warm = [span for span in trace.spans if span.step > first] or list(trace.spans)
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in warm:
        by_rank[span.rank].append(span)
    stage_of = [place[0][0] for place in plan.places_of_rank]
    work: dict[str, dict[tuple[int, int], list[float]]] = {
        k: defaultdict(list) for k in ("forward", "backward", "step")
    }
    for span in warm:
        if span.kind in work:
            stage = stage_of[span.rank] if span.stage < 0 or span.kind == "step" else span.stage
            work[span.kind][span.rank, stage].append(span.end_s - span.start_s)
    transit, taking = _messages(warm)
    sends = _sends(by_rank)
    return Observations(
        forward=_means(work["forward"]),
        backward=_means(work["backward"]),
        optimizer={rank: seen for (rank, _), seen in _means(work["step"]).items()},
        transit=transit,
        taking=taking,
        wire=_queued(sends),
        handing=_handing(sends),
        reduce=_reductions(warm, plan),
    )


def check_trace(trace: Trace, plan: Plan) -> None:
    """Refuses a trace that says nothing, or is of another plan. Raises InvalidInput."""
    if not any(span.kind in ("forward", "backward") for span in trace.spans):
        raise InvalidInput("trace: holds no forward or backward span; run or simulate at least one whole step")
    if trace.rank_labels != plan.ranks:
        missing = [d for d in plan.ranks if d not in trace.rank_labels]
        other = [d for d in trace.rank_labels if d not in plan.ranks]
        raise InvalidInput(
            f"trace: is one of another plan: {len(trace.rank_labels)} ranks, the plan has {len(plan.ranks)}"
            + (f"; ranks of the trace alone: {', '.join(other[:3])}" if other else "")
            + (f"; of the plan alone: {', '.join(missing[:3])}" if missing else "")
            + ("" if other or missing else "; the same devices in another order")
            + "; give the plan that was run"
        )
    odd = next((s for s in trace.spans if not 0 <= s.rank < len(plan.ranks) or s.peer >= len(plan.ranks)), None)
    if odd is not None:
        raise InvalidInput(f"trace: a {odd.kind} span names rank {odd.rank} and peer {odd.peer}, which are not there")
    places = set(plan.chunks)
    for span in trace.spans:
        if span.kind in ("forward", "backward") and span.stage >= 0 and (span.rank, span.stage) not in places:
            raise InvalidInput(
                f"trace: rank {span.rank} ({trace.rank_labels[span.rank]}) computes stage {span.stage}, which the plan"
                " gives to others; give the plan that was run"
            )


def _means(values: dict[K, list[float]]) -> dict[K, Seen]:
    """Means, since a step is a sum; what took many times as long as usual counts as that many times."""
    found = {}
    for key, seconds in values.items():
        most = OUTLIER * median(seconds)
        found[key] = Seen(fmean(min(s, most) for s in seconds), len(seconds))
    return found


def _medians(values: dict[K, list[float]]) -> dict[K, Seen]:
    return {key: Seen(median(found), len(found)) for key, found in values.items()}


def _messages(spans: list[Span]) -> tuple[dict[tuple[int, int, int], Seen], dict[int, Seen]]:
    """Transits by pair and size, and what taking a message costs a rank."""
    sends = {(s.step, s.micro_batch, s.role, s.stage, s.rank, s.peer): s for s in spans if s.kind == "send"}
    transit: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    taking: dict[int, list[float]] = defaultdict(list)
    for span in spans:
        sent = sends.get((span.step, span.micro_batch, span.role, span.stage, span.peer, span.rank))
        if span.kind != "recv" or sent is None:
            continue
        if sent.end_s - sent.start_s > UNTIMED_S:
            transit[sent.rank, span.rank, sent.bytes].append(sent.end_s - sent.start_s)
            taking[span.rank].append(max(span.end_s - max(span.start_s, sent.end_s), 0.0))
        elif span.start_s <= sent.start_s:
            # The receiver waited all the time, so its end tells the arrival; taking it is part of that.
            transit[sent.rank, span.rank, sent.bytes].append(span.end_s - sent.start_s)
    return _medians(transit), _medians(taking)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A send, when its message was made, and when the rank did the next thing (None at the end)."""

    span: Span
    made_s: float
    next_s: float | None


def _sends(by_rank: dict[int, list[Span]]) -> list[_Sent]:
    """Every send with its neighbours: nothing but a send lies between a task and what follows it."""
    found = []
    made_by = {"activation": "forward", "gradient": "backward"}
    for spans in by_rank.values():
        own = sorted((s for s in spans if s.kind != "send"), key=lambda s: (s.start_s, s.end_s))
        position = {(s.step, s.micro_batch, s.kind, s.stage): i for i, s in enumerate(own)}
        for sent in (s for s in spans if s.kind == "send"):
            stage = sent.stage if sent.role == "activation" else sent.stage + 1
            kind = made_by.get(sent.role, "")
            i = position.get((sent.step, sent.micro_batch, kind, stage))
            if i is None:
                i = position.get((sent.step, sent.micro_batch, kind, -1))
            if i is not None:
                found.append(_Sent(sent, own[i].end_s, own[i + 1].start_s if i + 1 < len(own) else None))
    return found


def _handing(sends: list[_Sent]) -> dict[tuple[int, int, int], Seen]:
    """How long ranks are held up by their sends."""
    held: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for sent in sends:
        if sent.next_s is not None:
            held[sent.span.rank, sent.span.peer, sent.span.bytes].append(max(sent.next_s - sent.made_s, 0.0))
    return _medians(held)


def _queued(sends: list[_Sent]) -> dict[tuple[int, int, int], Seen]:
    """Wire times of messages behind which another one waited for the link: from its start to the other's."""
    by_pair: dict[tuple[int, int], list[_Sent]] = defaultdict(list)
    for sent in sends:
        if sent.span.end_s - sent.span.start_s > UNTIMED_S:
            by_pair[sent.span.rank, sent.span.peer].append(sent)
    wire: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for (rank, peer), found in by_pair.items():
        found.sort(key=lambda sent: sent.span.start_s)
        # The shortest way from task to link is that of a free link; encoding may well take half as long again.
        waited_s = 2.0 * min(sent.span.start_s - sent.made_s for sent in found) + QUEUED_S
        for before, sent in pairwise(found):
            between_s = sent.span.start_s - before.span.start_s
            is_queued = sent.span.start_s - sent.made_s > waited_s and before.span.step == sent.span.step
            if is_queued and between_s <= before.span.end_s - before.span.start_s + UNTIMED_S:
                wire[rank, peer, before.span.bytes].append(between_s)
    return {key: seen for key, seen in _medians(wire).items() if _agree(wire[key], seen.seconds)}


def _agree(seconds: list[float], middle_s: float) -> bool:
    """Whether there are enough wire times, most of them alike. Late starts on a busy machine have any length."""
    alike = sum(abs(s - middle_s) <= ALIKE * middle_s for s in seconds)
    return alike >= max(LEAST_QUEUED, 0.5 * len(seconds))


def _reductions(spans: list[Span], plan: Plan) -> dict[int, Seen]:
    """Reductions from the moment when the last member came, so without waiting for others.

    Every rank performs its groups in their order, which tells whose reduction a span is.
    """
    groups = reduction_groups(plan)
    by_rank: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in sorted((s for s in spans if s.kind == "reduce"), key=lambda s: s.start_s):
        by_rank[span.step, span.rank].append(span)
    members: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for (step, rank), own in by_rank.items():
        for group, span in zip(groups_performed(plan, groups, rank, len(own)) or (), own, strict=False):
            members[step, group].append(span)
    lasted: dict[int, list[float]] = defaultdict(list)
    for (_, group), found in members.items():
        if len(found) == len(groups[group].ranks):
            lasted[group].append(max(s.end_s for s in found) - max(s.start_s for s in found))
    return _medians(lasted)
