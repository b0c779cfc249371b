"""Links between the peers of a rehearsal: as slow as those of the cluster's devices that the peers stand for.

Peers share the clocks of static runs' emulator. A message says by which device it was sent and when; who gets it books
the transfer from then on, and holds the message until it would have arrived. Coordinator and trainers stand nowhere:
what they send and get is not delayed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.emulation import LinkEmulator, create_clocks

CLUSTER_FILE = "links.json"
SENT_BY = "sent-by"
"""Key of a message's metadata: the row of the sender's device, and its monotonic clock in seconds."""

Metadata = tuple[tuple[str, str], ...]


def create_links(cluster: Cluster, run_dir: Path) -> None:
    """Writes what the peers of a rehearsal share, all links free."""
    save_cluster(cluster, run_dir / CLUSTER_FILE)
    create_clocks(cluster, cluster.device_ids, run_dir)


class Links:
    """One peer's access to the links.

    Args:
        run_dir: where `create_links` wrote.
        device: that this peer stands for.

    Attributes:
        here: the device's row in the cluster.

    Raises:
        InvalidInput: the cluster has no device of this id.
    """

    def __init__(self, run_dir: Path, device: str) -> None:
        cluster = load_cluster(run_dir / CLUSTER_FILE)
        if device not in cluster.device_ids:
            raise InvalidInput(f"at: the rehearsal's cluster has no device {device!r}; give one of {CLUSTER_FILE}")
        self.here = cluster.device_index(device)
        self._emulator = LinkEmulator(cluster, cluster.device_ids, run_dir)

    def stamp(self) -> Metadata:
        """What a message that is sent now says of itself."""
        return ((SENT_BY, f"{self.here} {time.monotonic()!r}"),)

    def arrival_s(self, metadata: Iterable[Any] | None, num_bytes: int) -> float:
        """When a message that came with this metadata would have arrived, on the monotonic clock; 0: it is not delayed.

        The metadata is a rehearsal's own: other processes send none.
        """
        sent_by = next((str(value) for key, value in metadata or () if key == SENT_BY), None)
        if sent_by is None:
            return 0.0
        rank, sent_s = sent_by.split()
        return self._emulator.book(int(rank), self.here, num_bytes, float(sent_s))[1]

    async def hold(self, metadata: Iterable[Any] | None, num_bytes: int) -> None:
        """Waits until a message would have arrived."""
        await asyncio.sleep(max(0.0, self.arrival_s(metadata, num_bytes) - time.monotonic()))

    def ring_s(self, ranks: Sequence[int], rounds: int, chunk_bytes: float, ready_s: float) -> float:
        """When a ring of so many rounds is over, in which each member sends a chunk to the next.

        Args:
            ranks: rows of the members' devices, in the ring's order.
            rounds: until all members are through.
            chunk_bytes: that a member sends in a round.
            ready_s: when all of them begin, on the monotonic clock.
        """
        ready, followers = [ready_s] * len(ranks), [*ranks[1:], *ranks[:1]]
        for _ in range(rounds):
            ends = [
                self._emulator.book(one, two, chunk_bytes, since_s)
                for one, two, since_s in zip(ranks, followers, ready, strict=True)
            ]
            # A member goes on when it has what the one before it sent.
            ready = [max(since_s, ends[place - 1][1]) for place, since_s in enumerate(ready)]
        return max(ready)
