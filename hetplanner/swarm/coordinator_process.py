"""The coordinator as a process: its machine, the decision log on a disk, watches on peers and trainers. No torch."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from hetplanner.elastic.coordinator import Coordinator
from hetplanner.elastic.coordinator_events import (
    PeerFailed,
    Persist,
    Persisted,
    PersistFailed,
    Received,
    TrainerFailed,
)
from hetplanner.elastic.decisions import Committed, Decision, SetBack
from hetplanner.elastic.identity import Member
from hetplanner.elastic.messages import (
    Accuse,
    Ask,
    Become,
    Ended,
    Hello,
    Message,
    PeerToCoordinator,
    Refused,
    Send,
    Sent,
    TrainerToCoordinator,
)
from hetplanner.elastic.proposer import Proposer
from hetplanner.elastic.transaction import Phase
from hetplanner.errors import InvalidInput
from hetplanner.swarm.chronicle import Chronicle
from hetplanner.swarm.decision_file import DecisionFile
from hetplanner.swarm.driver import Driver, now_s
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.certificates import Credentials
from hetplanner.swarm.wire.door import HUNG_UP
from hetplanner.swarm.wire.endpoint import Lost

log = logging.getLogger(__name__)

DESCRIPTION_QUERY = b"description"
CONTROL_BYTES = 2**20
CUT_OFF, LIVES = 3, 2
"""Accusations after which a peer is cut off, and how often it may come back before it is refused."""
RETRY_S = 1.0
TOLD_COUNTS = tuple(10**n for n in range(9))
MAX_HOSTS = 1000
"""Strangers are told of at these counts, and of so many hosts."""
HANG_UPS = 3
"""From so many on they are told."""
FAREWELL_S = 0.3
"""How long the last messages may take."""


class CoordinatorProcess(Driver):
    """The one coordinator of a swarm.

    Args:
        spec: of the run.
        credentials: of the swarm; None on loopback.
        decisions: its log.
        chronicle: what is told of the run.
        run_dir: gets the model.
        proxy: see Endpoint.

    Attributes:
        accusations: by peer, how often others got garbage from it.
    """

    takes = (*get_args(PeerToCoordinator), *get_args(TrainerToCoordinator))

    def __init__(
        self,
        spec: SwarmSpec,
        credentials: Credentials | None,
        decisions: DecisionFile,
        chronicle: Chronicle,
        run_dir: Path,
        proxy: str = "",
    ) -> None:
        super().__init__(credentials, CONTROL_BYTES, proxy=proxy)
        self.spec, self.chronicle = spec, chronicle
        self._decisions, self._run_dir = decisions, run_dir
        self._finishing = self.is_over = False
        steps = spec.train.steps
        self.machine = Coordinator(
            spec.settings,
            decisions.decisions,
            spec.fingerprint,
            now_s(),
            Proposer(spec.rebalancing, [1.0] * spec.num_stages, _download_s(spec), self._queue_of),
            steps,
            spec.places,
        )
        self.accusations: Counter[str] = Counter()
        self._members: dict[str, Member] = {}
        self._trainers: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._phase = Phase.RUN

    async def start(self, host: str, port: int) -> str:
        """Listens and claims the log. Returns the address."""
        address = await self.endpoint.start(host, port, door=True)
        commits = [d for d in self._decisions.decisions if isinstance(d, Committed)]
        self.chronicle.began(self.machine.boot, self.machine.version, address, commits[-1] if commits else None)
        self._perform_all(self.machine.start())
        return address

    def on_tick(self) -> None:
        """See Driver."""
        if self.machine.is_done and not self.machine.paused and not self._finishing:
            self._finishing = True
            self.spawn(self._finish())

    def stop(self) -> None:
        """Ends the run after the step that is being closed, or at once."""
        self.machine.finish()

    def _queue_of(self, peer: str) -> float:
        record = self.machine.membership.get(peer)
        return 0.0 if record is None else float(record.queue)

    async def _finish(self) -> None:
        """All steps are done: saves the model and tells everybody. Without a stage's peer it is tried again."""
        # Torch is needed here alone, and takes a while to import.
        ending = await asyncio.to_thread(importlib.import_module, "hetplanner.swarm.ending")
        machine = self.machine
        view, version = machine.membership.view, machine.version
        try:
            await ending.save_model(self.endpoint, self.spec, view, version, self._run_dir)
        except (Lost, InvalidInput, OSError) as error:
            self.chronicle.event("not saved", text=str(error)[:300])
            await asyncio.sleep(RETRY_S)
            self._finishing = False
            return
        for found in await ending.compare_replicas(self.endpoint, view, version):
            self.chronicle.event("digests", **found)
        self.is_over = True
        for address in {*self._members, *self._trainers}:
            self.tell(address, Ended(f"{version.step} steps are done"))
        await asyncio.sleep(FAREWELL_S)
        self.chronicle.event("end", version=list(version))
        self.ended.set()

    # Machine.

    def handle(self, event: Any) -> None:
        """See Driver."""
        match event:
            case Received(address=address, message=Accuse() as accusation):
                return self._accuse(address, accusation)
            case Received(message=Sent(boundary_bytes=boundary, reduce_bytes=reduce)):
                return self.chronicle.sent(boundary, reduce)
        if isinstance(event, Received) and self._is_outlaw(event.address, event.message):
            return
        if isinstance(event, Received):
            self._note(event.address, event.message)
        actions = self.machine.handle(event, now_s())
        self._tell_of_phase()
        self._perform_all(actions)
        self.chronicle.saw(self.machine)

    def _tell_of_phase(self) -> None:
        before, self._phase = self._phase, self.machine.transaction.phase
        if before is not self._phase:
            self.chronicle.phase(self._phase)

    def _note(self, address: str, message: Message) -> None:
        if isinstance(message, Ask):
            self._trainers[address] = message.trainer
            self._watch(address)

    def _perform_all(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Persist(decision=decision):
                    self.spawn(self._persist(decision))
                case Send(address=address, message=message):
                    if isinstance(message, Become):
                        self._members[address] = message.member
                        self._watch(address)
                    if isinstance(message, Refused):
                        self._refuse(address, message.reason)
                    else:
                        self.tell(address, message)

    async def _persist(self, decision: Decision) -> None:
        try:
            await asyncio.to_thread(self._decisions.append, decision)
        except OSError as error:
            self.chronicle.event("disk", text=f"decision log: {error.strerror or error}")
            self.handle(PersistFailed(decision))
            return
        if isinstance(decision, Committed):
            self.chronicle.committed(decision, self.machine.work)
            self._tell_of_lost_work()
        elif isinstance(decision, SetBack):
            self.chronicle.event("set back", text=f"all stages to step {decision.version.step}")
        self.handle(Persisted(decision))

    def _tell_of_lost_work(self) -> None:
        """What peers have learned by themselves goes with them, until it is averaged."""
        settings = self.spec.settings
        for stage, lost in enumerate(self.machine.transaction.lost_samples):
            if lost:
                whole = settings.round_steps * settings.micro_batches
                self.chronicle.event("local work lost", stage=stage, micro_batches=lost, of=whole)

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
            self.chronicle.event("trainer lost", peer=trainer, text=reason)
            self.handle(TrainerFailed(trainer))

    def unreachable(self, address: str, message: Message) -> None:
        """See Driver."""
        self._gone(address, "unreachable")

    def _accuse(self, accuser: str, accusation: Accuse) -> None:
        """Somebody got garbage from a peer: after some such times it is cut off, after some more for good."""
        member = self._members.get(accusation.address)
        if member is None or accuser not in (*self._members, *self._trainers):
            return
        self.accusations[member.peer] += 1
        by = self._trainers.get(accuser) or self._members[accuser].peer
        self.chronicle.event("accused", peer=member.peer, by=by, text=accusation.reason)
        if self.accusations[member.peer] % CUT_OFF == 0:
            self._gone(accusation.address, "accused")

    def _is_outlaw(self, address: str, message: Message) -> bool:
        """Whether a message is a peer's who has been cut off for good; it is told so."""
        if not isinstance(message, Hello) or self.accusations[message.peer] < CUT_OFF * LIVES:
            return False
        count = self.accusations[message.peer]
        reason = f"peer {message.peer}: others got garbage from it {count} times; repair its host"
        self._refuse(address, reason)
        return True

    def _refuse(self, address: str, reason: str) -> None:
        if (address, reason) not in self._refused:  # it asks again and again
            self._refused.add((address, reason))
            self.chronicle.event("refused", text=reason)
        self.tell(address, Refused(reason))

    def on_garbage(self, sender: str, reason: str) -> None:
        """See Driver: whoever sends garbage is cut off."""
        super().on_garbage(sender, reason)
        member = self._members.get(sender)
        self.chronicle.event("garbage", peer=member.peer if member else sender, text=reason[:300])
        self._gone(sender, "garbage")

    def on_stranger(self, host: str, reason: str) -> None:
        """See Driver: the first, tenth, hundredth of a host is told, as it tries again and again."""
        super().on_stranger(host, reason)
        count = self.strangers[host] - (HANG_UPS - 1 if reason == HUNG_UP else 0)
        if count in TOLD_COUNTS and len(self.strangers) <= MAX_HOSTS:
            again = f", {self.strangers[host]} times so far" if self.strangers[host] > 1 else ""
            self.chronicle.event("refused", peer=host, text=f"no certificate of this swarm: {reason}{again}")

    async def on_query(self, request: bytes) -> bytes:
        """See Service."""
        if request == DESCRIPTION_QUERY:
            return self.spec.to_json().encode()
        raise InvalidInput(f"query: {request[:40]!r} is not known")


def _download_s(spec: SwarmSpec) -> float:
    """Seconds of a stage's download, roughly: weights and moments at 1 Gbit/s."""
    ops = spec.workload.graph.ops
    params = max(sum(op.num_params for op in ops[slice(*spec.ops_of(s))]) for s in range(spec.num_stages))
    return 0.5 + 12 * params / 125e6


def open_decisions(folder: Path) -> DecisionFile:
    """The decision log of a run."""
    return DecisionFile(folder / "decisions.log")
