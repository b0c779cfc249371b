"""What carries a message's bytes: gloo between processors, or nccl between GPUs.

`HostWire` tells messages apart by tag and may take them in any order. It can spread large messages over several TCP
connections: one carries at most its window in a round trip, however wide the path is (Allcock et al. 2005, GridFTP).

`PairWire` has a communicator for every pair of ranks and direction, on which messages arrive in the order in which they
were sent: receives have to be posted in the sender's order (`hetplanner.runtime.comm.receive_order`). Sends of one pair
and direction then never wait for those of another.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

CPU = torch.device("cpu")
NOTHING = torch.empty(0)

LEAST_PART_BYTES = 2**14
"""Of a message that is spread over several connections; a shorter part costs more time than it saves."""


class Work(Protocol):
    """What is under way: the part of torch's `Work` that is used here."""

    def wait(self) -> object:
        """Until it is done. Raises RuntimeError: the other rank is lost."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A message whose parts are under way on several connections."""

    works: tuple[Work, ...]

    def wait(self) -> None:
        """Until all of them are done."""
        for work in self.works:
            work.wait()


class _Deliveries:
    """A thread that waits for sends one after the other and lets go of their buffers.

    gloo does not tell whether a send is complete except by waiting for it, which must never hold a rank up. Without
    the thread the buffers of a reduction, as large as the weights, would be there until the end of the next step.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Work, Tensor, Event]] = SimpleQueue()
        Thread(target=self._run, name="deliveries", daemon=True).start()

    def add(self, work: Work, message: Tensor) -> "_Delivery":
        """Keeps the message until it is delivered."""
        delivered = Event()
        self._queue.put((work, message, delivered))
        return _Delivery(delivered)

    def _run(self) -> None:
        while True:
            self._wait(*self._queue.get())

    @staticmethod
    def _wait(work: Work, message: Tensor, delivered: Event) -> None:
        with suppress(RuntimeError):  # the peer is lost, which this rank learns when it waits for its messages
            work.wait()
        delivered.set()


@dataclass(frozen=True, slots=True)
class _Delivery:
    delivered: Event

    def wait(self) -> None:
        """Until the message is delivered, or its receiver is lost."""
        self.delivered.wait()


class Wire(Protocol):
    """One rank's end.

    Attributes:
        name: of the library that carries the bytes.
    """

    name: str

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to send; returns the work and what the caller must keep until it is done."""

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to receive; returns the work and where the bytes will be."""

    def abort(self) -> None:
        """Ends all that is under way, so that no rank waits for one that has ended."""


class HostWire:
    """gloo, in host memory. A GPU's messages are staged: copied to pinned memory before they are sent.

    Args:
        device: where messages are made and read.
        connections: over which a message of some size is spread, in equal parts. With several, all ranks must
            construct their wires at the same time.
    """

    name = "gloo"

    def __init__(self, device: torch.device = CPU, connections: int = 1) -> None:
        self._pinned = device.type == "cuda"
        # Each group of gloo has connections of its own.
        more = [dist.new_group(backend="gloo") for _ in range(connections - 1)]
        self._groups: tuple[dist.ProcessGroup | None, ...] = (None, *more)
        self._deliveries = _Deliveries()

    def _parts(self, data: Tensor) -> tuple[Tensor, ...]:
        """One for each connection that is used; both ends divide a message alike."""
        return data.tensor_split(max(1, min(len(self._groups), data.numel() // LEAST_PART_BYTES)))

    def _blank(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to send, a GPU's message after it has been computed and copied."""
        if message.device.type == "cuda":
            staged = self._blank(message.numel())
            staged.copy_(message, non_blocking=True)
            torch.cuda.current_stream(message.device).synchronize()
            message = staged
        parts = zip(self._parts(message), self._groups, strict=False)
        work = _together(dist.isend(part, peer, group=group, tag=tag) for part, group in parts)
        return self._deliveries.add(work, message), NOTHING

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to receive into host memory."""
        data = self._blank(num_bytes)
        parts = zip(self._parts(data), self._groups, strict=False)
        return _together(dist.irecv(part, peer, group=group, tag=tag) for part, group in parts), data

    def abort(self) -> None:
        """gloo notices a lost peer by itself."""


def _together(works: Iterable[Work | None]) -> Work:
    """One work of those of all parts; torch gives None to ranks outside a group."""
    found = tuple(work for work in works if work is not None)
    return found[0] if len(found) == 1 else Parts(found)


class PairWire:
    """A communicator for every pair and direction, on the device's memory.

    nccl's works are done in the order of streams: waiting for one makes the current stream wait, not this thread, and
    a buffer may go back to the allocator once its work has been waited for.

    Args:
        rank: this rank; every rank must construct its wire at the same time.
        pairs: (sender, receiver) of all messages of all ranks.
        device: where messages are.
        backend: nccl; gloo behaves alike on processors, for tests.
    """

    def __init__(
        self, rank: int, pairs: Iterable[tuple[int, int]], device: torch.device, backend: str = "nccl"
    ) -> None:
        self.rank, self.device, self.name = rank, device, backend
        # All ranks make all groups, in one order: with local synchronisation torch 2.13 would name a group by how many
        # its rank has made before, so that two ranks wait under two names.
        groups = {pair: dist.new_group(list(pair), backend=backend) for pair in sorted(set(pairs))}
        self._groups = {pair: group for pair, group in groups.items() if rank in pair}
        for pair, group in self._groups.items():
            self._connect(pair, group)

    def _connect(self, pair: tuple[int, int], group: dist.ProcessGroup) -> None:
        """A first byte: nccl joins two ranks when they first talk, and blocks both until they do."""
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        if self.rank == pair[0]:
            dist.send(byte, pair[1], group=group)
        else:
            dist.recv(byte, pair[0], group=group)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to send; the tag is not transferred."""
        work = dist.isend(message, peer, group=self._groups[self.rank, peer])
        assert work is not None
        return work, message

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to receive the peer's next message."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        work = dist.irecv(data, peer, group=self._groups[peer, self.rank])
        assert work is not None
        return work, data

    def abort(self) -> None:
        """Ends the communicators; kernels that wait for a peer end too."""
        for group in self._groups.values():
            group.abort()
