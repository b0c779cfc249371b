"""A swarm over a preemption trace as curves, and the square-cube law as lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetplanner.cost.square_cube import SquareCubePoint
from hetplanner.elastic.forecast.forecast import Forecast
from hetplanner.elastic.forecast.swarm_run import SwarmRun
from hetplanner.runs.reports.utilisation import Utilisation
from hetplanner.units import short_rate

Columns = dict[str, list[Any]]
MOST_INTERVALS = 600
"""Thousands of moments at which something changes are drawn as means over so many intervals."""


def trace_columns(run: SwarmRun, intervals: int = MOST_INTERVALS) -> Columns:
    """Means over equal intervals of a trace, each at its start; the last row repeats the last value at the end.

    Columns: hours, throughput and optimal (micro-batches per second), share, peers.
    """
    edges = np.linspace(run.time_s_E[0], run.time_s_E[-1], intervals + 1)
    columns: Columns = {"hours": (edges / 3600.0).tolist()}
    for name, value_E in (("throughput", run.throughput_E), ("optimal", run.optimal_E), ("peers", run.peers_E)):
        mean = _means(run.time_s_E, value_E, edges)
        columns[name] = [*mean.tolist(), float(mean[-1])]
    pairs = zip(columns["throughput"], columns["optimal"], strict=True)
    columns["share"] = [have / best if best > 0 else float("nan") for have, best in pairs]
    return columns


def policy_columns(runs: Mapping[str, SwarmRun]) -> Columns:
    """A row for every run: label, throughput, share of the optimal, moves, text."""
    return {
        "label": list(runs),
        "throughput": [run.mean_throughput for run in runs.values()],
        "share": [run.share_of_optimal for run in runs.values()],
        "moves": [len(run.moves) for run in runs.values()],
        "text": [f"{name}: {run.share_of_optimal:.1%}, {len(run.moves)} moves" for name, run in runs.items()],
    }


def forecast_columns(found: Mapping[str, Forecast]) -> Columns:
    """A row for every simulated seed, policy by policy from the top: label, y, tokens (per second), share, text."""
    rows: Columns = {name: [] for name in ("label", "y", "tokens", "share", "text")}
    for i, (label, each) in enumerate(found.items()):
        spread = each.tokens_per_s
        for tokens, share in zip(each.tokens_of_runs, spread.shares, strict=True):
            text = f"{label}: {spread.mean:,.0f} tokens/s, {each.share_of_optimal:.1%} of the optimal"
            for name, value in zip(rows, (label, float(-i), tokens, share, text), strict=True):
                rows[name].append(value)
    return rows


def square_cube_columns(points: Sequence[SquareCubePoint]) -> dict[str, Columns]:
    """By line: hidden, seconds, and for transfers utilisation; first `compute`, then `transfer at …` by bandwidth."""
    first = points[0].bandwidth_bytes_per_s if points else 0.0
    own = [p for p in points if p.bandwidth_bytes_per_s == first]
    lines: dict[str, Columns] = {"compute": {"hidden": [p.hidden for p in own], "seconds": [p.compute_s for p in own]}}
    for rate in dict.fromkeys(p.bandwidth_bytes_per_s for p in points):
        there = [p for p in points if p.bandwidth_bytes_per_s == rate]
        lines[f"transfer at {short_rate(rate)}"] = {
            "hidden": [p.hidden for p in there],
            "seconds": [p.transfer_s for p in there],
            "utilisation": [p.utilisation for p in there],
        }
    return lines


def utilisation_columns(points: Sequence[Utilisation]) -> Columns:
    """A row for every run, by width: hidden, predicted, measured, least, most, error."""
    rows = sorted(points, key=lambda point: point.hidden)
    names = ("hidden", "predicted", "measured", "least", "most", "error")
    return {name: [getattr(point, name) for point in rows] for name in names}


def _means(time_s_E: np.ndarray, value_E: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Means between edges of what holds each value until the next moment."""
    total_E = np.concatenate([[0.0], np.cumsum(np.diff(time_s_E) * value_E[:-1])])
    # Of moments that coincide the last one counts: an empty interval adds nothing, so either is right.
    mean: np.ndarray = np.diff(np.interp(edges, time_s_E, total_E)) / np.diff(edges)
    return mean
