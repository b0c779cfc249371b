"""Transfers over real links: connections that pass a link or NIC at the same time share it.

Each pair of ranks has a connection, which sends one message after the other. What passes a link, the NIC out of its
host or the NIC into another gets the max-min fair share of each, which is about what TCP gives. So two messages that a
host sends at once to two others both arrive late, where a queue (the emulator's rule) has the first one in time.

Source: Bertsekas and Gallager 1992, Data Networks, section 6.5.2 (max-min fairness by progressive filling).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetplanner.simulator.network import NetworkClock

Known = Callable[[float, float, float], None]
"""Called with the time now, and when a message started and arrives."""


@dataclass(slots=True)
class _Message:
    num_bytes: float
    latency_s: float
    known: Known


@dataclass(slots=True)
class _Connection:
    """What a pair of ranks sends, and how far it is with the first message: `left` bytes at `since_s`."""

    waiting: deque[_Message]
    start_s: float
    since_s: float
    left: float
    rate: float = 0.0

    def end_s(self) -> float:
        """When the message will have been sent at this rate."""
        return self.since_s + max(0.0, self.left) / self.rate

    def settle(self, now_s: float) -> None:
        """Counts what has been sent."""
        self.left -= (now_s - self.since_s) * self.rate
        self.since_s = now_s


class FairNetwork:
    """Messages under way between ranks.

    Args:
        network: what a transfer passes, at which rates.
    """

    def __init__(self, network: NetworkClock) -> None:
        self._network = network
        self._sending: dict[tuple[int, int], _Connection] = {}
        self._users: dict[int, dict[tuple[int, int], None]] = {}  # connections by link or NIC, in order of arrival
        self._ends_s: dict[tuple[int, int], float] = {}

    def send(self, now_s: float, source: int, target: int, num_bytes: float, factor: float, known: Known) -> None:
        """Hands a message over; `factor`: how much longer than usual all of it takes."""
        message = _Message(num_bytes * factor, self._network.latency_s[source][target] * factor, known)
        pair = (source, target)
        if pair in self._sending:
            self._sending[pair].waiting.append(message)
            return
        self._sending[pair] = _Connection(deque([message]), now_s, now_s, message.num_bytes)
        passed = [clock for clock, _ in self._network.passed(*pair)]
        for clock in passed:
            self._users.setdefault(clock, {})[pair] = None
        self._share(now_s, passed)

    def next_end_s(self) -> float:
        """When the next message will have been sent if nothing else is handed over; infinity: none is under way."""
        return min(self._ends_s.values(), default=math.inf)

    def finish_next(self) -> None:
        """Ends the message that ends next, and tells who sent it."""
        pair = min(self._ends_s, key=lambda p: (self._ends_s[p], p))
        now_s, connection = self._ends_s[pair], self._sending[pair]
        message, start_s = connection.waiting.popleft(), connection.start_s
        if connection.waiting:
            connection.start_s = connection.since_s = now_s
            connection.left = connection.waiting[0].num_bytes
            self._ends_s[pair] = connection.end_s()
        else:
            del self._sending[pair], self._ends_s[pair]
            passed = [clock for clock, _ in self._network.passed(*pair)]
            for clock in passed:
                del self._users[clock][pair]
            self._share(now_s, passed)
        message.known(now_s, start_s, now_s + message.latency_s)

    def _share(self, now_s: float, changed: Iterable[int]) -> None:
        """New rates of all connections that the change of some links and NICs can reach."""
        room: dict[int, float] = dict.fromkeys(changed, math.inf)
        looked_at, pairs = list(room), dict[tuple[int, int], None]()
        while looked_at:
            for pair in self._users.get(looked_at.pop(), {}):
                if pair not in pairs:
                    pairs[pair] = None
                    for clock, rate in self._network.passed(*pair):
                        if clock not in room:
                            looked_at.append(clock)
                        room[clock] = rate
        count = {clock: len(self._users.get(clock, {})) for clock in room}
        while pairs:
            clock = min((c for c in room if count[c]), key=lambda c: room[c] / count[c])
            share = room[clock] / count[clock]
            for pair in [p for p in self._users[clock] if p in pairs]:
                del pairs[pair]
                connection = self._sending[pair]
                connection.settle(now_s)
                connection.rate = share
                self._ends_s[pair] = connection.end_s()
                for other, _ in self._network.passed(*pair):
                    room[other] -= share
                    count[other] -= 1
