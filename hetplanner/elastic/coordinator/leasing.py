"""Which trainer gets the next micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetplanner.elastic.coordinator.detection import FailureDetector
from hetplanner.elastic.coordinator.journal import Journal, Lease
from hetplanner.elastic.protocol.identity import Entry, Stamp, Version
from hetplanner.elastic.protocol.messages import Ask, Grant, Send, Settled
from hetplanner.elastic.protocol.settings import ElasticSettings


@dataclass
class _Trainer:
    """A live trainer: where it is, how much it takes at once, its leases; pauses after it gave one up."""

    address: str
    slots: int
    leases: dict[Stamp, Lease]
    is_resting: bool = False


class Leasing:
    """The trainers of a coordinator. What is in flight is bounded by trainers times slots."""

    def __init__(self, settings: ElasticSettings, journal: Journal, stamp: Callable[[], Stamp]) -> None:
        self._journal = journal
        self._stamp = stamp
        self._trainers: dict[str, _Trainer] = {}
        self._heard: FailureDetector[str] = FailureDetector(settings.silence_s)
        self._lost: list[tuple[str, Lease]] = []

    def addresses(self) -> list[str]:
        """Of the live trainers."""
        return [trainer.address for trainer in self._trainers.values()]

    @property
    def in_flight_bound(self) -> int:
        """Micro-batches that can be under way at once."""
        return sum(trainer.slots for trainer in self._trainers.values())

    def ask(self, address: str, ask: Ask, now_s: float) -> None:
        """A trainer lives and tells what it can take. Grants that did not reach it are noted to be sent again."""
        self._heard.hear(ask.trainer, now_s)
        trainer = self._trainers.setdefault(ask.trainer, _Trainer(address, ask.slots, {}))
        trainer.address, trainer.slots, trainer.is_resting = address, ask.slots, False
        self._lost += [(address, lease) for stamp, lease in trainer.leases.items() if stamp not in ask.leases]

    def settle(self, address: str, name: str, stamp: Stamp, manifest: tuple[Entry, ...]) -> Send:
        """A trainer is through with a micro-batch; told again, it is answered again."""
        self._journal.settle(name, stamp, manifest)
        if name in self._trainers:
            self._trainers[name].leases.pop(stamp, None)
        return Send(address, Settled(stamp))

    def give_up(self, address: str, name: str, stamp: Stamp) -> Send:
        """A trainer could not get a micro-batch through: it gets no other until it asks again."""
        if name in self._trainers:
            self._trainers[name].is_resting = True
        return self.settle(address, name, stamp, ())

    def drop_trainer(self, name: str) -> None:
        """A trainer is dead: it loses its leases and nothing else is lost."""
        if self._trainers.pop(name, None) is not None:
            self._heard.forget(name)
            self._journal.drop_trainer(name)

    def tick(self, now_s: float) -> None:
        """Ends leases that are over and trainers that are silent."""
        for name in self._heard.find_silent(now_s):
            self.drop_trainer(name)
        self._journal.expire_leases(now_s)
        self._forget_ended()

    def grant(self, version: Version, now_s: float) -> list[Send]:
        """Leases what is to be done, to the trainer with the fewest leases first."""
        self._forget_ended()
        sends = [Send(address, _grant_of(lease, version)) for address, lease in self._lost if self._is_on(lease)]
        self._lost = []
        while free := [(len(t.leases), n) for n, t in self._trainers.items() if self._can_take(t)]:
            name = min(free)[1]
            lease = self._journal.grant(name, self._stamp(), now_s)
            if lease is None:
                break
            self._trainers[name].leases[lease.stamp] = lease
            sends.append(Send(self._trainers[name].address, _grant_of(lease, version)))
        return sends

    def _can_take(self, trainer: _Trainer) -> bool:
        return len(trainer.leases) < trainer.slots and not trainer.is_resting

    def _is_on(self, lease: Lease) -> bool:
        return self._journal.is_leased(lease.stamp)

    def _forget_ended(self) -> None:
        for trainer in self._trainers.values():
            for stamp in [stamp for stamp in trainer.leases if not self._journal.is_leased(stamp)]:
                del trainer.leases[stamp]


def _grant_of(lease: Lease, version: Version) -> Grant:
    return Grant(lease.stamp, lease.micro_batch, version, lease.mask)
