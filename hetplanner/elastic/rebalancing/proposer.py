"""When to ask a rebalancing policy, and what to tell it: between a coordinator's peers and the policies' arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hetplanner.elastic.rebalancing.policies import REBALANCERS
from hetplanner.elastic.rebalancing.swarm_view import FloatArray, Move, SwarmView
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing


class PeerFacts(Protocol):
    """What is known of a live peer."""

    @property
    def peer(self) -> str:
        """Its id."""
        ...

    @property
    def stage(self) -> int:
        """The stage that it serves or downloads."""
        ...

    @property
    def speed(self) -> float:
        """Micro-batches per second in that stage; 0 if it has not been measured."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it has its stage's state."""
        ...

    @property
    def draining(self) -> bool:
        """Whether it has been told to leave."""
        ...


class Proposer:
    """Asks a policy at a coordinator's step boundaries: every period, and ours also when who serves where changed.

    Args:
        settings: the policy and its period.
        load_S: work units of a micro-batch in each stage.
        download_s: expected seconds of a stage's download.
        queue_of: micro-batches that wait at a peer, by id; only the policy `queue` needs it.

    Raises:
        InvalidInput: the policy needs queue lengths and there are none.
    """

    def __init__(
        self,
        settings: Rebalancing,
        load_S: Sequence[float],
        download_s: float,
        queue_of: Callable[[str], float] | None = None,
    ) -> None:
        if settings.policy == "queue" and queue_of is None:
            raise InvalidInput("policy: 'queue' needs the peers' queue lengths; use 'throughput'")
        self._settings, self._download_s, self._queue_of = settings, download_s, queue_of
        self._load_S: FloatArray = np.array(load_S, dtype=np.float64)
        self._last_s = -np.inf
        self._seen: frozenset[tuple[str, int, bool, bool]] = frozenset()

    def __call__(self, peers: Sequence[PeerFacts], now_s: float) -> Move | None:
        """A move, or None: nothing to gain, or not yet time to look.

        Args:
            peers: all live peers.
            now_s: the coordinator's clock.
        """
        seen = frozenset((p.peer, p.stage, p.serving, p.draining) for p in peers)
        rebalancer = REBALANCERS[self._settings.policy]
        is_event = rebalancer.on_events and seen != self._seen
        if not peers or not (is_event or now_s - self._last_s >= self._settings.period):
            return None
        self._last_s, self._seen = now_s, seen
        return rebalancer.propose(self.view(peers), self._settings)

    def view(self, peers: Sequence[PeerFacts]) -> SwarmView:
        """The peers as arrays; an unmeasured one counts as the fastest of all, so that it is not left idle."""
        stage_P = np.array([p.stage for p in peers], dtype=np.int64)
        speed_P = np.array([p.speed for p in peers], dtype=np.float64) * self._load_S[stage_P]
        speed_P[speed_P <= 0] = speed_P.max() if speed_P.max() > 0 else 1.0
        queues = self._queue_of
        return SwarmView(
            peers=[p.peer for p in peers],
            stage_P=stage_P,
            speed_P=speed_P,
            serving_P=np.array([p.serving for p in peers], dtype=np.bool_),
            load_S=self._load_S,
            download_s=self._download_s,
            leaving_P=np.array([p.draining for p in peers], dtype=np.bool_),
            queue_P=None if queues is None else np.array([queues(p.peer) for p in peers], dtype=np.float64),
        )
