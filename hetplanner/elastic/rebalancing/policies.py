"""Which peer should serve another stage: the paper's policy and ours, as pure functions of a view of the swarm.

Both keep two guards: the last peer that serves a stage never leaves it, and nothing moves while all stages are equally
loaded. A coordinator asks every period (ours: also at every event) and carries out one move after the other, each at a
step boundary, until the answer is None.

Legend of array suffixes: P peers, S stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetplanner.elastic.rebalancing.swarm_view import BoolArray, IntArray, Move, SwarmView
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import RebalancerName, Rebalancing

EQUAL = 1e-9
"""Capacities (relative) and queues this close are equal: sums in another order differ in the last digits."""

Policy = Callable[[SwarmView, Rebalancing], Move | None]


@dataclass(frozen=True)
class Rebalancer:
    """A policy, and whether it also looks at the swarm when a peer joins, leaves or begins to serve."""

    propose: Policy
    on_events: bool


def propose_by_queue(view: SwarmView, settings: Rebalancing) -> Move | None:
    """The least loaded peer of the least loaded stage goes to the most loaded stage.

    A stage's load is the mean queue of its peers that serve; that of a stage without one is infinite.

    Raises:
        InvalidInput: the view holds no queue lengths.

    Source: Ryabinin et al. 2023 (SWARM, arXiv 2301.11913); the two guards are ours.
    """
    if view.queue_P is None:
        raise InvalidInput("swarm view: queue_P: the policy 'queue' needs queue lengths; give them")
    serving = view.serving_P
    total_S = np.bincount(view.stage_P[serving], weights=view.queue_P[serving], minlength=len(view.load_S))
    queue_S = np.where(view.servers_S > 0, total_S / np.maximum(view.servers_S, 1), np.inf)
    idle, busy = int(np.argmin(np.where(view.servers_S > 1, queue_S, np.inf))), int(np.argmax(queue_S))
    if view.servers_S[idle] < 2 or queue_S[busy] <= queue_S[idle] * (1 + EQUAL):
        return None
    rows = np.flatnonzero(serving & (view.stage_P == idle))
    peer = int(rows[np.argmin(view.queue_P[rows])])
    return Move(view.peers[peer], idle, busy)


def propose_by_throughput(view: SwarmView, settings: Rebalancing) -> Move | None:
    """The move that most raises the weakest stage, found by simulating every relocation on measured speeds.

    Stages are judged by what they will have when all downloads are finished. A peer may leave only a stage that
    without it still serves as much as the weakest of all, both now and then. So no move ever lowers the swarm's
    throughput, not even during its download. Where no single peer helps enough, a stronger one is sent if a weaker one
    can then take its place: the first half of an exchange, whose second half is the next single move.

    Source: ours, after the simulated relocation of Petals (Borzunov et al. 2023, arXiv 2209.01188).
    """
    free_P = _may_leave(view)
    least = _least_wanted(view, settings)
    if least is None or not free_P.any():
        return None
    weakest = np.flatnonzero(view.coming_S <= view.coming_S.min() * (1 + EQUAL))
    return _best_single(view, free_P, weakest, least) or _best_exchange(view, free_P, weakest, least)


def stay(view: SwarmView, settings: Rebalancing) -> Move | None:
    """No peer ever moves."""
    return None


REBALANCERS: dict[RebalancerName, Rebalancer] = {
    "throughput": Rebalancer(propose_by_throughput, on_events=True),
    "queue": Rebalancer(propose_by_queue, on_events=False),
    "none": Rebalancer(stay, on_events=False),
}


def place_joiner(view: SwarmView, settings: Rebalancing, rng: np.random.Generator) -> int:
    """The stage that a joining peer should download: the one with the least capacity to come, or any."""
    if settings.joiners == "random":
        return int(rng.integers(len(view.load_S)))
    return int(np.argmin(view.coming_S))


def _may_leave(view: SwarmView) -> BoolArray:
    """Peers that serve, are not the last of their stage, and without whom it has what the weakest is to have.

    At least the smallest serving capacity of now, and at least the smallest that is to come: a stage weaker than that
    would prolong a dip that others are about to leave. Going lower for peers that have been told of their preemption
    was tried and lost more than it gained.
    """
    left_P = view.serving_S[view.stage_P] - view.speed_P / view.load_S[view.stage_P]
    enough_P = left_P >= max(view.serving_S.min(), view.coming_S.min()) * (1 - EQUAL)
    found: BoolArray = view.serving_P & view.staying_P & enough_P & (view.servers_S[view.stage_P] > 1)
    return found


def _least_wanted(view: SwarmView, settings: Rebalancing) -> float | None:
    """What the weakest stage must reach for a move to pay; None if none can. An empty stage is always worth one.

    Errors of measured speeds average out over a stage's peers, so the hysteresis falls with the root of their number.
    """
    lowest, highest = float(view.coming_S.min()), float(view.coming_S.max())
    if highest <= lowest * (1 + EQUAL):
        return None
    if lowest == 0.0:
        return 0.0
    counted = 1.0 - view.download_s / settings.horizon
    least_gain = settings.hysteresis * np.sqrt(len(view.load_S) / len(view.peers))
    return lowest * (1 + max(least_gain / counted, EQUAL)) if counted > 0 else None


def _best_single(view: SwarmView, free_P: BoolArray, weakest: IntArray, least: float) -> Move | None:
    """The relocation to a weakest stage that leaves the weaker of the two stages strongest."""
    left_P = view.coming_S[view.stage_P] - view.speed_P / view.load_S[view.stage_P]
    got_WP = view.coming_S[weakest, None] + view.speed_P / view.load_S[weakest, None]
    worst_WP = np.where(free_P, np.minimum(left_P, got_WP), -np.inf)
    best = worst_WP.max()
    if best <= least * (1 - EQUAL):
        return None
    # Of equally good ones the slowest: the least is lost while it downloads.
    rank_WP = np.where(worst_WP >= best * (1 - EQUAL), view.speed_P, np.inf)
    w, peer = np.unravel_index(int(np.argmin(rank_WP)), rank_WP.shape)
    return _move(view, int(peer), int(weakest[w]))


def _best_exchange(view: SwarmView, free_P: BoolArray, weakest: IntArray, least: float) -> Move | None:
    """The first half of the best exchange of a peer that may leave for a weaker one of a weakest stage."""
    best, found = least * (1 - EQUAL), None
    for stage in weakest:
        back = np.flatnonzero(view.serving_P & view.staying_P & (view.stage_P == stage))
        more_QP = view.speed_P - view.speed_P[back, None]
        left_QP = view.coming_S[view.stage_P] - more_QP / view.load_S[view.stage_P]
        got_QP = view.coming_S[stage] + more_QP / view.load_S[stage]
        worst_QP = np.where(free_P & (view.stage_P != stage), np.minimum(left_QP, got_QP), -np.inf)
        if worst_QP.size and worst_QP.max() > best:
            best, peer = float(worst_QP.max()), int(np.argmax(worst_QP.max(axis=0)))
            found = _move(view, peer, int(stage))
    return found


def _move(view: SwarmView, peer: int, to_stage: int) -> Move:
    return Move(view.peers[peer], int(view.stage_P[peer]), to_stage)
