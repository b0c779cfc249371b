"""The coordinator: one authority over membership, journal and commits. Events in, actions out, time passed in.

It composes the machines of this folder and holds what lies between them: a joiner serves only with the current version
and only while no attempt runs; grants wait while a stage has no peer; a new coordinator starts from the decision log
and from what peers say they hold.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from hetplanner.elastic.coordinator.cut_links import CutLinks, Link
from hetplanner.elastic.coordinator.decisions import (
    Booted,
    CheckpointLost,
    CheckpointSaved,
    Committed,
    Decision,
    Finished,
    SetBack,
    replay_decisions,
)
from hetplanner.elastic.coordinator.detection import FailureDetector
from hetplanner.elastic.coordinator.journal import Journal
from hetplanner.elastic.coordinator.leasing import Leasing
from hetplanner.elastic.coordinator.membership import Membership, PeerRecord, PeerState
from hetplanner.elastic.coordinator.peer_assignment import PeerAssignment
from hetplanner.elastic.coordinator.step_work import StepWork, step_work
from hetplanner.elastic.coordinator.transaction import Phase, StepTransaction, Verdict
from hetplanner.elastic.protocol.coordinator_events import (
    CoordinatorAction,
    CoordinatorEvent,
    PeerFailed,
    Persist,
    Persisted,
    PersistFailed,
    ProposeMove,
    Received,
    SwarmPeer,
    Tick,
    TrainerFailed,
)
from hetplanner.elastic.protocol.identity import Holding, Stamp, Version
from hetplanner.elastic.protocol.messages import (
    Ask,
    CannotReach,
    Decide,
    Decided,
    Done,
    Hello,
    Leave,
    Message,
    NotDone,
    Ping,
    Prepared,
    Ready,
    Reduced,
    Refused,
    Released,
    Save,
    Saved,
    Send,
    UnknownPeer,
)
from hetplanner.elastic.protocol.settings import ElasticSettings


class Coordinator:
    """State machine of the coordinator.

    Args:
        settings: of the run.
        decisions: of the log, oldest first; empty for a new run.
        fingerprint: of version, model and plan; peers with another one are refused.
        now_s: its clock.
        propose: rebalancing policy; None: no peer is moved.
        places: stages of peers by id, as long as no step is committed; others go where they are needed.
        fresh: no peer is alive, so that the first ones go to their places again, where their checkpoints are.
        steps: after so many committed ones nothing is granted any more; None: it goes on for ever.
        may_begin_anew: a stage that no peer holds and that no checkpoint has sets all stages back to their initial
            weights; else the swarm waits for a peer that returns with a copy.

    Attributes:
        failures: how often peers were lost, by reason.
        departed: peers that went at the last event -> why they were lost; '' has left as it wished to.
        work: of the step that is being closed or was committed last.
    """

    def __init__(
        self,
        settings: ElasticSettings,
        decisions: Iterable[Decision],
        fingerprint: str,
        now_s: float,
        propose: ProposeMove | None = None,
        steps: int | None = None,
        places: Mapping[str, int] | None = None,
        *,
        may_begin_anew: bool = False,
        fresh: bool = False,
    ) -> None:
        self.settings = settings
        self._may_begin_anew = may_begin_anew
        self._steps = steps
        self.ledger = replay_decisions(decisions)
        self.boot = self.ledger.boot + 1
        self.failures: Counter[str] = Counter()
        self.departed: dict[str, str] = {}
        self.work = StepWork()
        self._fingerprint = fingerprint
        self._propose = propose
        self._number = 0
        self.membership = Membership(settings.stages, self._stamp)
        self.journal = Journal(settings.stages, settings.micro_batches, settings.lease_s, self.membership.serves)
        self.transaction = StepTransaction(settings)
        self._leasing = Leasing(settings, self.journal, self._stamp)
        known = places if fresh or self.ledger.last_attempt is None else None
        self._assignment = PeerAssignment(settings, self.ledger, self.membership, self._stamp, known or {})
        self.cut_links = CutLinks()
        self._peers_heard: FailureDetector[str] = FailureDetector(settings.silence_s)
        self._queue: deque[Decision] = deque([Booted(self.boot)])
        self._is_writing = self._is_booted = self._is_setting_back = False
        self._may_begin = self._may_write = True
        self._opens_s = now_s + settings.settle_s
        self._lost_since_s: float | None = None
        self._told_epoch = self.membership.view.epoch
        self._out: list[CoordinatorAction] = []

    @property
    def version(self) -> Version:
        """Of all stages, as last decided."""
        return self.ledger.version

    @property
    def paused(self) -> list[int]:
        """Stages that no peer serves: nothing is granted until a peer serves them."""
        return self.membership.lost_stages()

    @property
    def is_done(self) -> bool:
        """Whether all steps are committed, and all peers know of the last one."""
        has_all = self._steps is not None and self.version.step >= self._steps
        return has_all and self.transaction.phase is Phase.RUN

    def finish(self) -> None:
        """Makes the last committed step the last one."""
        self._steps = self.version.step

    @property
    def is_saved(self) -> bool:
        """Whether every stage has a checkpoint of the last commit."""
        return self.ledger.newest_checkpoint(self.settings.stages) == self.version.step

    def save(self) -> list[Send]:
        """Asks the peers of every stage without one for a checkpoint; inside a round of local steps there is none."""
        if self.version.step == 0 or not self.settings.ends_round(self.version.step - 1):
            return []
        saved = self.ledger.checkpoints.get(self.version.step, {})
        most = None if self.settings.all_save else 1
        stages = [replicas[:most] for stage, replicas in enumerate(self.membership.view.stages) if stage not in saved]
        return [
            Send(replica.address, Save(replica.member, self.version)) for replicas in stages for replica in replicas
        ]

    def conclude(self) -> list[CoordinatorAction]:
        """The model of the last commit is saved."""
        self._queue.append(Finished(self.boot, self.version))
        self._write()
        return self._take_out()

    @property
    def in_flight_bound(self) -> int:
        """Micro-batches that can be under way at once: trainers times slots. A small one looks like slow peers."""
        return self._leasing.in_flight_bound

    def start(self) -> list[CoordinatorAction]:
        """What to do first: claim the log. Nothing else is answered before that is durable."""
        self._write()
        return self._take_out()

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[CoordinatorAction]:
        """Takes an event at a time in seconds and returns what is to be done."""
        self.departed = {}
        match event:
            case Persisted(decision=decision):
                self._persisted(decision, now_s)
            case PersistFailed():
                self._may_write = False  # until the next tick; the swarm keeps what it has meanwhile
                self._is_writing = False
            case Tick():
                self._tick(now_s)
            case _ if not self._is_booted:
                return []
            case Received(address=address, message=message):
                self._receive(address, message, now_s)
            case PeerFailed(member=member, reason=reason):
                if (record := self.membership.find(member)) is not None:
                    self._lose(record, reason, now_s)
            case TrainerFailed(trainer=trainer):
                self._leasing.drop_trainer(trainer)
        self._advance(now_s)
        return self._take_out()

    # Messages.

    def _receive(self, address: str, message: Message, now_s: float) -> None:
        match message:
            case Hello():
                self._hello(address, message, now_s)
            case Ask():
                self._leasing.ask(address, message, now_s)
                if message.epoch != self.membership.view.epoch:
                    self._out.append(Send(address, self.membership.view))
            case Done(trainer=trainer, lease=lease, manifest=manifest):
                self._out.append(self._leasing.settle(address, trainer, lease, manifest))
            case NotDone(trainer=trainer, lease=lease):
                self._out.append(self._leasing.give_up(address, trainer, lease))
            case Ping() | Ready() | Prepared() | Reduced() | Decided() | Leave() | Saved() | CannotReach():
                record = self.membership.find(message.member)
                if record is None:
                    self._out.append(Send(address, UnknownPeer(self.boot)))
                else:
                    self._peers_heard.hear(record.member.peer, now_s)
                    self._member_says(record, message, now_s)

    def _member_says(
        self,
        record: PeerRecord,
        message: Ping | Ready | Prepared | Reduced | Decided | Leave | Saved | CannotReach,
        now_s: float,
    ) -> None:
        match message:
            case Ping(epoch=epoch, queue=queue, speed=speed):
                record.queue = queue
                if speed is not None and 0 < speed < float("inf"):
                    record.speed = speed
                if epoch != self.membership.view.epoch:
                    self._out.append(Send(record.address, self.membership.view))
            case Ready(version=version):
                self._out += self._assignment.ready(record, version, now_s)
                for stage, saved in self._assignment.lost_checkpoints():
                    lost = CheckpointLost(self.boot, stage, saved)
                    if lost not in self._queue:
                        self._queue.append(lost)
            case Prepared(attempt=attempt, version=version, missing=missing):
                if attempt == self.transaction.attempt and version != self.transaction.version:
                    return self._lose(record, "out of step", now_s)
                if attempt == self.transaction.attempt:
                    self.work.worked(record.member.peer, message.worked_s)
                self.journal.drop_tokens(missing)
                self._conclude(*self.transaction.prepared(record.member, attempt, not missing, now_s), now_s)
            case Reduced():
                self._conclude(*self.transaction.reduced(message, now_s), now_s)
            case Decided(attempt=attempt, version=version):
                self._conclude(self.transaction.decided(record.member, attempt, version), [], now_s)
            case CannotReach(member=member, other=other) if self.membership.find(other) is not None:
                self.cut_links.report(member, other, now_s)
            case Leave() if not record.draining:
                self.membership.drain(record)
            case Saved(stage=stage, version=version):
                is_known = self.ledger.checkpoints.get(version.step, {}).get(stage) == version
                if not is_known:
                    self._queue.append(CheckpointSaved(self.boot, stage, version))
        return None

    def _hello(self, address: str, hello: Hello, now_s: float) -> None:
        if hello.fingerprint != self._fingerprint:
            reason = f"peer {hello.peer}: fingerprint {hello.fingerprint}, the coordinator has {self._fingerprint}"
            self._out.append(Send(address, Refused(f"{reason}; use the same version, model and plan")))
            return
        record = self.membership.get(hello.peer)
        if record is not None and record.process != hello.process:
            reason = f"peer id {hello.peer} is in use by a live process at {record.address}"
            self._out.append(Send(address, Refused(f"{reason}; choose another id, or try again when it has ended")))
            return
        if record is None and self.cut_links.is_resting(hello.peer, now_s):
            return
        self._peers_heard.hear(hello.peer, now_s)
        held = hello.holding
        if record is None and held is not None and held.pending is not None and self._missed_decision(held):
            self._out.append(Send(address, Decide(held.pending, True, self.version, self.ledger.last_norm)))
            return
        self._out += self._assignment.on_hello(address, hello)

    def _missed_decision(self, held: Holding) -> bool:
        """Whether a peer holds the sum of the last commit and only was not told that it is one."""
        return held.pending == self.ledger.last_attempt and held.version.step + 1 == self.version.step

    # Time.

    def _tick(self, now_s: float) -> None:
        self._may_begin = self._may_write = True
        if not self._is_booted:
            return
        for peer in self._peers_heard.find_silent(now_s):
            if (record := self.membership.get(peer)) is not None:
                self._lose(record, "silent", now_s)
        self._cut_off(now_s)
        self._leasing.tick(now_s)
        late, sends = self.transaction.tick(now_s)
        self._out += sends
        for member in late:
            if (record := self.membership.find(member)) is not None:
                self._lose(record, "no answer", now_s)
        self._watch_lost_stages(now_s)

    def _cut_off(self, now_s: float) -> None:
        """A peer that cannot reach the others of its stage is removed, though it lives."""
        self.cut_links.tick(now_s, lambda member: self._peers_heard.heard_s(member.peer))
        removed = self.cut_links.peer_to_remove(self._are_mates)
        if removed is not None and (record := self.membership.find(removed)) is not None:
            self.cut_links.rest(removed.peer, now_s)
            self._lose(record, "cut off", now_s)

    def _are_mates(self, link: Link) -> bool:
        one, two = map(self.membership.find, link)
        return one is not None and two is not None and one.stage == two.stage

    def _lose(self, record: PeerRecord, reason: str, now_s: float) -> None:
        """A peer is dead: what it held is done again, who fetched from it fetches elsewhere."""
        self.failures[reason] += 1
        self.departed[record.member.peer] = reason
        self.membership.remove(record.member.peer)
        self._peers_heard.forget(record.member.peer)
        self.journal.drop_member(record.member)
        self.cut_links.forget(record.member)
        self._conclude(*self.transaction.member_lost(record.member, now_s), now_s)
        self._out += self._assignment.source_lost(record.member)

    # The step.

    def _conclude(self, verdict: Verdict, sends: list[Send], now_s: float) -> None:
        self._out += sends
        match verdict:
            case Verdict.BACK:
                self._may_begin = False  # until the next tick: a failing all-reduce is not tried in a tight loop
            case Verdict.DECIDED:
                version = Version(self.version.lineage, self.version.step + 1)
                done = self.transaction
                self._queue.append(Committed(self.boot, done.attempt, version, done.loss_sum, done.grad_norm))
            case Verdict.CLOSED:
                self._cross_boundary(now_s)

    def _cross_boundary(self, now_s: float) -> None:
        """Between two steps no peer holds a contribution: draining peers leave, and one peer may move.

        Inside a round of local steps none leaves or moves: it would lose what it has learned since the round began.
        """
        if not self.settings.ends_round(self.version.step - 1):
            return
        for record in self.membership.in_state(PeerState.SERVING):
            if record.draining and not self._assignment.is_last(record):
                self.departed[record.member.peer] = ""
                self.membership.remove(record.member.peer)
                self._peers_heard.forget(record.member.peer)
                self._out += [
                    Send(record.address, Released(record.member)),
                    *self._assignment.source_lost(record.member),
                ]
        if self._propose is None:
            return
        serving = PeerState.SERVING
        peers = tuple(
            SwarmPeer(r.member.peer, r.stage, r.speed, r.state is serving, r.draining)
            for r in self.membership.all_records()
        )
        move = self._propose(peers, now_s)
        if move is not None:
            self._out += self._assignment.move(move.peer, move.to_stage)

    def _advance(self, now_s: float) -> None:
        """Whatever has become possible: joiners serve, micro-batches are granted, the step closes, views go out."""
        if self._is_booted and not self._is_setting_back:
            self._out += self._assignment.admit(self.transaction.phase is Phase.RUN, now_s)
            is_open = self.transaction.phase not in (Phase.PERSIST, Phase.COMMIT) and not self.is_done
            if is_open and not self.paused:
                self._out += self._leasing.grant(self.version, now_s)
            self._begin_if_complete(now_s)
        if self.membership.view.epoch != self._told_epoch:
            self._told_epoch = self.membership.view.epoch
            addresses = [r.address for r in self.membership.all_records()] + self._leasing.addresses()
            self._out += [Send(address, self.membership.view) for address in addresses]
        self._write()

    def _begin_if_complete(self, now_s: float) -> None:
        may = not self.is_done and self._may_begin and self.transaction.phase is Phase.RUN and now_s >= self._opens_s
        if may and self.journal.is_complete and not self._assignment.holds_step(now_s):
            tokens = self.journal.tokens_by_member()
            self.work = step_work(self.membership.view, tokens, self.journal.flow(), self.journal.sent())
            self._out += self.transaction.begin(self._stamp(), self.version, self.membership.view, tokens, now_s)

    # Decisions.

    def _write(self) -> None:
        if self._queue and self._may_write and not self._is_writing:
            self._is_writing = True
            self._out.append(Persist(self._queue[0]))

    def _persisted(self, decision: Decision, now_s: float) -> None:
        if not self._queue or decision != self._queue[0]:
            return
        self._queue.popleft()
        self._is_writing = False
        self.ledger.take(decision)
        match decision:
            case Booted():
                self._is_booted = True
            case Committed(version=version):
                self.journal.begin_step()
                self._assignment.forget_places()
                self._out += self.transaction.persisted(version, now_s)
                self._conclude(self.transaction.end_if_answered(), [], now_s)  # If all have died meanwhile.
            case SetBack():
                self._is_setting_back = False
                self._assignment.forget_places()
                self.journal.begin_step()
                self.transaction.give_up()
                self._out += self._assignment.reassign_all()

    def _watch_lost_stages(self, now_s: float) -> None:
        """A stage without a live copy: after a while all stages are set back to what all of them have saved."""
        hopeless = [s for s in self.paused if not self.membership.in_state(PeerState.JOINING, s)]
        is_lost = bool(hopeless) and self.version.step > 0 and self.transaction.phase is Phase.RUN
        if not is_lost or self._is_setting_back:
            self._lost_since_s = None
            return
        self._lost_since_s = now_s if self._lost_since_s is None else self._lost_since_s
        step = self.ledger.newest_checkpoint(self.settings.stages)
        if step is None and self._may_begin_anew:
            step = 0
        enough = len(self.membership.all_records()) >= self.settings.stages
        if step is not None and enough and now_s - self._lost_since_s >= self.settings.restore_s:
            self._is_setting_back = True
            self._queue.append(SetBack(self.boot, Version(self.version.lineage + 1, step)))

    def _stamp(self) -> Stamp:
        self._number += 1
        return Stamp(self.boot, self._number)

    def _take_out(self) -> list[CoordinatorAction]:
        out, self._out = self._out, []
        return out
