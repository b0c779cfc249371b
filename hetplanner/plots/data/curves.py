"""Points of curves: a search's events, smoothed series, label places."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetplanner.cluster.egress import has_unknown_prices
from hetplanner.cluster.model import Cluster
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
EARLIEST_S = 0.01
"""Left end of a search's logarithmic time axis."""
MAX_POINTS = 2000
"""A curve of more points than pixels is thinned."""


def value_text(value: float | None, objective: str) -> str:
    """The objective's value with its unit: seconds; dollars a million tokens; DT-FM's own seconds."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"${value:.4g}" if objective == "cost" else f"{value:.6g} s" if objective == "dtfm" else short_seconds(value)


def _field(event: Any, name: str) -> float:
    value = event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)
    return math.nan if value is None or not math.isfinite(value) else float(value)


EVENT_NAMES = ("seconds", "evaluations", "best", "low", "median", "high")


def event_columns(events: Sequence[Any], bound: float | None = None) -> Columns:
    """Columns of objects or mappings with these fields; what is missing or not finite becomes NaN.

    Columns: seconds (`searched_s`, at least `EARLIEST_S`), evaluations, best (of all events so far), and low, median,
    high: quantiles of the population, none of them below `bound`.
    """
    rows = [events[i] for i in thinned(len(events))]
    columns: Columns = {name: [_field(row, name) for row in rows] for name in EVENT_NAMES}
    columns["seconds"] = [_at_least(_field(row, "searched_s"), EARLIEST_S, EARLIEST_S) for row in rows]
    columns["best"] = np.fmin.accumulate(columns["best"]).tolist() if rows else []
    floor = -math.inf if bound is None else bound
    for name in ("low", "median", "high"):
        columns[name] = [_at_least(v, floor, math.nan) for v in columns[name]]
    return columns


def band_columns(columns: Columns) -> Columns:
    """The corners of the staircases that bound the population: seconds, low, high."""
    seconds, low = stairs(columns["seconds"], columns["low"])
    return {"seconds": seconds, "low": low, "high": stairs(columns["seconds"], columns["high"])[1]}


def _at_least(value: float, floor: float, otherwise: float) -> float:
    return max(value, floor) if math.isfinite(value) else otherwise


def stairs(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """The corners of a staircase through these points: each value holds until the next point."""
    steps_x = [x[0]] + [v for after in x[1:] for v in (after, after)] if len(x) else []
    steps_y = [v for before in y[:-1] for v in (before, before)] + [y[-1]] if len(y) else []
    return steps_x, steps_y


def earlier_columns(searches: Sequence[Sequence[Any]]) -> Columns:
    """seconds and best of several searches in one line, with a gap (NaN) between two."""
    columns: Columns = {"seconds": [], "best": []}
    for events in searches:
        one = event_columns(events)
        for name, column in columns.items():
            column.extend([math.nan] * bool(column) + one[name])
    return columns


def thinned(count: int, limit: int = MAX_POINTS) -> list[int]:
    """Indices of at most `limit` evenly chosen points, the first and the last among them."""
    if count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


def value_range(
    best: Sequence[float], population: Sequence[float], levels: Sequence[float], most: float = 3.0
) -> tuple[float, float]:
    """Lower and upper end of the value axis: all of the curve that matters, no more than `most` times the best.

    What lies above is clipped, or one hopeless baseline would flatten the curve. Of the population's values a tenth may
    lie above.
    """
    known = [v for v in (*best, *levels) if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low = min(known)
    others = sorted(v for v in population if math.isfinite(v))
    wanted = max([*known, *others[int(0.9 * (len(others) - 1)) :][:1]])
    lowest_best = min((b for b in best if math.isfinite(b)), default=low)
    high = min(wanted, most * lowest_best) if lowest_best > 0 else wanted
    room = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    return low - 1.5 * room, high + 1.8 * room


def left_out_of(objective: str, cluster: Cluster | None) -> str:
    """What a value of the objective leaves out on this cluster, for an axis; empty: nothing."""
    is_whole = objective != "cost" or cluster is None or not has_unknown_prices(cluster)
    return "" if is_whole else "without egress at unknown prices"


def axis_label(unit: str, left_out: str) -> str:
    """Of the axis of objectives."""
    words = ", ".join(filter(None, (unit, left_out)))
    return f"objective ({words})" if words else "objective"


def level_columns(levels: Mapping[str, float], unit: str, top: float, span: float) -> Columns:
    """Horizontal lines with labels: y (clipped to `top`), text, apart.

    Labels whose lines are closer than 6 % of `span` are moved up until they can be read.
    """
    rows = sorted((v, name) for name, v in levels.items() if math.isfinite(v))
    columns: Columns = {"y": [], "label_y": [], "text": []}
    last = -math.inf
    for value, name in rows:
        y = min(value, top)
        last = max(y, last + 0.06 * span)
        columns["y"].append(value)
        columns["label_y"].append(last)
        columns["text"].append(f"{name} {value:.4g}{' ' + unit if unit else ''}{' ↑' if value > top else ''}")
    return columns


def series_columns(steps: Sequence[float], values: Sequence[float]) -> Columns:
    """x and y of a series of equal lengths (the shorter counts), thinned; not finite becomes NaN."""
    count = min(len(steps), len(values))
    chosen = thinned(count)
    clean = [float(values[i]) for i in chosen]
    return {
        "x": [float(steps[i]) for i in chosen],
        "y": [v if math.isfinite(v) else math.nan for v in clean],
    }


def rolling_median(values: Sequence[float], window: int = 9) -> list[float]:
    """Median of each value with those before it, `window` in all; NaN is left out."""
    if not len(values):
        return []
    padded = np.concatenate([np.full(window - 1, np.nan), np.asarray(values, dtype=np.float64)])
    sorted_W = np.sort(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)  # NaN goes last
    known = np.isfinite(sorted_W).sum(axis=1)
    row = np.arange(len(values))
    low, high = sorted_W[row, np.maximum(known - 1, 0) // 2], sorted_W[row, known // 2]
    return ((low + high) / 2).tolist()


def without_spikes(values: Sequence[float], most: float = 4.0) -> list[float]:
    """The values, cut at `most` times their median: a first step that compiles must not flatten all others."""
    known = [v for v in values if math.isfinite(v)]
    limit = most * float(np.median(known)) if known else 0.0
    return [min(v, limit) for v in known]


def padded_range(values: Sequence[float], share: float = 0.07, floor: float | None = None) -> tuple[float, float]:
    """Ends of an axis that shows all finite values with room; (0, 1) for none."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = share * (high - low) or 0.1 * abs(high) or 1.0
    start = low - room if floor is None else max(floor, low - room)
    return start, high + room


