"""Messages between ranks, point-to-point: tagged, sizes fixed by the plan, sends never waited for.

gloo aborts the process when a message is longer than the buffer posted for it, and closes the pair for good when a
wait times out. So both sides compute every size from the same plan (its digest is compared first), receives are
posted before the sender sends, and nothing is ever polled.

With an emulator, a message starts with a header that holds its arrival time; it is not counted as traffic.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from hetplanner.liveness.heartbeat import Heartbeat
from hetplanner.plan.reducers.program import POSTED_REDUCTIONS
from hetplanner.runtime.comm.emulation import LinkEmulator
from hetplanner.runtime.comm.traffic import Traffic
from hetplanner.runtime.comm.wire import CPU, HostWire, Wire, Work

HEADER_BYTES = 16
"""A float64 stamp, padded so that what follows stays aligned for every dtype."""


class Topic(IntEnum):
    """What a message is about; with an index (micro-batch, or group and ordinal) it makes the tag."""

    ACTIVATION = 0
    GRADIENT = 1
    REDUCE = 2
    NORM = 3
    WEIGHTS = 4
    PROBE = 5
    RUNNING = 6


BULK = (Topic.ACTIVATION, Topic.GRADIENT, Topic.REDUCE)
ROLES = {topic: topic.name.lower() for topic in Topic}
"""What telemetry calls them."""


def tag_of(topic: Topic, index: int) -> int:
    """gloo's tag; one topic has fewer than 2^24 indices."""
    assert index < 1 << 24, (topic, index)
    return (int(topic) << 24) + index


MessageKey = tuple[int, Topic, int]
"""(the other rank, topic, index): names one message of a step in one direction."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A message that a rank will take: from whom, about what, how long."""

    peer: int
    topic: Topic
    index: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """When the emulated link takes a message and delivers it."""

    start_s: float
    arrival_s: float


