"""What carries a message's bytes: gloo between processors, or nccl between GPUs.

`HostWire` tells messages apart by tag and may take them in any order. It can spread large messages over several TCP
connections: one carries at most its window in a round trip, however wide the path is (Allcock et al. 2005, GridFTP).

`PairWire` has a communicator for every pair of ranks and direction, on which messages arrive in the order in which they
were sent: receives have to be posted in the sender's order (`hetplanner.runtime.comm.receive_order`). Sends of one pair
and direction then never wait for those of another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.comm.staging import Deliveries, Staging, Work

CPU = torch.device("cpu")
NOTHING = torch.empty(0)

LEAST_PART_BYTES = 2**14
"""Of a message that is spread over several connections; a shorter part costs more time than it saves."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A message whose parts are under way on several connections."""

    works: tuple[Work, ...]

    def wait(self) -> None:
        """Until all of them are done."""
        for work in self.works:
            work.wait()


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
        # Each group of gloo has connections of its own.
        more = [dist.new_group(backend="gloo") for _ in range(connections - 1)]
        self._groups: tuple[dist.ProcessGroup | None, ...] = (None, *more)
        self._deliveries = Deliveries()
        self._staging = Staging(device, self._deliveries) if device.type == "cuda" else None

    def _parts(self, data: Tensor) -> tuple[Tensor, ...]:
        """One for each connection that is used; both ends divide a message alike."""
        return data.tensor_split(max(1, min(len(self._groups), data.numel() // LEAST_PART_BYTES)))

    def _blank(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._staging is not None)

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to send, a GPU's message after it has been computed and copied."""

        def begin(data: Tensor) -> Work:
            parts = zip(self._parts(data), self._groups, strict=False)
            return _together(dist.isend(part, peer, group=group, tag=tag) for part, group in parts)

        if self._staging is not None and message.is_cuda:
            return self._staging.send(message, begin), NOTHING
        return self._deliveries.add(begin(message), message), NOTHING

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[Work, Tensor]:
        """Begins to receive into host memory."""
        data = self._blank(num_bytes)
        parts = zip(self._parts(data), self._groups, strict=False)
        return _together(dist.irecv(part, peer, group=group, tag=tag) for part, group in parts), data

    def to_device(self, data: Tensor, device: torch.device) -> Tensor:
        """Received bytes where they are read."""
        if self._staging is None or device.type != "cuda":
            return data.to(device)
        return self._staging.to_device(data)

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