TRIED_NAMES = ("stages", "value", "size", "kind", "shape", "text")
SLOWEST_SHOWN = 4.0
"""Of the shapes that a search tried, those are shown whose best plan is at most so many times the best of all."""


def tried_columns(tried: Sequence[Any], unit: str) -> tuple[Columns, int]:
    """One row for every shape that a search tried and that is worth showing, and how many are not.

    Columns: stages, value (in the objective's unit), size (of its mark: the more annealing, the larger), kind ('best',
    'annealed', 'scored'), shape ('4 × 16'), text (its value with the unit, and its annealing runs).
    """
    columns: Columns = {name: [] for name in TRIED_NAMES}
    limit = min((shape.value for shape in tried), default=0.0) * SLOWEST_SHOWN
    shown = [shape for shape in tried if shape.value <= limit]
    for k, shape in enumerate(shown):
        runs = f"{shape.chains} annealing run{'s' * (shape.chains != 1)}" if shape.chains else "scored, not annealed"
        kind = "best" if k == 0 else "annealed" if shape.chains else "scored"
        value = short_seconds(shape.value) if unit == "s" else f"{shape.value:.3g} {unit}"
        row = shape.stages, shape.value, 6.0 + 2.0 * math.sqrt(shape.chains), kind, shape.label, f"{value}; {runs}"
        for name, item in zip(TRIED_NAMES, row, strict=True):
            columns[name].append(item)
    return columns, len(tried) - len(shown)