class Transport:
    """One rank's messages.

    Args:
        rank: this rank.
        emulator: delays deliveries; None sends as fast as the network is.
        window: receives posted ahead of the one that is taken next; those of reductions, which are large, are fewer.
        device: where messages are made and read.
        wire: carries activations, gradients and reductions; None stages through host memory. All else is short and
            always goes that way.
        host_wire: carries what goes through host memory; None: over one connection to each rank.
        reduce_device: where messages of reductions are made and read; None: on `device`.
        reduces_on_host: whether some rank has them in host memory, so that they go through it on all.
        heartbeat: is told whom this rank waits for.

    Attributes:
        traffic: what was sent and taken, by link.
    """

    def __init__(
        self,
        rank: int,
        emulator: LinkEmulator | None,
        window: int = 8,
        device: torch.device = CPU,
        wire: Wire | None = None,
        heartbeat: Heartbeat | None = None,
        host_wire: HostWire | None = None,
        reduce_device: torch.device | None = None,
        *,
        reduces_on_host: bool = False,
    ) -> None:
        self.rank, self.emulator, self.window, self.device = rank, emulator, window, device
        self._reduce_device = reduce_device or device
        self._on_host = (Topic.REDUCE,) if reduces_on_host else ()
        self.host_wire = host_wire or HostWire(device)
        self._bulk_wire: Wire = wire or self.host_wire
        self.traffic = Traffic()
        self._heartbeat = heartbeat or Heartbeat()
        self._header = HEADER_BYTES if emulator else 0
        self._queue: deque[Expected] = deque()
        self._posted: dict[Expected, tuple[Work, Tensor]] = {}
        self._sent: dict[MessageKey, tuple[Work, Tensor]] = {}
        self._sent_before: dict[MessageKey, tuple[Work, Tensor]] = {}

    @property
    def carrier(self) -> str:
        """What carries activations, gradients and reductions: gloo or nccl."""
        return self._bulk_wire.name

    @property
    def num_posted(self) -> int:
        """Receives that are posted and not yet taken."""
        return len(self._posted)

    @property
    def num_held(self) -> int:
        """Messages sent that are not known to be delivered."""
        return len(self._sent) + len(self._sent_before)

    # -- receiving --------------------------------------------------------------------------------

    def expect(self, messages: Iterable[Expected]) -> None:
        """Announces messages in the order in which they will be taken; the first few receives are posted now."""
        self._queue.extend(messages)
        self._post()

    def _post(self) -> None:
        while self._queue and len(self._posted) < self.window and not self._comes_later(self._queue[0]):
            self._post_next()

    def _comes_later(self, message: Expected) -> bool:
        """Reductions are large: few are awaited at once, and none while micro-batches are under way."""
        if message.topic is not Topic.REDUCE:
            return False
        topics = [posted.topic for posted in self._posted]
        return topics.count(Topic.REDUCE) >= POSTED_REDUCTIONS or any(
            topic in (Topic.ACTIVATION, Topic.GRADIENT) for topic in topics
        )

    def _post_next(self) -> None:
        message = self._queue.popleft()
        tag = tag_of(message.topic, message.index)
        self._posted[message] = self._wire(message.topic).receive(self._header + message.num_bytes, message.peer, tag)

    def _wire(self, topic: Topic) -> Wire:
        return self._bulk_wire if topic in BULK and topic not in self._on_host else self.host_wire

    def receive(self, message: Expected) -> Tensor:
        """Waits for an announced message and returns its bytes [uint8], which the caller owns."""
        asked_s = time.monotonic()
        while message not in self._posted:
            self._post_next()  # taken in another order than announced; costs a buffer, nothing else
        work, data = self._posted.pop(message)
        self._heartbeat.wait_for(message.peer)
        work.wait()
        self._post()
        late_s = self.emulator.hold(float(data[:8].view(torch.float64)), asked_s) if self.emulator else 0.0
        self._heartbeat.advance()
        wait_s = time.monotonic() - asked_s
        self.traffic.count_taken(message.peer, ROLES[message.topic], message.num_bytes, wait_s, late_s)
        device = self._reduce_device if message.topic is Topic.REDUCE else self.device
        return data[self._header :].to(device, non_blocking=True)

    # -- sending ----------------------------------------------------------------------------------

    def buffer(self, num_bytes: int, topic: Topic | None = None) -> Tensor:
        """A message to be filled: its payload is `payload(message)`."""
        device = self._reduce_device if topic is Topic.REDUCE else self.device
        return torch.empty(self._header + num_bytes, dtype=torch.uint8, device=device)

    def payload(self, message: Tensor) -> Tensor:
        """The part of a message behind the header."""
        return message[self._header :]

    def send(self, message: Tensor, peer: int, topic: Topic, index: int) -> Sent | None:
        """Hands a message to the network and returns at once; the buffer is kept until it is delivered.

        Returns:
            What the emulator says of it; None without one.
        """
        sent = None
        if self.emulator:
            if message.is_cuda:  # the link takes it when it has been computed
                torch.cuda.current_stream(message.device).synchronize()
            sent = Sent(*self.emulator.book(self.rank, peer, message.numel() - self._header))
            message[:8].view(torch.float64).fill_(sent.arrival_s)
        self._sent[peer, topic, index] = self._wire(topic).send(message, peer, tag_of(topic, index))
        self.traffic.count_sent(peer, ROLES[topic], message.numel() - self._header)
        return sent

    def release(self, delivered: Iterable[MessageKey]) -> None:
        """Forgets messages whose receiver has shown that it holds them."""
        for key in delivered:
            work, _ = self._sent.pop(key)
            work.wait()

    def end_step(self) -> None:
        """Forgets the messages of the step before.

        Never blocks: ending this step took messages from every peer that it could only send after it had
        taken all of ours of the step before.
        """
        for work, _ in self._sent_before.values():
            work.wait()
        self._sent_before, self._sent = self._sent, {}

    def abort(self) -> None:
        """Ends all transfers, for a rank that will not go on."""
        self._bulk_wire.abort()

    def finish(self) -> None:
        """Waits until every message is delivered."""
        self.end_step()
        self.end_step()
