"""A swarm over a preemption trace as a fluid: throughput is the smallest stage's capacity at every moment.

Peers join, die, download and move by a rebalancer; between two such events nothing changes, so time goes from event to
event. Micro-batches, links and averaging are not modelled: this is what placement alone makes of a trace.

Legend of array suffixes: L lives of the trace, P live peers, S stages, E moments at which something changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hetplanner.elastic.forecast.preemptions import PreemptionTrace
from hetplanner.elastic.forecast.swarm_run import MoveAt, SwarmRun
from hetplanner.elastic.rebalancing.capacity import bound_throughput, spread_peers
from hetplanner.elastic.rebalancing.policies import REBALANCERS, place_joiner
from hetplanner.elastic.rebalancing.swarm_view import FloatArray, SwarmView
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing

QUEUE_SLACK = 1 / 64
"""A stage at its limit has a mean queue of 64: what is in flight bounds it."""
MAX_STAGES = 1024

# Of what happens at the same moment the dead are known before any peer is placed, and periods end last.
LEAVE, READY, JOIN, NOTICE, TICK = range(5)


def simulate_swarm(
    trace: PreemptionTrace,
    load_S: Sequence[float],
    settings: Rebalancing,
    *,
    download_s: float = 120.0,
    notice_s: float = 0.0,
    speed_noise: float = 0.0,
    seed: int = 0,
    first_stages: Mapping[str, int] | None = None,
) -> SwarmRun:
    """Throughput of a swarm over a trace.

    A peer that is present at time 0 has its stage's state. Peers are spread by speed over the stages unless told
    otherwise. All others join at the stage that the settings say and download first.

    Args:
        trace: when each peer is present.
        load_S: work units of a micro-batch in each stage.
        settings: the policy.
        download_s: seconds from joining or moving until a peer serves.
        notice_s: seconds before its preemption at which a peer is told (some clouds give 30 s or 120 s).
        speed_noise: standard deviation of the logarithm of measured over true speeds, drawn anew every period.
        seed: of a random placement of joiners, and of the noise.
        first_stages: stage by peer, of all peers present at time 0.

    Raises:
        InvalidInput: no stages, too many, a time or noise below 0, or a peer of the start without a stage.
    """
    if not 1 <= len(load_S) <= MAX_STAGES or not min(load_S) > 0:
        raise InvalidInput(f"load_S: must hold 1 to {MAX_STAGES} loads above 0, got {len(load_S)}")
    for name, value in (("download_s", download_s), ("notice_s", notice_s), ("speed_noise", speed_noise)):
        if not 0 <= value < float("inf"):
            raise InvalidInput(f"{name}: must be 0 or more and finite, got {value:g}")
    loads, rng = np.asarray(load_S, dtype=np.float64), np.random.default_rng(seed)
    swarm = _Swarm(trace, loads, settings, download_s, notice_s, speed_noise, rng)
    if first_stages is not None:
        swarm.start_at(first_stages)
    swarm.play()
    return swarm.result()


class _Swarm:
    """The state of one simulation; rows are lives of the trace."""

    def __init__(
        self,
        trace: PreemptionTrace,
        load_S: FloatArray,
        settings: Rebalancing,
        download_s: float,
        notice_s: float,
        speed_noise: float,
        rng: np.random.Generator,
    ) -> None:
        self.trace, self.load_S, self.settings, self.download_s, self.rng = trace, load_S, settings, download_s, rng
        self.rebalancer, self.speed_noise = REBALANCERS[settings.policy], speed_noise
        count = len(trace.lives)
        self.names = [f"{life.peer}#{i}" for i, life in enumerate(trace.lives)]
        self.row = {name: i for i, name in enumerate(self.names)}
        self.speed_L = np.array([life.speed for life in trace.lives])
        self.measured_L = self.speed_L * self._noise()
        self.stage_L = np.zeros(count, dtype=np.int64)
        self.serving_L, self.alive_L, self.loaded_L, self.leaving_L = np.zeros((4, count), dtype=np.bool_)
        self.moves: list[MoveAt] = []
        self.samples: list[tuple[float, ...]] = []
        self.optimal = (0.0, 0.0)
        self.changed, self.now_s = True, 0.0
        self.events: list[tuple[float, int, int]] = [(settings.period, TICK, -1)] * (settings.policy != "none")
        for row, life in enumerate(trace.lives):
            self.events += [(life.start, JOIN, row)] * (life.start > 0)
            if life.end < trace.duration:
                told = [(max(life.end - notice_s, life.start), NOTICE, row)] * (notice_s > 0)
                self.events += [*told, (life.end, LEAVE, row)]
        heapq.heapify(self.events)
        first = np.array([life.start == 0 for life in trace.lives])
        self.stage_L[first] = spread_peers(self.speed_L[first], load_S)
        self.serving_L[first] = self.alive_L[first] = self.loaded_L[first] = True

    def start_at(self, stages: Mapping[str, int]) -> None:
        """Places the peers present at time 0. Raises InvalidInput."""
        for row in np.flatnonzero(self.alive_L):
            peer = self.trace.lives[row].peer
            if not 0 <= stages.get(peer, -1) < len(self.load_S):
                raise InvalidInput(f"first_stages: {peer!r:.60} must have a stage from 0 to {len(self.load_S) - 1}")
            self.stage_L[row] = stages[peer]

    def play(self) -> None:
        """From the first to the last event, then one sample more at the trace's end."""
        self._measure_optimal()
        self._act(on_event=True)
        self._sample(0.0)
        while self.events and self.events[0][0] < self.trace.duration:
            self.now_s = self.events[0][0]
            kinds = set()
            while self.events and self.events[0][0] == self.now_s:
                _, kind, row = heapq.heappop(self.events)
                self._apply(kind, row)
                kinds.add(kind)
            if kinds != {TICK}:
                self._measure_optimal()
            self._act(on_event=TICK not in kinds)
            self._sample(self.now_s)
        self._sample(self.trace.duration)

    def _apply(self, kind: int, row: int) -> None:
        if kind == TICK:
            heapq.heappush(self.events, (self.now_s + self.settings.period, TICK, -1))
            self.measured_L = self.speed_L * self._noise()
            self.changed |= self.speed_noise > 0
            return
        self.changed = True
        if kind == JOIN:
            self.stage_L[row] = place_joiner(self._view(), self.settings, self.rng)
            self.alive_L[row] = True
            heapq.heappush(self.events, (self.now_s + self.download_s, READY, row))
        elif kind == READY:
            self.serving_L[row] = self.loaded_L[row] = self.alive_L[row]
        elif kind == NOTICE:
            self.leaving_L[row] = True
        else:
            self.alive_L[row] = self.serving_L[row] = self.loaded_L[row] = False

    def _act(self, on_event: bool) -> None:
        """Lets the policy move peers: ours until it is content, the paper's one peer a period."""
        if not self.changed or (on_event and not self.rebalancer.on_events):
            return
        for _ in range(len(self.load_S) if self.rebalancer.on_events else 1):
            move = self.rebalancer.propose(self._view(), self.settings)
            if move is None:
                self.changed = False
                return
            row = self.row[move.peer]
            self.stage_L[row], self.serving_L[row] = move.to_stage, False
            heapq.heappush(self.events, (self.now_s + self.download_s, READY, row))
            self.moves.append(MoveAt(self.now_s, move))

    def _noise(self) -> FloatArray | float:
        return np.exp(self.rng.normal(0.0, self.speed_noise, len(self.speed_L))) if self.speed_noise else 1.0

    def _view(self) -> SwarmView:
        rows = np.flatnonzero(self.alive_L)
        if self.settings.policy == "queue":
            # Mean queues of a stage's peers are equal; real ones are not, so any of them may be the shortest.
            rows = self.rng.permutation(rows)
        view = SwarmView(
            peers=[self.names[row] for row in rows],
            stage_P=self.stage_L[rows],
            speed_P=self.measured_L[rows],
            serving_P=self.serving_L[rows],
            leaving_P=self.leaving_L[rows],
            load_S=self.load_S,
            download_s=self.download_s,
        )
        return replace(view, queue_P=fluid_queues(view)) if self.settings.policy == "queue" else view

    def _measure_optimal(self) -> None:
        found = (bound_throughput(self.speed_L[here], self.load_S) for here in (self.alive_L, self.loaded_L))
        self.optimal = (next(found), next(found))

    def _sample(self, time_s: float) -> None:
        on = self.serving_L
        have_S = np.bincount(self.stage_L[on], weights=self.speed_L[on], minlength=len(self.load_S)) / self.load_S
        self.samples.append((time_s, float(have_S.min()), *self.optimal, float(self.alive_L.sum())))

    def result(self) -> SwarmRun:
        """The run as arrays."""
        time_s_E, throughput_E, optimal_E, loaded_E, peers_E = np.array(self.samples).T
        return SwarmRun(
            self.trace.name, self.settings, time_s_E, throughput_E, optimal_E, loaded_E, peers_E, tuple(self.moves)
        )


def fluid_queues(view: SwarmView) -> FloatArray:
    """Micro-batches that wait at every peer: that of a queue with its stage's utilisation, equal within a stage.

    Peers are given work by their speed, so those of a stage are equally utilised. With an empty stage nothing flows;
    then the others count as if the weakest of them set the pace.
    """
    have_S = view.serving_S
    rate = float(have_S[have_S > 0].min(initial=np.inf))
    used_S = np.divide(rate, have_S, out=np.zeros_like(have_S), where=have_S > 0)
    queue_S = used_S / (1 - used_S + QUEUE_SLACK)
    return np.where(view.serving_P, queue_S[view.stage_P], 0.0)
