"""Calls to the next stage: chosen by wiring, bounded in time, tried again elsewhere. Peers and trainers share it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from hetplanner.elastic.peer.wiring import Wiring
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp, Version
from hetplanner.elastic.protocol.messages import FailureKind, Work
from hetplanner.elastic.protocol.peer_events import CallKey, CancelWork, SendWork
from hetplanner.elastic.protocol.settings import ElasticSettings

Key = TypeVar("Key", CallKey, Stamp)


class Task(NamedTuple):
    """What is to be done from `stage` on, until `deadline_s` on the caller's clock."""

    stage: int
    micro_batch: int
    version: Version
    mask: int
    deadline_s: float


@dataclass
class _Call(Generic[Key]):
    key: Key
    task: Task
    replica: Replica
    sent_s: float
    until_s: float
    tried: set[Member] = field(default_factory=set)


class Failed(NamedTuple, Generic[Key]):
    """A call failed: `retry` is the next attempt, None if there is none, so that the caller gives up."""

    key: Key
    kind: FailureKind
    retry: SendWork | None


class Downstream(Generic[Key]):
    """The outstanding calls of one sender to one stage."""

    def __init__(self, settings: ElasticSettings, rng: random.Random) -> None:
        self._settings = settings
        self.wiring = Wiring(settings, rng)
        self._calls: dict[int, _Call[Key]] = {}
        self._number = rng.getrandbits(48)

    def start(self, key: Key, task: Task, now_s: float) -> SendWork | None:
        """Sends a task to the peer whose turn it is; None if there is no peer."""
        return self._try(key, task, set(), now_s)

    def succeeded(self, call: int, waited_s: float, now_s: float) -> Key | None:
        """An answer: measures the peer by its own share of the time; None if no task waits for it any more."""
        done = self._pop(call)
        if done is None:
            return None
        self.wiring.succeeded(done.replica.member, now_s - done.sent_s - waited_s)
        return done.key

    def failed(self, call: int, kind: FailureKind, now_s: float) -> Failed[Key] | None:
        """A call ended without a result: an error bans the peer, a stale one ends the task, else it is sent again."""
        lost = self._pop(call)
        if lost is None:
            return None
        if kind == "error":
            self.wiring.failed(lost.replica.member, now_s)
        retry = None if kind == "stale" else self._try(lost.key, lost.task, lost.tried, now_s)
        return Failed(lost.key, kind, retry)

    def see(self, replicas: Iterable[Replica], now_s: float) -> list[Failed[Key]]:
        """Takes a new view; calls to peers that are not in it fail at once."""
        replicas = tuple(replicas)
        self.wiring.see(replicas)
        live = {replica.member for replica in replicas}
        gone = [number for number, call in self._calls.items() if call.replica.member not in live]
        return [f for number in gone if (f := self.failed(number, "deadline", now_s)) is not None]

    def tick(self, now_s: float) -> tuple[list[CancelWork], list[Failed[Key]]]:
        """Gives up calls whose time is over."""
        if not self._calls:
            return [], []
        over = {number: call for number, call in self._calls.items() if call.until_s <= now_s}
        cancels = [CancelWork(call.replica.address, number) for number, call in over.items()]
        return cancels, [f for number in over if (f := self.failed(number, "deadline", now_s)) is not None]

    def drop_all(self) -> list[CancelWork]:
        """No task waits for any of the calls any more."""
        return [CancelWork(call.replica.address, number) for number in list(self._calls) if (call := self._pop(number))]

    def _pop(self, number: int) -> _Call[Key] | None:
        call = self._calls.pop(number, None)
        if call is not None:
            self.wiring.ended(call.replica.member)
        return call

    def _try(self, key: Key, task: Task, tried: set[Member], now_s: float) -> SendWork | None:
        left_s = task.deadline_s - now_s
        replica = self.wiring.choose(now_s, tried) if left_s > 0 else None
        if replica is None:
            return None
        self._number += 1
        budget_s = left_s * self._settings.hop_share
        self._calls[self._number] = _Call(key, task, replica, now_s, now_s + budget_s, tried | {replica.member})
        work = Work(self._number, task.stage, task.micro_batch, task.version, task.mask, budget_s)
        return SendWork(replica.address, work, key)
