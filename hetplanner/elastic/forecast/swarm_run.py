"""What became of a swarm over a preemption trace: throughput against the optimum, moves, and the spread over seeds.

Legend of array suffixes: E moments at which something changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hetplanner.elastic.rebalancing.swarm_view import FloatArray, Move
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing


@dataclass(frozen=True)
class MoveAt:
    """A move and when it began."""

    time_s: float
    move: Move


@dataclass(frozen=True, eq=False)
class SwarmRun:
    """What a policy made of a trace.

    Attributes:
        time_s_E: from this moment on the values below hold; the last is the trace's end.
        throughput_E: micro-batches per second, the smallest serving capacity.
        optimal_E: what no placement of the peers that are alive could exceed, moves and downloads free.
        loaded_optimal_E: the same of the peers that have been there for a download, which is the earliest that a
            peer can serve at all.
        peers_E: live peers.
        moves: of peers that changed their stage.
    """

    trace: str
    settings: Rebalancing
    time_s_E: FloatArray
    throughput_E: FloatArray
    optimal_E: FloatArray
    loaded_optimal_E: FloatArray
    peers_E: FloatArray
    moves: tuple[MoveAt, ...]

    @property
    def mean_throughput(self) -> float:
        """Micro-batches per second over the whole trace."""
        return _mean(self.time_s_E, self.throughput_E)

    @property
    def share_of_optimal(self) -> float:
        """Of what free moves and downloads would allow; 1 where nothing could be trained."""
        return _share(self.mean_throughput, _mean(self.time_s_E, self.optimal_E))

    @property
    def share_of_loaded(self) -> float:
        """Of what free moves would allow, if only who joins has to download."""
        return _share(self.mean_throughput, _mean(self.time_s_E, self.loaded_optimal_E))


@dataclass(frozen=True)
class ThroughputSpread:
    """Expected throughput over several seeds of a trace, and how far runs lie apart.

    Attributes:
        mean: micro-batches per second, over all runs.
        p05: a run in twenty is slower.
        p95: a run in twenty is faster.
        shares: every run's share of the optimal.
    """

    mean: float
    p05: float
    p95: float
    shares: tuple[float, ...]


def spread_over_seeds(runs: Iterable[SwarmRun]) -> ThroughputSpread:
    """Expected throughput and its spread over runs (of traces with unlike seeds). Raises InvalidInput for none."""
    found = list(runs)
    if not found:
        raise InvalidInput("runs: must hold at least one run")
    rates = np.array([run.mean_throughput for run in found])
    low, high = np.quantile(rates, [0.05, 0.95])
    return ThroughputSpread(float(rates.mean()), float(low), float(high), tuple(run.share_of_optimal for run in found))


def _mean(time_s_E: FloatArray, value_E: FloatArray) -> float:
    return float((np.diff(time_s_E) * value_E[:-1]).sum() / (time_s_E[-1] - time_s_E[0]))


def _share(mean: float, optimal: float) -> float:
    return mean / optimal if optimal > 0 else 1.0
