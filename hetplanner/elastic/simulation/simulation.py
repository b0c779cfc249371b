"""Event simulation of a swarm: the real machines on simulated hosts, network and disk, under scripted bad luck.

Processes are killed, stopped and cut off, messages lost, late and doubled, trainers and the coordinator die in every
phase, the disk fills up, peers join, leave, move and use ids twice. The checks look at every commit and every step.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from random import Random

import numpy as np

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import (
    cut_torn_line,
    decisions_of_a_restart,
    decode_decisions,
    encode_decision,
    replay_decisions,
)
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.protocol.coordinator_events import PeerFailed, SwarmPeer
from hetplanner.elastic.protocol.identity import Replica, Stamp, Token, Version
from hetplanner.elastic.protocol.messages import Message
from hetplanner.elastic.protocol.peer_events import LeaveAsked
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation.checks import Checks
from hetplanner.elastic.simulation.faults import NEVER, NO_FAULTS, Faults, SimulatedMove
from hetplanner.elastic.simulation.hosts import COORDINATOR, CoordinatorHost, Host, PeerHost, Reduction, TrainerHost
from hetplanner.elastic.simulation.links import CutPairs
from hetplanner.elastic.simulation.model import MODULUS

STUCK_S = 400.0
BROKEN_S = (0.01, 1.2)
"""Until a call over a link that is cut fails, as measured with gRPC's keepalive."""
NOTICED_S = (0.04, 0.39)
"""Between a kill and a broken connection at the coordinator, as measured with gRPC on loopback."""


