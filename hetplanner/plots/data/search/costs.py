"""Cost terms as stacked bars, and two traces compared term by term."""

from collections.abc import Mapping
from typing import Any

from hetplanner.cost.terms import term_label
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.trace import Trace
from hetplanner.plots.theme import ink_on, term_colours
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
READABLE_SHARE = 0.09


def term_order(estimates: Mapping[str, Estimate]) -> list[str]:
    """Terms of all estimates, in the order in which they first come."""
    return list(dict.fromkeys(term for estimate in estimates.values() for term in estimate.terms))


def cost_columns(estimates: Mapping[str, Estimate], readable: float = READABLE_SHARE) -> Columns:
    """One row for every term of every estimate; the first estimate is the top bar.

    Args:
        estimates: by label.
        readable: share of the longest bar from which a part carries its number.

    Columns: y (0, -1, …), label, term, left, right, middle (seconds), colour, ink, text ('' where too narrow),
    value, share.
    """
    terms = term_order(estimates)
    colours = term_colours(terms)
    longest = max((sum(e.terms.values()) for e in estimates.values()), default=0.0) or 1.0
    names = ("y", "label", "term", "left", "right", "middle", "colour", "ink", "text", "value", "share")
    columns: Columns = {name: [] for name in names}
    for row, (label, estimate) in enumerate(estimates.items()):
        whole = sum(estimate.terms.values()) or 1.0
        left = 0.0
        for term in terms:
            seconds = estimate.terms.get(term, 0.0)
            right = left + seconds
            text = short_seconds(seconds) if seconds >= readable * longest else ""
            values: tuple = (-row, label, term_label(term), left, right, (left + right) / 2, colours[term])
            values += (ink_on(colours[term]), text, short_seconds(seconds), f"{seconds / whole:.0%}")
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
            left = right
    return columns


def total_columns(estimates: Mapping[str, Estimate]) -> Columns:
    """One row for every estimate: y, label, total (seconds), text with the ratio to the first."""
    totals = [sum(e.terms.values()) for e in estimates.values()]
    first = totals[0] if totals else 0.0
    texts = [short_seconds(t) + (f"  (×{t / first:.2f})" if row and first else "") for row, t in enumerate(totals)]
    return {"y": [-row for row in range(len(totals))], "label": list(estimates), "total": totals, "text": texts}


COMPARED_TERMS = ("compute", "waiting for messages", "reduction", "rest")


def step_terms(trace: Trace) -> dict[str, float]:
    """Where the time of a step goes, in seconds, mean over ranks and steps; the parts add up to the mean step.

    `compute` is forward, backward and optimizer; `waiting for messages` is time in send, recv or wait spans while not
    computing; `reduction` likewise in reductions; `rest` is what is left.
    """
    totals = dict.fromkeys(COMPARED_TERMS, 0.0)
    parts = 0
    for step in sorted({s.step for s in trace.spans}):
        spans = trace.of_step(step).spans
        start, end = min(s.start_s for s in spans), max(s.end_s for s in spans)
        for rank in range(len(trace.rank_labels)):
            own = [s for s in spans if s.rank == rank]
            covered: list[tuple[float, float]] = []
            before = 0.0
            for term, kinds in _TERM_KINDS.items():
                covered = merged([*covered, *((s.start_s, s.end_s) for s in own if s.kind in kinds)])
                length = sum(b - a for a, b in covered)
                totals[term] += length - before
                before = length
            totals["rest"] += end - start - before
            parts += 1
    return {term: seconds / max(parts, 1) for term, seconds in totals.items()}


_TERM_KINDS = {
    "compute": {"forward", "backward", "step"},
    "waiting for messages": {"send", "recv", "wait"},
    "reduction": {"reduce"},
}


def merged(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of intervals as disjoint ones, in order."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union
