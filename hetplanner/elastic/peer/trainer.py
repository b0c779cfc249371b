"""A trainer: asks for micro-batches, sends them down the chain, reports where the contributions are.

It holds no state that matters: if it dies, its leases are given to others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from hetplanner.elastic.peer.downstream import Downstream, Failed, Task
from hetplanner.elastic.protocol.coordinator_events import Received, Tick
from hetplanner.elastic.protocol.identity import Entry, Replica, Stamp, View
from hetplanner.elastic.protocol.messages import Ask, Done, Grant, Message, NotDone, Send, Settled, Worked, WorkFailed
from hetplanner.elastic.protocol.peer_events import CallLost, CancelWork, SendWork
from hetplanner.elastic.protocol.settings import ElasticSettings

TrainerEvent = Received | Tick | CallLost
TrainerAction = Send | SendWork | CancelWork

LEASE_SHARE = 0.8
"""Of a lease, what a trainer uses, so that it can still report."""


class Trainer:
    """State machine of a trainer.

    Args:
        name: unique to the process.
        coordinator: its address.
        settings: of the run.
        slots: micro-batches under way at once.
        rng: for ties in wiring.
    """

    def __init__(self, name: str, coordinator: str, settings: ElasticSettings, slots: int, rng: random.Random) -> None:
        self.name = name
        self._coordinator = coordinator
        self._settings = settings
        self._slots = slots
        self._downstream: Downstream[Stamp] = Downstream(settings, rng)
        self._running: set[Stamp] = set()
        self._unsettled: dict[Stamp, Done | NotDone] = {}
        self._epoch: Stamp | None = None
        self._asked_s = float("-inf")

    def handle(self, event: TrainerEvent, now_s: float) -> list[TrainerAction]:
        """Takes an event at a time in seconds and returns what is to be done."""
        match event:
            case Received(message=message):
                return self._receive(message, now_s)
            case CallLost(call=call):
                return self._after([self._downstream.failed(call, "error", now_s)])
            case Tick():
                cancels, failed = self._downstream.tick(now_s)
                return [*cancels, *self._after(failed), *self._ask(now_s)]

    def _receive(self, message: Message, now_s: float) -> list[TrainerAction]:
        match message:
            case Grant():
                return self._granted(message, now_s)
            case Worked(call=call, manifest=manifest, waited_s=waited_s):
                lease = self._downstream.succeeded(call, waited_s, now_s)
                return [] if lease is None else self._finish(lease, manifest)
            case WorkFailed(call=call, kind=kind):
                return self._after([self._downstream.failed(call, kind, now_s)])
            case Settled(lease=lease):
                self._unsettled.pop(lease, None)
            case View(epoch=epoch, stages=stages) if self._epoch is None or epoch > self._epoch:
                return self._see(epoch, stages, now_s)
        return []

    def _see(self, epoch: Stamp, stages: tuple[tuple[Replica, ...], ...], now_s: float) -> list[TrainerAction]:
        is_new_coordinator = self._epoch is not None and epoch.boot > self._epoch.boot
        self._epoch = epoch
        cancels: list[TrainerAction] = []
        if is_new_coordinator:  # It knows of none of these leases.
            cancels += self._downstream.drop_all()
            self._running.clear()
            self._unsettled.clear()
        return [*cancels, *self._after(self._downstream.see(stages[0], now_s))]

    def _granted(self, grant: Grant, now_s: float) -> list[TrainerAction]:
        if grant.lease in self._running or grant.lease in self._unsettled:
            return []
        self._running.add(grant.lease)
        deadline_s = now_s + LEASE_SHARE * self._settings.lease_s
        task = Task(0, grant.micro_batch, grant.version, grant.mask, deadline_s)
        sent = self._downstream.start(grant.lease, task, now_s)
        return [sent] if sent is not None else self._finish(grant.lease, None)

    def _finish(self, lease: Stamp, manifest: tuple[Entry, ...] | None) -> list[TrainerAction]:
        self._running.discard(lease)
        report = NotDone(self.name, lease) if manifest is None else Done(self.name, lease, manifest)
        self._unsettled[lease] = report
        return [Send(self._coordinator, report)]

    def _after(self, failed: Iterable[Failed[Stamp] | None]) -> list[TrainerAction]:
        actions: list[TrainerAction] = []
        for failure in failed:
            if failure is not None:
                actions += [failure.retry] if failure.retry is not None else self._finish(failure.key, None)
        return actions

    def _ask(self, now_s: float) -> list[TrainerAction]:
        if now_s - self._asked_s < self._settings.ping_s:
            return []
        self._asked_s = now_s
        leases = frozenset(self._running | self._unsettled.keys())
        reports = [Send(self._coordinator, report) for report in self._unsettled.values()]
        return [*reports, Send(self._coordinator, Ask(self.name, self._slots, leases, self._epoch))]
