"""What carries a message's bytes: gloo between processors, or nccl between GPUs.

`HostWire` tells messages apart by tag and may take them in any order. `PairWire` has a communicator for every pair of
ranks and direction, on which messages arrive in the order in which they were sent: receives have to be posted in the
sender's order (`hetplanner.runtime.posting`). Sends of one pair and direction then never wait for those of another.
"""

from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

CPU = torch.device("cpu")


class Wire(Protocol):
    """One rank's end.

    Attributes:
        name: of the library that carries the bytes.
    """

    name: str

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to send; returns the work and what must be kept until it is done."""

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to receive; returns the work and where the bytes will be."""

    def abort(self) -> None:
        """Ends all that is under way, so that nobody waits for a rank that is gone."""


class HostWire:
    """gloo, in host memory. A GPU's messages are staged: copied to pinned memory before they are sent."""

    name = "gloo"

    def __init__(self, device: torch.device = CPU) -> None:
        self._pinned = device.type == "cuda"

    def _blank(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to send, a GPU's message after it has been computed and copied."""
        if message.device.type == "cuda":
            staged = self._blank(message.numel())
            staged.copy_(message, non_blocking=True)
            torch.cuda.current_stream(message.device).synchronize()
            message = staged
        work = dist.isend(message, peer, tag=tag)
        assert work is not None
        return work, message

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to receive into host memory."""
        data = self._blank(num_bytes)
        work = dist.irecv(data, peer, tag=tag)
        assert work is not None
        return work, data

    def abort(self) -> None:
        """gloo notices a lost peer by itself."""


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

    def send(self, message: Tensor, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to send; the tag is not transferred."""
        work = dist.isend(message, peer, group=self._groups[self.rank, peer])
        assert work is not None
        return work, message

    def receive(self, num_bytes: int, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        """Begins to receive the peer's next message."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        work = dist.irecv(data, peer, group=self._groups[peer, self.rank])
        assert work is not None
        return work, data

    def abort(self) -> None:
        """Ends the communicators; kernels that wait for a peer end too."""
        for group in self._groups.values():
            group.abort()
