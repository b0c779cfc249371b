"""Planners side by side: a row each, a point for every seed."""

import math
from collections.abc import Sequence
from typing import Any

from hetplanner.planners.comparison import Comparison, PlannerSummary

Columns = dict[str, list[Any]]
LOG_FROM = 8.0
"""Values that differ by more than this factor are drawn on a logarithmic axis."""


def ordered_summaries(comparison: Comparison) -> list[PlannerSummary]:
    """The best median first, planners without a plan last."""
    return sorted(comparison.summaries(), key=lambda s: math.inf if s.median is None else s.median)


def search_columns(comparison: Comparison) -> Columns:
    """One row for every search that gave a plan.

    Columns: y (0 for the best planner, -1, …; seeds of one planner lie around it), planner, seed, value, gap, seconds,
    evaluations.
    """
    columns: Columns = {n: [] for n in ("y", "planner", "seed", "value", "gap", "seconds", "evaluations")}
    for row, summary in enumerate(ordered_summaries(comparison)):
        results = comparison.results(summary.planner)
        for place, (seed, result) in enumerate(results.items()):
            columns["y"].append(-row + _offset(place, len(results)))
            columns["planner"].append(summary.planner)
            columns["seed"].append(seed)
            columns["value"].append(result.value)
            columns["gap"].append(comparison.gap(result.value))
            columns["seconds"].append(result.seconds)
            columns["evaluations"].append(result.evaluations)
    return columns


def planner_columns(comparison: Comparison) -> Columns:
    """One row for every planner.

    Columns: y, planner, best, median, worst (NaN without a plan), text (median and ratio, or why there is no plan).
    """
    columns: Columns = {name: [] for name in ("y", "planner", "best", "median", "worst", "text")}
    for row, summary in enumerate(ordered_summaries(comparison)):
        columns["y"].append(-row)
        columns["planner"].append(summary.planner)
        for name in ("best", "median", "worst"):
            value = getattr(summary, name)
            columns[name].append(math.nan if value is None else value)
        columns["text"].append(_words(summary, comparison.baseline))
    return columns


def value_axis(values: Sequence[float], bound: float | None) -> tuple[float, float, bool]:
    """Ends of the value axis with room for words at the right, and whether it is logarithmic.

    A bound far below the values (less than half of the best) does not set the left end: it would squeeze the values.
    """
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0, False
    low, high = min(known), max(known)
    start = bound if bound is not None and bound >= 0.5 * low else low
    if low > 0 and high > LOG_FROM * low:
        span = high / start
        return start / span**0.06, high * span**0.45, True
    room = (high - start) or 0.1 * abs(high) or 1.0
    return start - 0.08 * room, high + 0.45 * room, False


def _offset(place: int, count: int) -> float:
    """Spreads the seeds of a planner over half of its row, the first on top, so that equal values can be told apart."""
    return 0.0 if count == 1 else 0.25 - 0.5 * place / (count - 1)


def _words(summary: PlannerSummary, baseline: str) -> str:
    if summary.median is None:
        return f"no plan: {(summary.error or 'not run yet')[:60]}"
    text = f"{summary.median:.4g}"
    if summary.ratio is not None and summary.planner != baseline:
        text += f" ({baseline}: {summary.ratio:.3g} ×)"
    if summary.failed:
        text += f", {summary.failed} without a plan"
    return text
