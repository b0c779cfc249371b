"""A peer: serves one stage, keeps contributions until a commit, and does what the coordinator decides.

It never decides itself: between its answer to Reduce and the decision it keeps both its contributions and the sum.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hetplanner.elastic.peer.chain import Chain
from hetplanner.elastic.protocol import messages, peer_events
from hetplanner.elastic.protocol.coordinator_events import Received, Tick
from hetplanner.elastic.protocol.identity import Holding, Member, Stamp, Token, Version, View
from hetplanner.elastic.protocol.peer_events import PeerAction
from hetplanner.elastic.protocol.settings import ElasticSettings

PeerEvent = (
    Received
    | Tick
    | peer_events.CallLost
    | peer_events.Unreachable
    | peer_events.ForwardDone
    | peer_events.BackwardDone
    | peer_events.StateLoaded
    | peer_events.FoldDone
    | peer_events.UpdateApplied
    | peer_events.CheckpointDone
    | peer_events.LeaveAsked
)


@dataclass
class _Attempt:
    """A peer's part in an attempt: folding until it is `done`, then in doubt until the decision."""

    attempt: Stamp
    tokens: tuple[Token, ...]
    is_folding: bool = False
    done: peer_events.FoldDone | None = None
    commits_to: Version | None = None


class Peer:
    """State machine of a peer.

    Args:
        name: its id.
        process: drawn at process start.
        fingerprint: of version, model and plan.
        speed: micro-batches per second, measured before; it counts until one is measured while serving.
        coordinator: its address.
        settings: of the run.
        rng: for tokens and ties in wiring.
    """

    def __init__(
        self,
        name: str,
        process: int,
        fingerprint: str,
        speed: float,
        coordinator: str,
        settings: ElasticSettings,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.member: Member | None = None
        self.stage = 0
        self.version: Version | None = None
        self.has_left = False
        self.refused: str | None = None
        self._process = process
        self._fingerprint = fingerprint
        self._speed = speed
        self._coordinator = coordinator
        self._settings = settings
        self._chain = Chain(settings, rng)
        self._view: View | None = None
        self._attempt: _Attempt | None = None
        self._latest = Stamp(0, 0)
        self._boot = 0
        self._is_known = self._is_leaving = False
        self._ready: messages.Ready | None = None
        self._pinged_s = float("-inf")

    def handle(self, event: PeerEvent, now_s: float) -> list[PeerAction]:
        """Takes an event at a time in seconds and returns what is to be done."""
        if self.has_left:
            return []
        match event:
            case Received(address=address, message=message):
                return self._receive(address, message, now_s)
            case Tick():
                return [*self._chain.tick(now_s), *self._ping(now_s)]
            case peer_events.CallLost(call=call):
                return self._chain.lost(call, "error", now_s)
            case peer_events.Unreachable(address=address):
                return self._unreached(address)
            case peer_events.ForwardDone():
                return self._chain.forward_done(event, now_s)
            case peer_events.BackwardDone():
                return self._chain.backward_done(event, now_s)
            case peer_events.StateLoaded(member=member, version=version):
                return self._loaded(member, version)
            case peer_events.FoldDone():
                return self._folded(event)
            case peer_events.UpdateApplied(attempt=attempt):
                return self._applied(attempt)
            case peer_events.CheckpointDone(stage=stage, version=version):
                return [self._tell(messages.Saved(self.member, stage, version))] if self.member is not None else []
            case peer_events.LeaveAsked():
                self._is_leaving = True
                return []

    def _receive(self, address: str, message: messages.Message, now_s: float) -> list[PeerAction]:
        match message:
            case messages.Work():
                return self._chain.work(address, message, now_s)
            case messages.Worked():
                return self._chain.worked(message, now_s)
            case messages.WorkFailed(call=call, kind=kind):
                return self._chain.lost(call, kind, now_s)
            case View():
                return self._see(message, now_s)
            case messages.AssignStage():
                return self._take_assignment(message)
            case messages.UnknownPeer(boot=boot) if boot >= self._boot:
                self._boot, self._is_known = boot, False
                return [self._hello()]
            case messages.Refused(reason=reason):
                self.refused = reason
            case messages.Released(member=member) if member == self.member:
                self.has_left = True
                return [peer_events.DropContributions()]
            case messages.Prepare(member=member) if member == self.member:
                return self._prepare(message)
            case messages.Reduce(member=member) if member == self.member:
                return self._reduce(message)
            case messages.Decide():
                return self._decide(message)
            case messages.Save(member=member, version=version) if member == self.member and version == self.version:
                return [peer_events.SaveCheckpoint(self.stage, version)]
        return []

    # Membership.

    def _ping(self, now_s: float) -> list[PeerAction]:
        if now_s - self._pinged_s < self._settings.ping_s:
            return []
        self._pinged_s = now_s
        if not self._is_known or self.member is None:
            return [self._hello()]
        epoch = self._view.epoch if self._view is not None else None
        signs: list[PeerAction] = [self._tell(messages.Ping(self.member, epoch, self._chain.queue, self._chain.speed))]
        if self._ready is not None and not self._is_in_view():
            signs.append(self._tell(self._ready))  # It may not have been heard.
        if self._is_leaving:
            signs.append(self._tell(messages.Leave(self.member)))
        return signs

    def _is_in_view(self) -> bool:
        return self._view is not None and any(s.member == self.member for s in self._view.stages[self.stage])

    @property
    def stage_peers(self) -> tuple[str, ...]:
        """Addresses of the others who serve this peer's stage: with each of them it averages."""
        if self._view is None or not self._is_in_view():
            return ()
        return tuple(replica.address for replica in self._view.stages[self.stage] if replica.member != self.member)

    def _unreached(self, address: str) -> list[PeerAction]:
        if self._view is None or self.member is None or not self._is_in_view():
            return []
        found = [replica.member for stage in self._view.stages for replica in stage if replica.address == address]
        return [self._tell(messages.CannotReach(self.member, other)) for other in found if other != self.member]

    def _hello(self) -> messages.Send:
        holding = None
        if self.version is not None:
            attempt = self._attempt
            pending = attempt.attempt if attempt is not None and attempt.done is not None else None
            holding = Holding(self.stage, self.version, pending)
        speed = self._chain.speed or self._speed
        return self._tell(messages.Hello(self.name, self._process, self._fingerprint, speed, holding))

    def _see(self, view: View, now_s: float) -> list[PeerAction]:
        if self._view is not None and view.epoch <= self._view.epoch:
            return []
        self._view = view
        return self._chain.see(view, now_s)

    def _take_assignment(self, order: messages.AssignStage) -> list[PeerAction]:
        incarnation = order.member.incarnation
        if incarnation.boot < self._boot:
            return []
        if self.member is not None and incarnation < self.member.incarnation:
            return []
        if order.member == self.member:
            self._is_known = True
            return [self._tell(messages.Ready(order.member, self.version))] if self.version is not None else []
        held = self.version if self.stage == order.stage else None
        self._boot, self._is_known, self.refused = incarnation.boot, True, None
        self.member, self.stage, self.version = order.member, order.stage, None
        self._ready = None
        dropped: list[PeerAction] = [*self._drop_attempt(), *self._restart_chain(), peer_events.DropContributions()]
        match order.source:
            case messages.FromPeer(replica=replica):
                return [*dropped, peer_events.FetchState(order.member, order.stage, replica)]
            case messages.FromCheckpoint(version=saved):
                return [*dropped, peer_events.LoadCheckpoint(order.member, order.stage, saved, order.version)]
            case messages.FromSeed():
                return [*dropped, peer_events.InitState(order.member, order.stage, order.version)]
        return [*dropped, *self._loaded(order.member, held)]

    def _loaded(self, member: Member, version: Version | None) -> list[PeerAction]:
        if member != self.member or self.version is not None:
            return []
        self.version, self._ready = version, messages.Ready(member, version)
        return [*self._restart_chain(), self._tell(self._ready)]

    def _restart_chain(self) -> list[PeerAction]:
        return self._chain.restart(self.member, self.stage, self.version, self._view)

    # The step.

    def _prepare(self, prepare: messages.Prepare) -> list[PeerAction]:
        if prepare.attempt < self._latest or self.member is None or self.version is None:
            return []
        self._latest = prepare.attempt
        missing = tuple(token for token in prepare.tokens if token not in self._chain.contributions)
        actions: list[PeerAction] = []
        if self._attempt is None or self._attempt.attempt != prepare.attempt:
            actions += self._drop_attempt()
            if not missing and self.version == prepare.version:
                self._attempt = _Attempt(prepare.attempt, prepare.tokens)
        worked_s = sum(self._chain.contributions.get(token, 0.0) for token in prepare.tokens)
        return [*actions, self._tell(messages.Prepared(self.member, prepare.attempt, self.version, missing, worked_s))]

    def _reduce(self, reduce: messages.Reduce) -> list[PeerAction]:
        attempt = self._attempt
        if attempt is None or attempt.attempt != reduce.attempt:
            return [self._tell(messages.Reduced(reduce.member, reduce.attempt, None))]
        if attempt.done is not None:
            return [self._tell(_reduced(reduce.member, attempt.done))]
        if attempt.is_folding:
            return []
        attempt.is_folding = True
        return [peer_events.FoldAndReduce(attempt.attempt, attempt.tokens, reduce.group, reduce.stages)]

    def _folded(self, done: peer_events.FoldDone) -> list[PeerAction]:
        attempt = self._attempt
        if attempt is None or attempt.attempt != done.attempt or not attempt.is_folding or self.member is None:
            return []
        attempt.is_folding, attempt.done = False, done if done.count is not None else None
        return [self._tell(_reduced(self.member, done))]

    def _decide(self, decide: messages.Decide) -> list[PeerAction]:
        attempt = self._attempt
        is_mine = attempt is not None and attempt.attempt == decide.attempt
        if not decide.commit:
            dropped = self._drop_attempt() if is_mine else []
            return [*dropped, *self._decided(decide.attempt)]
        if self.version == decide.version:
            return self._decided(decide.attempt)
        if attempt is None or not is_mine or attempt.done is None or attempt.commits_to is not None:
            return []
        attempt.commits_to = decide.version
        return [
            *self._chain.pause(),
            peer_events.DropContributions(),
            peer_events.ApplyUpdate(decide.attempt, decide.version, decide.grad_norm),
        ]

    def _applied(self, number: Stamp) -> list[PeerAction]:
        attempt = self._attempt
        if attempt is None or attempt.attempt != number or attempt.commits_to is None:
            return []
        self.version, self._attempt = attempt.commits_to, None
        return [*self._restart_chain(), *self._decided(number), *self._checkpoint()]

    def _decided(self, attempt: Stamp) -> list[PeerAction]:
        if self.member is None or self.version is None:
            return []
        return [self._tell(messages.Decided(self.member, attempt, self.version))]

    def _checkpoint(self) -> list[PeerAction]:
        every = self._settings.checkpoint_steps
        if not every or self.version is None or self.version.step % every or self._view is None:
            return []
        replicas = self._view.stages[self.stage]
        savers = replicas if self._settings.all_save else replicas[:1]  # One replica is enough: all are equal.
        saves = any(replica.member == self.member for replica in savers)
        return [peer_events.SaveCheckpoint(self.stage, self.version)] if saves else []

    def _drop_attempt(self) -> list[PeerAction]:
        attempt, self._attempt = self._attempt, None
        return [peer_events.DropSum(attempt.attempt)] if attempt is not None else []

    def _tell(self, message: messages.Message) -> messages.Send:
        return messages.Send(self._coordinator, message)


def _reduced(member: Member, done: peer_events.FoldDone) -> messages.Reduced:
    return messages.Reduced(member, done.attempt, done.count, done.loss_sum, done.grad_square, done.samples)
