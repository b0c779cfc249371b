"""What a swarm could train if every download were chosen as well as possible without knowing the future.

At every moment the peers stand as they would best have stood a download ago, when a peer that serves now must have been
sent: all of them placed anew at once, moves free, none lost on the way. Peers that have died since then are missing. A
policy without foresight exceeds this only by luck, so it says how much of a gap to the optimum is the download's.

Legend of array suffixes: L lives of the trace, S stages, E moments at which something changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetplanner.elastic.forecast.preemptions import PreemptionTrace
from hetplanner.elastic.rebalancing.capacity import spread_peers
from hetplanner.elastic.rebalancing.swarm_view import FloatArray, IntArray


def delayed_throughput(trace: PreemptionTrace, load_S: Sequence[float], download_s: float) -> float:
    """Mean micro-batches per second over a trace of placements that are always the best of a download ago.

    Args:
        trace: when each peer is present.
        load_S: work units of a micro-batch in each stage.
        download_s: until a peer that joins or moves serves.
    """
    loads = np.asarray(load_S, dtype=np.float64)
    start_L = np.array([life.start for life in trace.lives])
    end_L = np.array([life.end if life.end < trace.duration else np.inf for life in trace.lives])
    speed_L = np.array([life.speed for life in trace.lives])
    changes = np.unique(np.concatenate([[0.0], start_L, end_L[np.isfinite(end_L)]]))
    time_E = np.unique(np.concatenate([changes, changes + download_s]))
    time_E = time_E[time_E < trace.duration]
    placed_E = np.maximum(np.searchsorted(changes, time_E - download_s, side="right") - 1, 0)
    throughput_E = np.zeros(len(time_E))
    now, stage_L = -1, np.full(len(start_L), -1)
    for e, placed in enumerate(placed_E):
        if placed != now:
            now, stage_L = int(placed), _placement(start_L, end_L, speed_L, loads, float(changes[placed]))
        on = (stage_L >= 0) & (end_L > time_E[e])
        have_S = np.bincount(stage_L[on], weights=speed_L[on], minlength=len(loads)) / loads
        throughput_E[e] = have_S.min()
    return float(np.diff(time_E, append=trace.duration) @ throughput_E / trace.duration)


def _placement(
    start_L: FloatArray, end_L: FloatArray, speed_L: FloatArray, load_S: FloatArray, time_s: float
) -> IntArray:
    """The stage of each peer present at a moment, -1 of the others."""
    there = (start_L <= time_s) & (end_L > time_s)
    stage_L = np.full(len(start_L), -1, dtype=np.int64)
    stage_L[there] = spread_peers(speed_L[there], load_S)
    return stage_L
