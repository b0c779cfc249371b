"""How fast a swarm could train: the best smallest capacity of any assignment, bounded from above, and a good one.

Legend of array suffixes: P peers, S stages.
"""

from __future__ import annotations

import numpy as np

from hetplanner.elastic.rebalancing.swarm_view import FloatArray, IntArray

GRAIN = 1e6
"""Speeds are looked at in millionths of the slowest for a common unit: 1, 1.5 and 3 have 0.5, unrelated ones none."""
SAME = 1e-9
"""Speeds this close (relative) to a multiple of the unit are one."""


def bound_throughput(speed_P: FloatArray, load_S: FloatArray) -> float:
    """Micro-batches per second that no assignment of these peers to stages can exceed.

    Any k peers leave at least S - k stages to the others: the fastest k those with the least work (k = 0: all speeds
    over all loads). And where stages are equal, sums of speeds are multiples of the speeds' common unit.

    Source: ours (the usual bound of machine covering).
    """
    stages = len(load_S)
    if len(speed_P) < stages:
        return 0.0
    rest_P = np.cumsum(np.sort(speed_P))[::-1][:stages]
    least_S = np.cumsum(np.sort(load_S))[::-1]
    best = float((rest_P / least_S).min())
    unit = _common_unit(speed_P) if np.ptp(load_S) == 0 else None
    if unit is None:
        return best
    load = float(load_S[0])
    return float(np.floor(best * load / unit * (1 + SAME))) * unit / load


def _common_unit(speed_P: FloatArray) -> float | None:
    """The largest speed of which all are multiples; None if they have none."""
    scaled_P = np.rint(speed_P / speed_P.min() * GRAIN).astype(np.int64)
    times_P = scaled_P // np.gcd.reduce(scaled_P)
    unit = float(speed_P.sum() / times_P.sum())
    return unit if np.allclose(times_P * unit, speed_P, rtol=SAME, atol=0.0) else None


def spread_peers(speed_P: FloatArray, load_S: FloatArray) -> IntArray:
    """A stage for every peer: the fastest first, each to the stage with the least capacity so far."""
    have_S, stage_P = np.zeros(len(load_S)), np.zeros(len(speed_P), dtype=np.int64)
    for peer in np.argsort(-speed_P, kind="stable"):
        stage = int(np.argmin(have_S))
        stage_P[peer] = stage
        have_S[stage] += speed_P[peer] / load_S[stage]
    return stage_P
