"""Stochastic wiring: which peer of the next stage gets a micro-batch. One per sender and next stage."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hetplanner.elastic.peer.speeds import SpeedEstimate
from hetplanner.elastic.protocol.identity import Member, Replica
from hetplanner.elastic.protocol.settings import ElasticSettings

OVERHEAD_S = 1e-6
"""A peer cannot be taken for infinitely fast, whatever a clock says."""


FORGOTTEN = 20.0
"""A peer that was not chosen for so many of its own times is tried again: it may have become faster."""


@dataclass
class _Lane:
    """What a sender knows of one peer: accumulated seconds, what is under way, until when it is left out."""

    replica: Replica
    accumulated_s: float
    tie: float
    speed: SpeedEstimate
    under_way: float = 0.0
    chosen_s: float = field(default=float("-inf"))
    banned_until_s: float = field(default=float("-inf"))


class Wiring:
    """Chooses by measured speed, with bans, by one of two rules.

    `soonest`: the peer that is expected to finish first, if each takes this sender's tasks one after the other.
    Measured seconds hold no waiting (with it, nine peers of speeds 1, 1.5 and 3 reached 0.83 of the sum of their speeds
    instead of 0.87 to 0.91; tests/benchmarks/swarms/bench_swarm.py). At a step's end a slow peer gets none of the last
    micro-batches. Source: ours.

    `round-robin`: interleaved and weighted by speed. Source: Ryabinin et al. 2023 (SWARM), public code.

    With both an unmeasured peer counts as the best known one, and a peer that returns from a ban does not catch up on
    what it missed (ours).
    """

    def __init__(self, settings: ElasticSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._lanes: dict[Member, _Lane] = {}

    def see(self, replicas: Iterable[Replica]) -> None:
        """Takes a new view: bans end, the gone are forgotten, newcomers enter at the minimum, so are tried at once."""
        known, floor = self._lanes, min((lane.accumulated_s for lane in self._lanes.values()), default=0.0)
        self._lanes = {}
        for replica in replicas:
            lane = known.get(replica.member)
            if lane is None:
                lane = _Lane(replica, floor, self._rng.random(), SpeedEstimate(self._settings.ema_alpha))
            elif lane.banned_until_s > float("-inf"):
                lane.banned_until_s = float("-inf")
                lane.accumulated_s = max(lane.accumulated_s, floor)
            lane.replica = replica
            self._lanes[replica.member] = lane

    def choose(self, now_s: float, tried: Collection[Member] = (), size: float = 1.0) -> Replica | None:
        """The peer to send `size` micro-batches to, and charges it for them.

        Args:
            now_s: the sender's clock.
            tried: peers that this attempt is not to meet again.
            size: of the task, in micro-batches (a backward counts 2.5 of a forward).

        Returns:
            None if every peer is banned, tried or gone.
        """
        self._end_bans(now_s)
        free = [lane for m, lane in self._lanes.items() if lane.banned_until_s <= now_s and m not in tried]
        free = [lane for lane in free if not lane.replica.draining] or free
        if not free:
            return None
        best = min(free, key=lambda lane: (self._rank(lane, size, now_s), lane.tie))
        best.accumulated_s += size * self._seconds(best)
        best.tie, best.chosen_s = self._rng.random(), now_s
        best.under_way += size
        return best.replica

    def ended(self, member: Member, size: float = 1.0) -> None:
        """What was sent to a peer is not under way any more, however it ended."""
        if member in self._lanes:
            lane = self._lanes[member]
            lane.under_way = max(0.0, lane.under_way - size)

    def succeeded(self, member: Member, seconds: float) -> None:
        """Takes the seconds per micro-batch of a call, less what its own callees took."""
        if member in self._lanes:
            self._lanes[member].speed.update(max(seconds, OVERHEAD_S))

    def failed(self, member: Member, now_s: float) -> None:
        """Bans a peer whose call ended in an error (not in a deadline) until the ban or the view ends."""
        if member in self._lanes:
            self._lanes[member].banned_until_s = now_s + self._settings.ban_s

    def seconds_of(self, member: Member) -> float:
        """Seconds per micro-batch as wiring takes them: measured, else the best known, else a constant."""
        return self._seconds(self._lanes[member])

    def _rank(self, lane: _Lane, size: float, now_s: float) -> float:
        if self._settings.wiring == "round-robin":
            return lane.accumulated_s
        seconds = self._seconds(lane)
        if not lane.under_way and now_s - lane.chosen_s > FORGOTTEN * seconds:
            return 0.0
        return (lane.under_way + size) * seconds

    def _seconds(self, lane: _Lane) -> float:
        if (own := lane.speed.seconds) is not None:
            return own
        known = [s for other in self._lanes.values() if (s := other.speed.seconds) is not None]
        return min(known, default=self._settings.unmeasured_s)

    def _end_bans(self, now_s: float) -> None:
        over = [lane for lane in self._lanes.values() if float("-inf") < lane.banned_until_s <= now_s]
        if not over:
            return
        floor = min((lane.accumulated_s for lane in self._lanes.values() if lane not in over), default=0.0)
        for lane in over:
            lane.banned_until_s = float("-inf")
            lane.accumulated_s = max(lane.accumulated_s, floor)
