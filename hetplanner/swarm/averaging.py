"""Gradients summed over the peers of a stage, by a gloo group that is made anew whenever the peers change.

A weight that several stages hold is summed over the peers of all of them, in a second group.

The first of a group holds the store at which the others meet; a group that has worked is used again for the same peers.
gloo and its store know no authentication: they belong on loopback, a private network or an encrypted overlay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.elastic.identity import Member, Seat, Stamp
from hetplanner.runtime.connect import loopback_store
from hetplanner.swarm.engine import Sum
from hetplanner.swarm.links import Links
from hetplanner.swarm.wire.endpoint import Lost, is_loopback

log = logging.getLogger(__name__)

Group = tuple[Seat, ...]
Gloo: Any = torch.distributed.ProcessGroupGloo  # torch's stubs say little of it


@dataclass(frozen=True)
class Tied:
    """A weight that several stages hold, by the op that owns it: elements in this stage, and members of all stages."""

    owner: str
    first: int
    end: int
    group: Group


@dataclass(frozen=True)
class Meeting:
    """Who sums with whom, the same words for all of them.

    Attributes:
        attempt: names it.
        me: one of the members.
        stage: members of the stage, in the same order everywhere.
        tied: weights that other stages hold as well.
        own_end: elements in front of it are the stage's own.
        port_of: asks the peer at an address for the port of its store.
    """

    attempt: Stamp
    me: Member
    stage: Group
    tied: tuple[Tied, ...]
    own_end: int
    port_of: Callable[[str], int]


class Averager:
    """One peer's part in all-reduces; `reduce` blocks, so that it is called on a thread of its own.

    Args:
        host: by which others reach this peer.
        timeout_s: of one all-reduce.
        codec: of gradients on their way: none, or int8 by block (all gather, then everybody sums the same bytes).
        links: that are emulated; None: none are.
    """

    def __init__(self, host: str, timeout_s: float, codec: Codec, links: Links | None = None) -> None:
        self._host, self._timeout, self._codec = host, timedelta(seconds=timeout_s), codec
        self._links = links
        self._store: TCPStore | None = None
        self._ready: dict[str, tuple[Group, Any]] = {}
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def take_sent(self) -> int:
        """Bytes that this peer has sent since the last call, by the usual algorithms: a ring, or to everybody."""
        sent, self._sent_bytes = self._sent_bytes, 0
        return sent

    def open_store(self) -> int:
        """The port of this peer's own store, made when it is first wanted."""
        with self._lock:
            if self._store is None:
                if is_loopback(self._host):
                    self._store = loopback_store(0, None, self._timeout, is_master=True)
                else:
                    self._store = TCPStore(
                        self._host, 0, None, is_master=True, timeout=self._timeout, wait_for_workers=False
                    )
            return self._store.port

    def drop(self) -> None:
        """The groups are not used again: an all-reduce was aborted."""
        self._ready = {}

    def reduce(self, total: Sum, meeting: Meeting) -> Sum:
        """The sum over everybody who folded something of the same stage.

        Raises:
            RuntimeError: somebody is gone, or it took too long; nobody may use the result.
        """
        gradient, numbers = total.gradient, torch.tensor([total.count, total.loss_sum], dtype=torch.float64)
        try:
            if len(meeting.stage) > 1:
                pg = self._group("stage", meeting.stage, meeting)
                size = len(meeting.stage)
                with self._on_links(pg, 2 * (size - 1), 8 * numbers.numel() / size):
                    pg.allreduce([numbers]).wait(self._timeout)
                own = gradient[: meeting.own_end]
                own.copy_(self._sum(pg, own, size))
                self._ready["stage"] = (meeting.stage, pg)
            for tied in meeting.tied:  # in the same order everywhere, so that nobody waits in a ring
                pg = self._group(tied.owner, tied.group, meeting)
                part = gradient[tied.first : tied.end]
                part.copy_(self._sum(pg, part, len(tied.group)))
                self._ready[tied.owner] = (tied.group, pg)
        except RuntimeError:
            self.drop()
            raise
        return Sum(gradient, int(numbers[0]), float(numbers[1]))

    def _group(self, name: str, group: Group, meeting: Meeting) -> Any:
        ready = self._ready.pop(name, None)
        if ready is not None and ready[0] == group:
            return ready[1]
        rank = [seat.member for seat in group].index(meeting.me)
        options = Gloo._Options()
        options._timeout = self._timeout
        options._devices = [Gloo.create_device(hostname=self._host)]
        store = self._meet(group[0].address, rank == 0, meeting.port_of)
        prefix = f"{name}/{meeting.attempt.boot}.{meeting.attempt.number}"
        return Gloo(PrefixStore(prefix, store), rank, len(group), options)

    def _meet(self, address: str, is_mine: bool, port_of: Callable[[str], int]) -> Store:
        if is_mine:
            self.open_store()
            assert self._store is not None
            return self._store
        host = address.rpartition(":")[0]
        if is_loopback(host):
            return loopback_store(port_of(address), None, self._timeout, is_master=False)
        return TCPStore(host, port_of(address), None, is_master=False, timeout=self._timeout, wait_for_workers=False)

    def _sum(self, pg: Any, gradient: Tensor, size: int) -> Tensor:
        on_host = gradient.cpu()
        if self._codec.name == "none":
            self._sent_bytes += 2 * (size - 1) * 4 * gradient.numel() // size
            with self._on_links(pg, 2 * (size - 1), 4 * gradient.numel() / size):
                pg.allreduce([on_host]).wait(self._timeout)
            return on_host.to(gradient.device)
        codec, numel = tensor_codec(self._codec), gradient.numel()
        mine = torch.empty(self._codec.wire_bytes(numel, 4), dtype=torch.uint8)
        codec.encode(on_host, mine)
        self._sent_bytes += (size - 1) * mine.numel()
        everyone = [torch.empty_like(mine) for _ in range(size)]
        with self._on_links(pg, size - 1, mine.numel()):
            pg.allgather([everyone], [mine]).wait(self._timeout)
        added = codec.decode(everyone[0], numel)
        for part in everyone[1:]:
            added.add_(codec.decode(part, numel))
        return added.to(gradient.device)

    @contextlib.contextmanager
    def _on_links(self, pg: Any, rounds: int, chunk_bytes: float) -> Iterator[None]:
        """What is done inside takes at least as long as a ring of so many rounds over the emulated links.

        One member books all rounds, since nobody's begin before somebody else's end. Raises RuntimeError: it would
        take longer than an all-reduce may.
        """
        if self._links is None:
            yield
            return
        mine = torch.tensor([time.monotonic(), self._links.here], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(pg.size())]
        pg.allgather([everyone], [mine]).wait(self._timeout)
        end = torch.zeros(1, dtype=torch.float64)
        if pg.rank() == 0:
            ranks = [int(other[1]) for other in everyone]
            end[0] = self._links.ring_s(ranks, rounds, chunk_bytes, max(float(other[0]) for other in everyone))
        pg.broadcast([end]).wait(self._timeout)
        yield
        left_s = float(end[0]) - time.monotonic()
        if left_s > self._timeout.total_seconds():
            raise RuntimeError(f"averaging: takes {left_s:.3g} s more over the emulated links; raise times.reduce")
        time.sleep(max(0.0, left_s))


async def reduce_beside(averager: Averager, total: Sum, meeting: Meeting) -> Sum | None:
    """The sum over the meeting, or None if it failed, computed on a thread of its own.

    One that waits for somebody who is gone must not hold up the next attempt.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Sum | None] = loop.create_future()

    def reduce() -> None:
        try:
            found: Sum | None = averager.reduce(total, meeting)
        except (RuntimeError, Lost, ValueError, OSError) as error:
            log.warning("averaging %s: %.300s", meeting.attempt, error)
            found = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(lambda: None if result.done() else result.set_result(found))

    threading.Thread(target=reduce, name=f"average-{meeting.attempt.number}", daemon=True).start()
    return await result
