"""Where a step's time goes, by the terms of an estimate, and what its links did: of simulated and measured traces.

A rank that waits for a message waits for two things: for the rank that makes it (bubble), and for the network to bring
it (pipeline transfer). A reduction waits for two things as well: for its last member, and for the exchange itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import groups_performed, reduction_groups
from hetplanner.plan.trace import Span, Trace

UNTIMED_S = 1e-7
"""A send whose span is no longer was not timed on the wire: a real network tells its sender nothing."""


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Seconds of a step, of one rank or as a mean over ranks; they add up to the step.

    Attributes:
        compute: forward and backward.
        pipeline_transfer: waiting for boundary messages that were made already.
        data_parallel: reductions, from the moment when their last member came.
        bubble: waiting for other ranks, whatever those wait for, and what is left over.
        optimizer: the update, with what it agrees on.
    """

    compute: float
    pipeline_transfer: float
    data_parallel: float
    bubble: float
    optimizer: float

    @property
    def step_s(self) -> float:
        """Their sum."""
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self, name) for name in TERMS}


TERMS = tuple(f.name for f in fields(StepTerms))


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Messages of one role from one rank to another, in one step.

    Attributes:
        transit_s: mean time from the end of what made a message to its arrival (queue, wire and latency); None where
            the network did not tell.
        wait_s: what the receiver spent waiting for them, in sum.
    """

    source: int
    target: int
    role: str
    messages: int
    bytes: int
    transit_s: float | None
    wait_s: float


def terms_of_ranks(trace: Trace, plan: Plan, step: int) -> list[StepTerms]:
    """The terms of one step, rank by rank.

    Args:
        trace: holds the step and the one before, whose end is its beginning.
        plan: what was simulated or run.
        step: which.
    """
    began_s = max((s.end_s for s in trace.spans if s.step == step - 1 and s.kind == "step"), default=0.0)
    spans = [s for s in trace.spans if s.step == step]
    ended_s = max((s.end_s for s in spans if s.kind == "step"), default=trace.end_s)
    sums: list[dict[str, float]] = [defaultdict(float) for _ in trace.rank_labels]
    made_s = _made_s(spans)
    for s in spans:
        row, start = sums[s.rank], max(s.start_s, began_s)
        if s.kind in ("forward", "backward"):
            row["compute"] += max(0.0, s.end_s - start)
        elif s.kind == "step":
            row["optimizer"] += max(0.0, s.end_s - start)
        elif s.kind == "recv":
            row["pipeline_transfer"] += max(0.0, s.end_s - max(start, made_s.get(_key(s, s.peer, s.rank), start)))
    for s, last_came_s in _reductions(spans, plan):
        sums[s.rank]["data_parallel"] += max(0.0, s.end_s - max(s.start_s, last_came_s, began_s))
    return [_completed(row, ended_s - began_s) for row in sums]


def _completed(row: dict[str, float], step_s: float) -> StepTerms:
    names = ("compute", "pipeline_transfer", "data_parallel", "optimizer")
    known = {name: row.get(name, 0.0) for name in names}
    return StepTerms(**known, bubble=max(0.0, step_s - sum(known.values())))


def mean_terms(rows: Sequence[StepTerms]) -> StepTerms:
    """The mean over ranks or steps."""
    return StepTerms(*(sum(getattr(row, f.name) for row in rows) / len(rows) for f in fields(StepTerms)))


def steps_with_beginning(trace: Trace) -> list[int]:
    """Steps whose predecessor is in the trace too, so that their beginning is known; step 0 alone knows its own."""
    steps = {span.step for span in trace.spans}
    return sorted(step for step in steps if step - 1 in steps) or sorted(steps & {0})


MessageKey = tuple[int, str, int, int, int]


def _key(span: Span, source: int, target: int) -> MessageKey:
    return span.micro_batch, span.role, span.stage, source, target


def _made_s(spans: Sequence[Span]) -> dict[MessageKey, float]:
    """When every message was made: the end of the forward or backward whose result it carries."""
    ends = {(s.rank, s.kind, s.stage, s.micro_batch): s.end_s for s in spans if s.kind in ("forward", "backward")}
    made = {}
    for s in spans:
        if s.kind == "send":
            kind, stage = ("forward", s.stage) if s.role == "activation" else ("backward", s.stage + 1)
            made[_key(s, s.rank, s.peer)] = ends.get((s.rank, kind, stage, s.micro_batch), s.start_s)
    return made


def _reductions(spans: Sequence[Span], plan: Plan) -> Iterator[tuple[Span, float]]:
    """Every reduce span, and when the last member of its group came.

    A rank performs its groups in their order, which tells whose reduction a span is.
    """
    groups = reduction_groups(plan)
    members: dict[int, list[Span]] = defaultdict(list)
    for rank in range(len(plan.ranks)):
        own = sorted((s for s in spans if s.kind == "reduce" and s.rank == rank), key=lambda s: s.start_s)
        of_rank = groups_performed(plan, groups, rank, len(own))
        if of_rank is None:
            yield from ((s, s.start_s) for s in own)
            continue
        for group, span in zip(of_rank, own, strict=True):
            members[group].append(span)
    for found in members.values():
        last_came_s = max(s.start_s for s in found)
        yield from ((s, last_came_s) for s in found)


def link_uses(trace: Trace, step: int) -> list[LinkUse]:
    """What boundary messages did in one step, by link and role.

    A run over real links does not tell when a message arrives. Where the receiver waited all the time, it was then.
    """
    spans = [s for s in trace.spans if s.step == step]
    made_s = _made_s(spans)
    taken = {_key(s, s.peer, s.rank): s for s in spans if s.kind == "recv"}

    def arrival_s(sent: Span, key: MessageKey) -> float | None:
        if sent.end_s - sent.start_s > UNTIMED_S:
            return sent.end_s
        return taken[key].end_s if key in taken and taken[key].start_s <= sent.start_s else None

    by_link: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for s in spans:
        if s.kind == "send":
            by_link[s.rank, s.peer, s.role].append(s)
    uses = []
    for (source, target, role), sends in sorted(by_link.items()):
        keys = [_key(s, source, target) for s in sends]
        arrivals = [arrival_s(s, key) for s, key in zip(sends, keys, strict=True)]
        timed = [at - made_s[key] for at, key in zip(arrivals, keys, strict=True) if at is not None]
        uses.append(
            LinkUse(
                source,
                target,
                role,
                len(sends),
                sum(s.bytes for s in sends),
                sum(timed) / len(timed) if timed else None,
                sum(taken[key].end_s - taken[key].start_s for key in keys if key in taken),
            )
        )
    return uses