class Simulation:
    """A swarm and its world.

    Args:
        settings: of the run.
        faults: what goes wrong.
        seed: of everything random.
        peers: processes that are kept alive; a process that dies is followed by another.
        trainers: processes.
        slots: micro-batches that a trainer has under way at once.
        speeds: of the peers in order of joining, over and over, in micro-batches per second; None: drawn.
        host_kind: of peers, for ablations.
        prepare_coordinator: changes a fresh coordinator, for ablations.

    Attributes:
        happened: faults by kind.
        links: that are cut between processes that live.
        stuck: whether no step was committed for STUCK_S although nothing was lost.
        lost: whether every copy of a stage was, before there was a checkpoint to go back to.
    """

    fingerprint = "model-1"

    def __init__(
        self,
        settings: ElasticSettings,
        faults: Faults,
        seed: int,
        peers: int = 6,
        trainers: int = 2,
        slots: int = 2,
        speeds: Sequence[float] | None = None,
        host_kind: type[PeerHost] = PeerHost,
        prepare_coordinator: Callable[[Coordinator], None] = lambda coordinator: None,
    ) -> None:
        self.settings, self.faults = settings, faults
        self.rng, self.random = np.random.default_rng(seed), Random(seed)
        self.prepare_coordinator = prepare_coordinator
        self.checks = Checks(settings)
        self.now_s = self.disk_full_until_s = 0.0
        self.disk = bytearray()
        self.checkpoints: dict[tuple[int, Version], int | None] = {}  # None: damaged
        self.happened: Counter[str] = Counter()
        self.stuck = self.lost = False
        self._host_kind = host_kind
        self._peers, self._trainers, self._slots = peers, trainers, slots
        self._speeds = cycle(speeds) if speeds is not None else None
        self._events: list[tuple[float, int, Host | None, Callable[[], None]]] = []
        self._hosts: dict[str, Host] = {}
        self.links = CutPairs()
        self._reductions: dict[tuple[Stamp, tuple[Replica, ...]], Reduction] = {}
        self._number = self._generation = 0
        self._begin()

    def run(self, commits: int) -> None:
        """Goes on until so many steps are committed, or nothing moves any more."""
        last_s, last = self.now_s, self.checks.commits
        while self.checks.commits < commits and not (self.stuck or self.lost):
            self.now_s, _, host, act = heapq.heappop(self._events)
            if host is None or host.is_alive:
                if host is not None and self.now_s < host.hung_until_s:
                    self.later(host.hung_until_s - self.now_s, host, act)
                else:
                    act()
            if self.checks.commits > last:
                last_s, last = self.now_s, self.checks.commits
            if self.now_s - last_s > STUCK_S:
                self.lost = self._is_lost()
                self.stuck = not self.lost

    def end_faults(self) -> None:
        """Nothing goes wrong any more; the swarm has to recover from where it is."""
        self.faults, self.stuck = NO_FAULTS, False

    def _is_lost(self) -> bool:
        """Some stage's only state is in memories that are gone, and no checkpoint of all stages exists."""
        ledger = replay_decisions(decode_decisions(bytes(self.disk)))
        held = {h.machine.stage for h in self._living() if h.machine.version == ledger.version}
        is_held = held == set(range(self.settings.stages))
        return not is_held and ledger.newest_checkpoint(self.settings.stages) is None

    def later(self, delay_s: float, host: Host | None, act: Callable[[], None]) -> None:
        """Does something after a while, if the host then still lives."""
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, host, act))

    # Network.

    def transmit(self, sender: Host, address: str, message: Message, payload: int | None) -> None:
        """Carries a message, or loses, delays or doubles it; no process at the address: the sender is told."""
        luck, faults = self.random.random(), self.faults
        delay_s = 0.001 + 0.01 * self.random.random()
        target = self._hosts.get(address)
        if sender.cut_until_s > self.now_s or luck < faults.lost:
            self.happened["lost"] += 1
            return
        if target is None or not target.is_alive:
            self.later(delay_s, sender, lambda: sender.unreachable(address, message))
            return
        if self.links.are_parted(sender.address, address, self.now_s):
            self.happened["parted"] += 1
            self.later(self.random.uniform(*BROKEN_S), sender, lambda: sender.unreachable(address, message))
            return
        luck -= faults.lost
        if luck < faults.late:
            self.happened["late"] += 1
            delay_s += 8.0 * self.random.random()
        self.later(delay_s, target, lambda: self._deliver(target, sender.address, message, payload))
        if faults.late <= luck < faults.late + faults.doubled:
            self.later(2 * delay_s, target, lambda: self._deliver(target, sender.address, message, payload))

    def _deliver(self, target: Host, sender: str, message: Message, payload: int | None) -> None:
        if target.cut_until_s <= self.now_s and not self.links.are_parted(sender, target.address, self.now_s):
            target.receive(sender, message, payload)

    def snapshot(self, joiner: PeerHost, stage: int, replica: Replica) -> tuple[int | None, Version | None]:
        """The state of a stage as a peer has it now; nothing if it cannot be had."""
        host = self._hosts.get(replica.address)
        if not isinstance(host, PeerHost) or not self.reaches(joiner, replica.address) or host.machine.stage != stage:
            return None, None
        return (None, None) if host.machine.version is None else (host.weights, host.machine.version)

    def is_there(self, address: str) -> bool:
        """Whether a process listens at an address, though it may be stopped or cut off."""
        host = self._hosts.get(address)
        return host is not None and host.is_alive

    def reaches(self, host: Host, address: str) -> bool:
        """Whether a process at an address would answer another one now."""
        other = self._hosts.get(address)
        if other is None or not other.is_alive or self.links.are_parted(host.address, address, self.now_s):
            return False
        return max(host.cut_until_s, other.hung_until_s, other.cut_until_s) <= self.now_s

    def join_reduction(
        self, host: PeerHost, attempt: Stamp, tokens: tuple[Token, ...], group: tuple[Replica, ...]
    ) -> None:
        """A member begins an all-reduce; it goes through when all have, and fails when one is dead."""
        reduction = self._reductions.setdefault((attempt, group), Reduction(group))
        reduction.sums[host.address] = host.fold(tokens)
        hosts = [self._hosts.get(replica.address) for replica in group]
        if any(member is None or not member.is_alive for member in hosts):
            self.later(0.16, host, lambda: host.fold_done(attempt, None, None))
        elif len(reduction.sums) == len(group):
            del self._reductions[attempt, group]
            self.later(0.03, None, lambda: self._finish_reduction(attempt, host.machine.stage, reduction))

    def _finish_reduction(self, attempt: Stamp, stage: int, reduction: Reduction) -> None:
        tokens = tuple(t for _, _, folded in reduction.sums.values() for t in folded)
        total = sum(value for value, _, _ in reduction.sums.values()) % MODULUS
        count = sum(number for _, number, _ in reduction.sums.values())
        parted = self.links.parted_of(reduction.sums, self.now_s)
        fails = bool(parted) or self.random.random() < self.faults.reduce
        self.happened["reduce"] += fails
        self.checks.folded(attempt, stage, tokens)
        for address in reduction.sums:
            host = self._hosts.get(address)
            if isinstance(host, PeerHost) and address not in parted and not (fails and self.random.random() < 0.6):
                self.later(0.0, host, partial(host.fold_done, attempt, total, count))
            elif isinstance(host, PeerHost):
                self.later(0.16, host, partial(host.fold_done, attempt, None, None))

    # Life and death.

    def _start_everybody(self) -> None:
        self._start_coordinator()
        for number in range(self._trainers):
            self._start_trainer(number)
        for number in range(self._peers):  # One after the other, so that the coordinator places them in order.
            self._later_of_these(0.1 + 0.05 * number, lambda: self._join(f"peer-{self._number}"))

    def _later_of_these(self, delay_s: float, act: Callable[[], None]) -> None:
        """Starts a process after a while, unless all have died meanwhile and are started again anyway."""
        generation = self._generation
        self.later(delay_s, None, lambda: act() if generation == self._generation else None)

    def _begin(self) -> None:
        self._start_everybody()
        kinds = {
            "kill": self._kill_peer,
            "hang": self._hang,
            "cut": self._cut,
            "link": self._cut_link,
            "leave": self._leave,
            "twin": self._start_twin,
            "trainer": self._kill_trainer,
            "disk_full": self._fill_disk,
            "everybody": self._kill_everybody,
        }
        for name, act in kinds.items():
            self._repeat(name, act)

    def _repeat(self, name: str, act: Callable[[], bool]) -> None:
        mean_s = getattr(self.faults, f"{name}_s")
        if mean_s == NEVER:
            return

        def happen() -> None:
            if getattr(self.faults, f"{name}_s") != NEVER:
                self.happened[name] += act()
                self._repeat(name, act)

        self.later(self.rng.exponential(mean_s), None, happen)

    def _add(self, host: Host) -> None:
        self._hosts[host.address] = host
        self.later(0.0, host, host.tick)

    def _join(self, name: str, is_twin: bool = False) -> None:
        self._number += 1
        speed = next(self._speeds) if self._speeds is not None else float(self.rng.uniform(6, 18))
        self._add(self._host_kind(self, f"{name}@{self._number}", name, speed))
        self.happened["join"] += not is_twin

    def _start_trainer(self, number: int) -> None:
        self._number += 1
        self._add(TrainerHost(self, f"trainer-{number}@{self._number}", self._slots))

    def _start_coordinator(self) -> None:
        self._add(CoordinatorHost(self))

    def ends_coordinator(self, phase: Phase) -> bool:
        """Whether the coordinator dies as it enters a phase."""
        return self.random.random() < self.faults.phase_kill

    def kill_coordinator(self, when: str) -> None:
        """The coordinator is gone, also what it was writing; another one starts from the log."""
        self.happened[f"coordinator {when}"] += 1
        self._hosts[COORDINATOR].is_alive = False
        self.disk.extend(b"0" * int(self.rng.integers(0, 9)))  # A line that was cut off, or was not.
        self._later_of_these(self.rng.uniform(0.3, 2.0), self._start_coordinator)

    def _living(self) -> list[PeerHost]:
        return [h for h in self._hosts.values() if isinstance(h, PeerHost) and h.is_alive]

    def _pick(self) -> PeerHost | None:
        living = self._living()
        return living[int(self.rng.integers(len(living)))] if living else None

    def _end(self, host: PeerHost) -> None:
        host.is_alive = False
        del self._hosts[host.address]
        if host.machine.member is not None and self.random.random() < self.faults.noticed:
            lost = PeerFailed(host.machine.member, "connection lost")
            coordinator = self._hosts[COORDINATOR]
            self.later(self.rng.uniform(*NOTICED_S), coordinator, lambda: coordinator.on_event(lost))
        for (attempt, group), reduction in list(self._reductions.items()):
            if any(replica.address == host.address for replica in group):
                del self._reductions[attempt, group]
                for address in reduction.sums:
                    other = self._hosts.get(address)
                    if isinstance(other, PeerHost):
                        self.later(0.16, other, partial(other.fold_done, attempt, None, None))
        name = host.machine.name if self.random.random() < 0.5 else f"peer-{self._number}"
        self._later_of_these(self.rng.exponential(2.0), lambda: self._refill(name))

    def _refill(self, name: str) -> None:
        if len(self._living()) < self._peers:
            self._join(name)

    def _kill_peer(self) -> bool:
        host = self._pick()
        if host is not None:
            self._end(host)
        return host is not None

    def _hang(self) -> bool:
        host = self._pick()
        if host is not None:
            host.hung_until_s = self.now_s + self.rng.uniform(0.3, 6.0)
        return host is not None

    def _cut(self) -> bool:
        host = self._pick()
        if host is not None:
            host.cut_until_s = self.now_s + self.rng.uniform(0.3, 6.0)
        return host is not None

    def _cut_link(self) -> bool:
        """Of two peers, as likely as not of one stage, or of a peer and a trainer."""
        host = self._pick()
        if host is None:
            return False
        mates = [other for other in self._living() if other.machine.stage == host.machine.stage]
        anybody = [other for other in self._hosts.values() if other.address != COORDINATOR]
        among = mates if self.rng.random() < 0.5 else anybody
        other = among[int(self.rng.integers(len(among)))]
        if other is host:
            return False
        self.links.cut(host.address, other.address, self.now_s + self.rng.uniform(0.5, 12.0))
        return True

    def _leave(self) -> bool:
        host = self._pick()
        if host is not None:
            host.on_event(LeaveAsked())
            self.later(1.0, host, lambda: self._watch_leaver(host))
        return host is not None

    def _watch_leaver(self, host: PeerHost) -> None:
        if host.machine.has_left:
            self.happened["left"] += 1
            self._end(host)
        else:
            self.later(1.0, host, lambda: self._watch_leaver(host))

    def _start_twin(self) -> bool:
        """A second process with a live peer's id; it gives up after a while, unless it got in."""
        host = self._pick()
        if host is None:
            return False
        self._join(host.machine.name, is_twin=True)
        twin = list(self._hosts.values())[-1]
        self.later(self.rng.uniform(1.0, 8.0), twin, lambda: self._end_twin(twin))
        return True

    def _end_twin(self, twin: Host) -> None:
        if isinstance(twin, PeerHost) and twin.machine.member is None:
            self.happened["refused"] += twin.machine.refused is not None
            twin.is_alive = False
            del self._hosts[twin.address]
            self._refill(f"peer-{self._number}")

    def _kill_trainer(self) -> bool:
        trainers = [h for h in self._hosts.values() if isinstance(h, TrainerHost)]
        if not trainers:
            return False
        victim = trainers[int(self.rng.integers(len(trainers)))]
        victim.is_alive = False
        del self._hosts[victim.address]
        self._later_of_these(self.rng.uniform(0.5, 3.0), lambda: self._start_trainer(self._number))
        return True

    def _kill_everybody(self) -> bool:
        """As when the process that started them all is killed: the log and the checkpoints are what is left."""
        for host in self._hosts.values():
            host.is_alive = False
        self._hosts.clear()
        self._reductions.clear()
        self._generation += 1
        self.disk[:] = cut_torn_line(bytes(self.disk))
        ledger = replay_decisions(decode_decisions(bytes(self.disk)))
        for decision in decisions_of_a_restart(ledger, self.settings.stages, self._is_whole):
            self.disk.extend(encode_decision(decision))
            self.checks.durable(decision)
        self._start_everybody()
        return True

    def _is_whole(self, stage: int, version: Version) -> bool:
        return self.checkpoints.get((stage, version)) is not None

    def _fill_disk(self) -> bool:
        self.disk_full_until_s = self.now_s + self.rng.uniform(0.5, 3.0)
        return True

    def propose(self, peers: tuple[SwarmPeer, ...], now_s: float) -> SimulatedMove | None:
        """The simulation's policy: now and then any peer moves to any stage."""
        if not peers or self.random.random() >= self.faults.move:
            return None
        self.happened["move proposed"] += 1
        return SimulatedMove(self.random.choice(peers).peer, self.random.randrange(self.settings.stages))
