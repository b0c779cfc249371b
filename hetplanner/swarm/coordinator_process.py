"""The coordinator as a process: its machine, the decision log on a disk, watches on peers and trainers. No torch."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, get_args

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import Committed, Decision, SetBack
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.protocol import messages
from hetplanner.elastic.protocol.coordinator_events import (
    PeerFailed,
    Persist,
    Persisted,
    PersistFailed,
    Received,
    TrainerFailed,
)
from hetplanner.elastic.protocol.identity import Member
from hetplanner.elastic.rebalancing.proposer import Proposer
from hetplanner.errors import InvalidInput
from hetplanner.swarm.decision_file import DECISIONS_FILE, DecisionFile
from hetplanner.swarm.driver import Driver, now_s
from hetplanner.swarm.event_log import EventLog
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.certificates import Credentials
from hetplanner.swarm.wire.endpoint import Lost
from hetplanner.swarm.wire.tls_listener import HUNG_UP

log = logging.getLogger(__name__)

DESCRIPTION_QUERY = b"description"
CONTROL_BYTES = 2**20
CUT_OFF, LIVES = 3, 2
"""Accusations after which a peer is cut off, and how often it may come back before it is refused."""
RETRY_S = 1.0
MAX_HOSTS = 1000
"""Strangers at so many hosts are reported."""
HANG_UPS = 3
"""From so many on they are reported."""
FAREWELL_S = 0.3
"""How long the last messages may take."""
RETURN_S = 2.0
"""How long a coordinator that was started again only for this tells callers that all is done."""
CHECKPOINT_S = 20.0
"""So long the peers have for a last checkpoint."""
CHECKPOINT_POLL_S = 0.05
PAUSED_S = 1.0
"""Told to end while no peer serves some stage, it waits so long for a joining peer."""
CLOSING_S = 5.0
"""Told to end while a step is closed, it waits so long beyond what an attempt may take."""


class CoordinatorProcess(Driver):
    """The one coordinator of a swarm.

    Args:
        spec: of the run.
        credentials: of the swarm; None on loopback.
        decisions: its log.
        event_log: what is told of the run.
        run_dir: gets the model.
        proxy: see Endpoint.
        fresh: no other process of the swarm is alive.

    Attributes:
        garbage_reports: by peer, how often others got garbage from it.
    """

    takes = (*get_args(messages.PeerToCoordinator), *get_args(messages.TrainerToCoordinator))

    def __init__(
        self,
        spec: SwarmSpec,
        credentials: Credentials | None,
        decisions: DecisionFile,
        event_log: EventLog,
        run_dir: Path,
        proxy: str = "",
        *,
        fresh: bool = False,
    ) -> None:
        super().__init__(credentials, CONTROL_BYTES, proxy=proxy)
        self.spec, self.event_log = spec, event_log
        self._decisions, self._run_dir = decisions, run_dir
        self._finishing = self.is_over = False
        self._trouble = ""
        self._asked_to_end_s: float | None = None
        steps = spec.train.steps
        self.machine = Coordinator(
            spec.settings,
            decisions.decisions,
            spec.fingerprint,
            now_s(),
            Proposer(spec.rebalancing, [1.0] * spec.num_stages, _download_s(spec), self._queue_of),
            steps,
            spec.places,
            may_begin_anew=spec.train.max_restarts > 0,
            fresh=fresh,
        )
        self.garbage_reports: Counter[str] = Counter()
        self._members: dict[str, Member] = {}
        self._trainers: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._reports: Counter[str] = Counter()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._phase = Phase.RUN

    async def start(self, host: str, port: int) -> str:
        """Listens and claims the log. Returns the address."""
        address = await self.endpoint.start(host, port, listener_folder=self._run_dir)
        commits = [d for d in self._decisions.decisions if isinstance(d, Committed)]
        machine, last = self.machine, commits[-1] if commits else None
        resumed = machine.ledger.resumed
        source = resumed[1] if resumed is not None and resumed[0] == machine.version.step else None
        self.event_log.began(machine.boot, machine.version, address, last, source)
        self._perform_all(self.machine.start())
        return address

    def on_tick(self) -> None:
        """See Driver."""
        self.event_log.retry()
        machine = self.machine
        if self._finishing:
            return
        if machine.ledger.is_finished(self.spec.train.steps):  # an earlier coordinator died while it said so
            self._begin_to_end(self._say_goodbye(RETURN_S))
        elif machine.is_done and not machine.paused:
            self._begin_to_end(self._save_and_go() if self.was_preempted else self._finish())
        elif self._asked_to_end_s is not None and now_s() - self._asked_to_end_s > self._patience_s:
            waited = "a step could not be closed" if not machine.paused else f"no peer serves stages {machine.paused}"
            self.event_log.event("not saved", text=waited)
            self.ended.set()

    def _begin_to_end(self, ending: Coroutine[Any, Any, None]) -> None:
        self._finishing = True
        self.spawn(ending)

    @property
    def _patience_s(self) -> float:
        """How long it goes on, once told to end, for the sake of what can be saved."""
        machine, settings = self.machine, self.spec.settings
        if machine.transaction.phase is not Phase.RUN:
            return settings.answer_s + settings.reduce_s + CLOSING_S
        return PAUSED_S if machine.membership.all_records() else 0.0

    def stop(self) -> None:
        """Ends the run after the step that is being closed; the model is saved. Told again it ends at once."""
        if self._asked_to_end_s is not None:
            self.ended.set()
        self._end_after_step()

    def preempt(self) -> None:
        """Ends this process after the step that is being closed, with a checkpoint; peers may wait for another one.

        Told again it changes nothing: where a whole machine is to end, the processes of a run are told one by one too.
        """
        if self._asked_to_end_s is None:
            self.was_preempted = True
            self._end_after_step()

    def _end_after_step(self) -> None:
        self._asked_to_end_s = now_s()
        self.machine.finish()

    def _queue_of(self, peer: str) -> float:
        record = self.machine.membership.get(peer)
        return 0.0 if record is None else float(record.queue)

    async def _finish(self) -> None:
        """All steps are done: saves the model and tells all processes. Without a stage's peer it is tried again."""
        # Torch is needed here alone, and takes a while to import.
        ending = await asyncio.to_thread(importlib.import_module, "hetplanner.swarm.final_save")
        machine = self.machine
        view, version = machine.membership.view, machine.version
        try:
            await ending.save_model(self.endpoint, self.spec, view, version, self._run_dir)
        except OSError as error:
            self._tell_of_disk(f"model: {error.strerror or error}; it is tried again")
            await asyncio.sleep(RETRY_S)
            self._finishing = False
            return
        except (Lost, InvalidInput) as error:
            self.event_log.event("not saved", text=str(error)[:300])
            await asyncio.sleep(RETRY_S)
            self._finishing = False
            return
        for found in await ending.compare_replicas(self.endpoint, view, version):
            self.event_log.event("digests", **found)
        if self.spec.settings.checkpoint_steps:
            await self._save_checkpoint()
        self._perform_all(machine.conclude())
        while not machine.ledger.is_finished(version.step):  # a disk may have to be freed first
            await asyncio.sleep(CHECKPOINT_POLL_S)
        await self._say_goodbye(FAREWELL_S)

    async def _say_goodbye(self, seconds: float) -> None:
        """The run is over: all known processes are told, and those that send a message in so many seconds."""
        self.is_over = True
        version = self.machine.version
        for address in {*self._members, *self._trainers}:
            self.tell(address, self._end_message)
        await asyncio.sleep(seconds)
        self.event_log.event("end", version=list(version))
        self.ended.set()

    @property
    def _end_message(self) -> messages.Ended:
        return messages.Ended(f"{self.machine.version.step} steps are done")

    async def _save_and_go(self) -> None:
        """Leaves a checkpoint to the next coordinator, or to the next swarm."""
        is_saved = await self._save_checkpoint()
        text = f"step {self.machine.version.step}" + ("" if is_saved else ", without a checkpoint of it")
        self.event_log.event("preempted", text=text)
        self.ended.set()

    async def _save_checkpoint(self) -> bool:
        """Has one peer of every stage write a checkpoint of the last commit; returns whether all have."""
        asked: set[messages.Message] = set()
        until_s = now_s() + CHECKPOINT_S
        while not self.machine.is_saved and now_s() < until_s:
            orders = [order for order in self.machine.save() if order.message not in asked]
            asked |= {order.message for order in orders}
            self._perform_all([*orders])
            if not asked:
                break  # there is nothing that could be saved
            await asyncio.sleep(CHECKPOINT_POLL_S)
        return self.machine.is_saved

    # Machine.

    def handle(self, event: Any) -> None:
        """See Driver."""
        match event:
            case Received(address=address, message=messages.ReportGarbage() as report):
                return self._on_garbage_report(address, report)
            case Received(message=messages.Sent(boundary_bytes=boundary, reduce_bytes=reduce)):
                return self.event_log.sent(boundary, reduce)
        if isinstance(event, Received):
            if self._is_banned(event.address, event.message):
                return
            if self.is_over:
                return self.tell(event.address, self._end_message)
            self._note(event.address, event.message)
        actions = self.machine.handle(event, now_s())
        self._tell_of_phase()
        self._perform_all(actions)
        self.event_log.observe(self.machine)

    def _tell_of_phase(self) -> None:
        before, self._phase = self._phase, self.machine.transaction.phase
        if before is not self._phase:
            self.event_log.phase(self._phase)

    def _note(self, address: str, message: messages.Message) -> None:
        if isinstance(message, messages.Ask):
            self._trainers[address] = message.trainer
            self._watch(address)

    def _perform_all(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Persist(decision=decision):
                    self.spawn(self._persist(decision))
                case messages.Send(address=address, message=message):
                    if isinstance(message, messages.AssignStage):
                        self._members[address] = message.member
                        self._watch(address)
                    if isinstance(message, messages.Refused):
                        self._refuse(address, message.reason)
                    else:
                        self.tell(address, message)

    async def _persist(self, decision: Decision) -> None:
        try:
            await asyncio.to_thread(self._decisions.append, decision)
        except OSError as error:
            self._tell_of_disk(f"decision log: {error.strerror or error}; the swarm waits")
            self.handle(PersistFailed(decision))
            return
        if self._trouble:
            self._tell_of_disk("")
        if isinstance(decision, Committed):
            self.event_log.committed(decision, self.machine.work)
            self._tell_of_lost_work()
        elif isinstance(decision, SetBack):
            self.event_log.set_back(decision.version)
        self.handle(Persisted(decision))

    def _tell_of_disk(self, trouble: str) -> None:
        """Once when a disk takes nothing, and once when it does again; it is tried all the time."""
        if trouble != self._trouble:
            log.warning("disk: %s", trouble or "written again")
            self.event_log.event("disk", text=trouble or "written again")
        self._trouble = trouble

    def _tell_of_lost_work(self) -> None:
        """What peers have learned by themselves goes with them, until it is averaged."""
        settings = self.spec.settings
        for stage, lost in enumerate(self.machine.transaction.lost_samples):
            if lost:
                whole = settings.round_steps * settings.micro_batches
                self.event_log.event("local work lost", stage=stage, micro_batches=lost, of=whole)

    # Life and death of others.

    def _watch(self, address: str) -> None:
        if address not in self._watches:
            self._watches[address] = self.spawn(self._wait_for_end(address))

    async def _wait_for_end(self, address: str) -> None:
        await self.endpoint.watch(address)
        self._watches.pop(address, None)
        self._gone(address, "connection lost")
        await self.endpoint.forget(address)

    def _gone(self, address: str, reason: str) -> None:
        if self.is_over:
            return
        if (member := self._members.pop(address, None)) is not None:
            self.handle(PeerFailed(member, reason))
        if (trainer := self._trainers.pop(address, None)) is not None:
            self.event_log.event("trainer lost", peer=trainer, text=reason)
            self.handle(TrainerFailed(trainer))

    def unreachable(self, address: str, message: messages.Message) -> None:
        """See Driver."""
        self._gone(address, "unreachable")

    def _on_garbage_report(self, sender: str, report: messages.ReportGarbage) -> None:
        """A process got garbage from a peer: after some such times it is cut off, after some more for good."""
        member = self._members.get(report.address)
        if member is None or sender not in (*self._members, *self._trainers):
            return
        self.garbage_reports[member.peer] += 1
        by = self._trainers.get(sender) or self._members[sender].peer
        self.event_log.event("accused", peer=member.peer, by=by, text=report.reason)
        if self.garbage_reports[member.peer] % CUT_OFF == 0:
            self._gone(report.address, "accused")

    def _is_banned(self, address: str, message: messages.Message) -> bool:
        """Whether a message is of a peer that has been cut off for good; it is told so."""
        if not isinstance(message, messages.Hello) or self.garbage_reports[message.peer] < CUT_OFF * LIVES:
            return False
        count = self.garbage_reports[message.peer]
        reason = f"peer {message.peer}: others got garbage from it {count} times; repair its host"
        self._refuse(address, reason)
        return True

    def _refuse(self, address: str, reason: str) -> None:
        if (address, reason) not in self._refused:  # it asks again and again
            self._refused.add((address, reason))
            self.event_log.event("refused", text=reason)
        self.tell(address, messages.Refused(reason))

    def on_garbage(self, sender: str, reason: str) -> None:
        """See Driver: a peer that sends garbage is cut off."""
        super().on_garbage(sender, reason)
        member = self._members.get(sender)
        self.event_log.event("garbage", peer=member.peer if member else sender, text=reason[:300])
        self._gone(sender, "garbage")

    def on_stranger(self, host: str, reason: str) -> None:
        """See Driver: the first, tenth, hundredth of a host is reported, as it tries again and again."""
        super().on_stranger(host, reason)
        count = self.strangers[host] - (HANG_UPS - 1 if reason == HUNG_UP else 0)
        if count >= 10 ** self._reports[host] and len(self.strangers) <= MAX_HOSTS:
            self._reports[host] += 1
            again = f", {self.strangers[host]} times so far" if self.strangers[host] > 1 else ""
            self.event_log.event("refused", peer=host, text=f"no certificate of this swarm: {reason}{again}")

    async def on_query(self, request: bytes) -> bytes:
        """See Service."""
        if request == DESCRIPTION_QUERY:
            return self.spec.to_json().encode()
        raise InvalidInput(f"query: {request[:40]!r} is not known")


def _download_s(spec: SwarmSpec) -> float:
    """Seconds of a stage's download, roughly: weights, and moments of those that are trained, at 1 Gbit/s."""
    ops = spec.workload.graph.ops
    stages = [ops[slice(*spec.ops_of(stage))] for stage in range(spec.num_stages)]
    most_bytes = max(sum(4 * op.num_params + 8 * op.trained for op in stage) for stage in stages)
    return 0.5 + most_bytes / 125e6


def open_decisions(folder: Path) -> DecisionFile:
    """The decision log of a run."""
    return DecisionFile(folder / DECISIONS_FILE)
