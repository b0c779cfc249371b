"""A peer's place in the chain: takes calls, passes them on, keeps what it computed under a token.

Each call keeps its input until the next stage has answered. Whatever is under way when the version or the incarnation
changes is answered as stale and never becomes a contribution.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from hetplanner.elastic.peer.downstream import Downstream, Failed, Task
from hetplanner.elastic.peer.speeds import SpeedEstimate
from hetplanner.elastic.peer.wiring import OVERHEAD_S
from hetplanner.elastic.protocol.identity import Entry, Member, Token, Version, View
from hetplanner.elastic.protocol.messages import FailureKind, Send, Work, Worked, WorkFailed
from hetplanner.elastic.protocol.peer_events import (
    BackwardDone,
    CallKey,
    ForwardDone,
    PeerAction,
    Reply,
    RunBackward,
    RunForward,
)
from hetplanner.elastic.protocol.settings import ElasticSettings


@dataclass
class _Call:
    """A call from the stage before (or a trainer).

    Attributes:
        since_s: when what is under way was asked for: computing, or the next stage.
        waited_s: so far, for the next stage and for this peer's own turn.
        worked_s: so far, of this peer's own computing.
    """

    work: Work
    deadline_s: float
    since_s: float
    waited_s: float = 0.0
    worked_s: float = 0.0
    manifest: tuple[Entry, ...] = ()
    token: Token | None = None


class Chain:
    """The calls a peer is working on and the contributions it holds.

    Attributes:
        contributions: by token, seconds of this peer's own forward and backward.
    """

    def __init__(self, settings: ElasticSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._member: Member | None = None
        self._stage = 0
        self._version: Version | None = None
        self._calls: dict[CallKey, _Call] = {}
        self._downstream: Downstream[CallKey] = Downstream(settings, rng)
        self.contributions: dict[Token, float] = {}
        self._speed = SpeedEstimate(settings.ema_alpha)

    @property
    def queue(self) -> int:
        """Calls that are under way here."""
        return len(self._calls)

    @property
    def speed(self) -> float | None:
        """Micro-batches per second that this peer computes in its stage; None: not measured yet."""
        seconds = self._speed.seconds
        return 1.0 / max(seconds, OVERHEAD_S) if seconds is not None else None

    def restart(
        self, member: Member | None, stage: int, version: Version | None, view: View | None
    ) -> list[PeerAction]:
        """Begins anew as an incarnation of a stage at a version; None: takes no work yet."""
        ended = self.pause()
        if member is None or self._member is None or member != self._member:
            self._downstream = Downstream(self._settings, self._rng)
            if view is not None and stage + 1 < self._settings.stages:
                self._downstream.see(view.stages[stage + 1], 0.0)
        if stage != self._stage:
            self._speed = SpeedEstimate(self._settings.ema_alpha)
        self._member, self._stage, self._version = member, stage, version
        return ended

    def pause(self) -> list[PeerAction]:
        """Ends all calls as stale, drops all contributions, and takes no work until restarted."""
        self._version = None
        self.contributions.clear()
        calls, self._calls = self._calls, {}
        stale: list[PeerAction] = [_failure(key, "stale") for key in calls]
        return [*self._downstream.drop_all(), *stale]

    def work(self, address: str, work: Work, now_s: float) -> list[PeerAction]:
        """A call arrives."""
        key = (address, work.call)
        if key in self._calls:
            return []
        if work.version != self._version or work.stage != self._stage:
            return [_failure(key, "stale")]
        self._calls[key] = _Call(work, now_s + work.budget_s, now_s)
        return [RunForward(key)]

    def forward_done(self, done: ForwardDone, now_s: float) -> list[PeerAction]:
        """The activation is there: on to the next stage, or back from the last."""
        key, call = done.key, self._calls.get(done.key)
        if call is None:
            return []
        _count_wait(call, done.seconds, now_s)
        if self._stage == self._settings.stages - 1:
            return [self._backward(key, call)]
        work = call.work
        task = Task(self._stage + 1, work.micro_batch, work.version, work.mask, call.deadline_s)
        sent = self._downstream.start(key, task, now_s)
        return [sent] if sent is not None else self._fail(key, "deadline")

    def worked(self, worked: Worked, now_s: float) -> list[PeerAction]:
        """The next stage has answered: backward."""
        key = self._downstream.succeeded(worked.call, worked.waited_s, now_s)
        call = self._calls.get(key) if key is not None else None
        if key is None or call is None:
            return []
        call.manifest = worked.manifest
        _count_wait(call, 0.0, now_s)
        return [self._backward(key, call)]

    def lost(self, number: int, kind: FailureKind, now_s: float) -> list[PeerAction]:
        """A call to the next stage failed."""
        return self._after([self._downstream.failed(number, kind, now_s)])

    def backward_done(self, done: BackwardDone, now_s: float) -> list[PeerAction]:
        """The gradients are there: the call is answered; what it contributed stays under its token."""
        key, call = done.key, self._calls.pop(done.key, None)
        if call is None or self._member is None:
            return []
        _count_wait(call, done.seconds, now_s)
        if not done.is_finite:
            return [_failure(key, "error")]
        if done.seconds is not None:
            self._speed.update(call.worked_s)
        manifest = call.manifest
        if call.token is not None:
            self.contributions[call.token] = call.worked_s
            manifest = (*manifest, Entry(self._member, call.token))
        return [Reply(key[0], Worked(key[1], manifest, call.waited_s), key)]

    def see(self, view: View, now_s: float) -> list[PeerAction]:
        """Takes a new view of the next stage."""
        if self._stage + 1 >= self._settings.stages:
            return []
        return self._after(self._downstream.see(view.stages[self._stage + 1], now_s))

    def tick(self, now_s: float) -> list[PeerAction]:
        """Gives up what takes too long."""
        cancels, failed = self._downstream.tick(now_s)
        actions: list[PeerAction] = [*cancels, *self._after(failed)]
        for key in [key for key, call in self._calls.items() if call.deadline_s <= now_s]:
            actions += self._fail(key, "deadline")
        return actions

    def _backward(self, key: CallKey, call: _Call) -> RunBackward:
        if call.work.mask >> self._stage & 1:
            call.token = Token(call.work.micro_batch, self._stage, self._rng.getrandbits(62))
        return RunBackward(key, call.token)

    def _after(self, failed: Iterable[Failed[CallKey] | None]) -> list[PeerAction]:
        actions: list[PeerAction] = []
        for failure in failed:
            if failure is not None and failure.retry is not None:
                actions.append(failure.retry)
            elif failure is not None:
                # That the rest of the chain failed is no error of this peer, for which it would be banned.
                actions += self._fail(failure.key, "stale" if failure.kind == "stale" else "deadline")
        return actions

    def _fail(self, key: CallKey, kind: FailureKind) -> list[PeerAction]:
        return [_failure(key, kind)] if self._calls.pop(key, None) is not None else []


def _count_wait(call: _Call, seconds: float | None, now_s: float) -> None:
    """Something that was asked for is there; of the time since then, all but `seconds` was waiting (None: none)."""
    took_s = now_s - call.since_s
    call.worked_s += took_s if seconds is None else seconds
    call.waited_s += 0.0 if seconds is None else max(0.0, took_s - seconds)
    call.since_s = now_s


def _failure(key: CallKey, kind: FailureKind) -> Send:
    return Send(key[0], WorkFailed(key[1], kind))
