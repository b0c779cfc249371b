"""Gradients summed over the peers of a stage, by a group that is made anew whenever the peers change.

A weight that several stages hold is summed over the peers of all of them, in a second group.

The first of a group holds the store at which the others meet; a group that has worked is used again for the same peers.
gloo, nccl and the store know no authentication: they belong on loopback, a private network or an encrypted overlay.
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

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp
from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.comm.wire import CPU
from hetplanner.swarm.launch.links import Links
from hetplanner.swarm.peer.collective import Carriers, Collective
from hetplanner.swarm.peer.engine import Sum
from hetplanner.swarm.wire.endpoint import Lost

log = logging.getLogger(__name__)

Group = tuple[Replica, ...]
Open = dict[str, tuple[Group, Collective]]
"""Groups by what they sum, to be used again for the same peers."""


@dataclass(frozen=True)
class Tied:
    """A weight that several stages hold, by the op that owns it: elements in this stage, and members of all stages."""

    owner: str
    first: int
    end: int
    group: Group


@dataclass(frozen=True)
class Meeting:
    """Which peers sum with one another, the same words for all of them.

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
        codec: of gradients on their way: none, or int8 by block (all gather, then all peers sum the same bytes).
        links: that are emulated; None: none are.
        device: where gradients are.
    """

    def __init__(
        self, host: str, timeout_s: float, codec: Codec, links: Links | None = None, device: torch.device = CPU
    ) -> None:
        self._host, self._timeout, self._codec = host, timedelta(seconds=timeout_s), codec
        self._links = links
        self._carriers = Carriers(host, self._timeout, device)
        self._store: TCPStore | None = None
        self._open: Open = {}
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def take_sent(self) -> int:
        """Bytes that this peer has sent since the last call, by the usual algorithms: a ring, or to all peers."""
        sent, self._sent_bytes = self._sent_bytes, 0
        return sent

    def open_store(self) -> int:
        """The port of this peer's own store, made when it is first wanted."""
        with self._lock:
            if self._store is None:
                self._store = store_at(self._host, 0, self._timeout, is_master=True)
            return self._store.port

    def drop(self) -> None:
        """All groups end, and are not used again: an all-reduce was aborted."""
        self._end(self._open)

    def _end(self, groups: Open) -> None:
        """Ends groups of one attempt, which may be over long since, and leaves those of a later one alone."""
        if self._open is groups:
            self._open = {}
        for _, collective in list(groups.values()):
            collective.abort()

    def reduce(self, total: Sum, meeting: Meeting) -> Sum:
        """The sum over all peers that folded something of the same stage.

        Raises:
            RuntimeError: a peer is lost, or it took too long; no peer may use the result.
        """
        gradient, numbers = total.gradient, torch.tensor([total.count, total.loss_sum], dtype=torch.float64)
        groups = self._open
        try:
            if len(meeting.stage) > 1:
                stage = self._collective(groups, "stage", meeting.stage, meeting)
                numbers = self._sum(stage, numbers)
                own = gradient[: meeting.own_end]
                if own.numel():  # else all weights are frozen
                    own.copy_(self._coded_sum(stage, own))
            for tied in meeting.tied:  # in the same order everywhere, so that peers do not deadlock
                collective = self._collective(groups, tied.owner, tied.group, meeting)
                part = gradient[tied.first : tied.end]
                part.copy_(self._coded_sum(collective, part))
        except RuntimeError:
            self._end(groups)
            raise
        return Sum(gradient, int(numbers[0]), float(numbers[1]))

    def _collective(self, groups: Open, name: str, group: Group, meeting: Meeting) -> Collective:
        known = groups.get(name)
        if known is not None:
            if known[0] == group:
                return known[1]
            known[1].abort()
        rank = [replica.member for replica in group].index(meeting.me)
        store = self._meet(group[0].address, rank == 0, meeting.port_of)
        prefix = f"{name}/{meeting.attempt.boot}.{meeting.attempt.number}"
        made = self._carriers.open(PrefixStore(prefix, store), rank, len(group))
        groups[name] = (group, made)
        if groups is not self._open:
            raise RuntimeError("averaging: aborted while the group came together")
        return made

    def _meet(self, address: str, is_mine: bool, port_of: Callable[[str], int]) -> Store:
        """A connection of this meeting's own: one that waits for a lost peer would block other meetings."""
        host, port = address.rpartition(":")[0], self.open_store() if is_mine else port_of(address)
        return store_at(host, port, self._timeout, is_master=False)

    def _sum(self, collective: Collective, tensor: Tensor) -> Tensor:
        """The sum over the group, as it is; maybe in place."""
        size, here = collective.size, tensor.to(collective.device)
        with self._on_links(collective, 2 * (size - 1), here.nbytes / size):
            collective.sum(here)
        return here.to(tensor.device)

    def _coded_sum(self, collective: Collective, gradient: Tensor) -> Tensor:
        """The sum over the group of what arrives of the gradients; maybe in place."""
        size, numel = collective.size, gradient.numel()
        if self._codec.name == "none":
            self._sent_bytes += 2 * (size - 1) * 4 * numel // size
            return self._sum(collective, gradient)
        codec = tensor_codec(self._codec)
        mine = torch.empty(self._codec.wire_bytes(numel, 4), dtype=torch.uint8, device=collective.device)
        codec.encode(gradient.to(collective.device), mine)
        self._sent_bytes += (size - 1) * mine.numel()
        with self._on_links(collective, size - 1, mine.numel()):
            everyone = collective.gather(mine)
        added = codec.decode(everyone[0], numel)
        for part in everyone[1:]:
            added.add_(codec.decode(part, numel))
        return added.to(gradient.device)

    @contextlib.contextmanager
    def _on_links(self, collective: Collective, rounds: int, chunk_bytes: float) -> Iterator[None]:
        """What is done inside takes at least as long as a ring of so many rounds over the emulated links.

        One member books all rounds, since a member's rounds do not begin before another's end. Raises RuntimeError: it
        would take longer than an all-reduce may.
        """
        if self._links is None:
            yield
            return
        now = torch.tensor([time.monotonic(), self._links.here], dtype=torch.float64, device=collective.device)
        everyone = [found.cpu() for found in collective.gather(now)]
        end = torch.zeros(1, dtype=torch.float64, device=collective.device)
        if collective.rank == 0:
            ranks = [int(other[1]) for other in everyone]
            end[0] = self._links.ring_s(ranks, rounds, chunk_bytes, max(float(other[0]) for other in everyone))
        end = collective.gather(end)[0]
        yield
        left_s = float(end[0]) - time.monotonic()
        if left_s > self._timeout.total_seconds():
            raise RuntimeError(f"averaging: takes {left_s:.3g} s more over the emulated links; raise times.reduce")
        time.sleep(max(0.0, left_s))


async def reduce_beside(averager: Averager, total: Sum, meeting: Meeting) -> Sum | None:
    """The sum over the meeting, or None if it failed, computed on a thread of its own.

    One that waits for a lost peer must not block the next attempt.
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
