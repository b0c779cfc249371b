"""A front of step time and dollars: a point for every plan."""

import math
from collections.abc import Sequence
from typing import Any

from hetplanner.plan.estimate import left_out_text
from hetplanner.plots.data.search.comparisons import LOG_FROM
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
COLUMNS = ("step_s", "usd_per_mtoken", "step", "price", "left_out", "text")
"""What a point of a front that is still searched has; those of finished plans have more."""
ROOM = 0.06
"""Free share of a logarithmic axis beside the outermost points."""
LEAST_RATIO = 1.05
"""An axis spans at least this much, or a single point would stand on a meaningless scale."""


def point_columns(points: Sequence[tuple[float, float]], word: str = "tokens") -> Columns:
    """Columns of points on the way: those of `COLUMNS`; `word`: what a million of is priced."""
    return {
        **_values([s for s, _ in points], [usd for _, usd in points], word),
        "left_out": ["known at the end of the search"] * len(points),
        "text": ["still searching"] * len(points),
    }


def _values(steps_s: Sequence[float], usd_per_mtoken: Sequence[float], word: str) -> Columns:
    """Both values of each point, as numbers and in the words that the page has for them elsewhere."""
    return {
        "step_s": list(steps_s),
        "usd_per_mtoken": list(usd_per_mtoken),
        "step": [short_seconds(step_s) for step_s in steps_s],
        "price": [f"${usd:.3g} per million {word}" for usd in usd_per_mtoken],
    }


def front_columns(rows: Sequence[dict[str, Any]], word: str = "tokens") -> Columns:
    """Columns of a front's rows (:meth:`hetplanner.planners.step_time.pareto.ParetoFront.to_rows`).

    Columns: step_s, usd_per_mtoken, step and price (both in words), tokens_per_s, tokens_per_usd, egress (share of the
    dollars), left_out (what the dollars leave out, in words), stages, pipelines, devices, bottleneck, text (what stands
    beside the point: devices in use).
    """
    names = ("step_s", "usd_per_mtoken", "tokens_per_s", "tokens_per_usd", "stages", "pipelines", "devices")
    columns: Columns = {name: [row[name] for row in rows] for name in (*names, "bottleneck")}
    columns |= _values(columns["step_s"], columns["usd_per_mtoken"], word)
    columns["egress"] = [_egress(row) for row in rows]
    columns["left_out"] = [left_out_text(row["unpriced_egress_bytes"]) or "nothing" for row in rows]
    columns["text"] = [f"{row['devices']} device" + ("s" if row["devices"] != 1 else "") for row in rows]
    return columns


def front_axis(values: Sequence[float], words: float = 0.08) -> tuple[float, float, bool]:
    """Ends of an axis with room before the values and (for words beside them) behind, and whether it is logarithmic."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high > LOG_FROM * low:
        return low / (high / low) ** 0.08, high * (high / low) ** words, True
    span = (high - low) or abs(high) or 1.0
    return low - 0.08 * span, high + words * span, False


def log_ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows all values above 0 with room; (1, 10) for none."""
    known = [value for value in values if value > 0]
    if not known:
        return 1.0, 10.0
    low, high = min(known), max(known)
    ratio = max(high / low, LEAST_RATIO)
    middle = math.sqrt(low * high)
    return middle / ratio ** (0.5 + ROOM), middle * ratio ** (0.5 + ROOM)


def log_ticks(low: float, high: float) -> list[float]:
    """Round values inside a logarithmic axis: 1, 2, 3, 5 times powers of ten, or equal steps where it is short."""
    if not 0 < low < high:
        return []
    if high / low < 4:
        step = 10.0 ** math.floor(math.log10((high - low) / 2))
        step *= next(m for m in (5, 2, 1) if (high - low) / (m * step) >= 2)
        return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 3, 5) if high / low < 1000 else (1,)
    return [tick for e in powers for m in steps if low <= (tick := float(f"{m}e{e}")) <= high]


def named_points(xs: Sequence[float], ys: Sequence[float], least: float = 0.07) -> list[int]:
    """Points whose labels do not cover each other: the ends, and between them those this share of the axes apart."""
    if len(xs) < 3:
        return list(range(len(xs)))
    wide, high = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    kept = [0, len(xs) - 1]
    for i in range(1, len(xs) - 1):
        if all(abs(xs[i] - xs[k]) / wide + abs(ys[i] - ys[k]) / high > least for k in kept):
            kept.append(i)
    return sorted(kept)


def _egress(row: dict[str, Any]) -> float:
    total = (row["device_usd"] or 0.0) + (row["egress_usd"] or 0.0)
    return (row["egress_usd"] or 0.0) / total if total > 0 else 0.0
