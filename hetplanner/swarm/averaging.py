"""Gradients of a stage summed over its peers, by a gloo group that is made anew whenever the peers change.

The first of a group holds the store at which the others meet; a group that has worked is used again for the same peers.
gloo and its store know no authentication: they belong on loopback, a private network or an encrypted overlay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from hetplanner.swarm.wire.endpoint import is_loopback

Group = tuple[Seat, ...]
Gloo: Any = torch.distributed.ProcessGroupGloo  # torch's stubs say little of it


class Averager:
    """One peer's part in all-reduces; `reduce` blocks, so that it is called on a thread of its own.

    Args:
        host: by which others reach this peer.
        timeout_s: of one all-reduce.
        codec: of gradients on their way: none, or int8 by block (all gather, then everybody sums the same bytes).
    """

    def __init__(self, host: str, timeout_s: float, codec: Codec) -> None:
        self._host, self._timeout, self._codec = host, timedelta(seconds=timeout_s), codec
        self._store: TCPStore | None = None
        self._ready: tuple[Group, Any] | None = None
        self._lock = threading.Lock()

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
        """The group is not used again: an all-reduce of it was aborted."""
        self._ready = None

    def reduce(self, total: Sum, attempt: Stamp, group: Group, me: Member, port_of: Callable[[str], int]) -> Sum:
        """The sum over the group.

        Args:
            total: this peer's, overwritten.
            attempt: names the meeting; all members call with the same.
            group: all members, in the same order everywhere.
            me: one of them.
            port_of: asks the peer at an address for the port of its store.

        Raises:
            RuntimeError: somebody is gone, or it took too long; nobody may use the result.
        """
        if len(group) == 1:
            return total
        pg = self._group(attempt, group, me, port_of)
        try:
            numbers = torch.tensor([total.count, total.loss_sum], dtype=torch.float64)
            pg.allreduce([numbers]).wait(self._timeout)
            gradient = self._sum(pg, total.gradient, len(group))
        except RuntimeError:
            self.drop()
            raise
        self._ready = (group, pg)
        return Sum(gradient, int(numbers[0]), float(numbers[1]))

    def _group(self, attempt: Stamp, group: Group, me: Member, port_of: Callable[[str], int]) -> Any:
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == group:
            return ready[1]
        rank = [seat.member for seat in group].index(me)
        options = Gloo._Options()
        options._timeout = self._timeout
        options._devices = [Gloo.create_device(hostname=self._host)]
        store = self._meet(group[0].address, rank == 0, port_of)
        return Gloo(PrefixStore(f"{attempt.boot}.{attempt.number}", store), rank, len(group), options)

    def _meet(self, address: str, is_mine: bool, port_of: Callable[[str], int]) -> Store:
        if is_mine:
            self.open_store()
            assert self._store is not None
            return self._store
        host = address.rpartition(":")[0]
        return TCPStore(host, port_of(address), None, is_master=False, timeout=self._timeout, wait_for_workers=False)

    def _sum(self, pg: Any, gradient: Tensor, size: int) -> Tensor:
        on_host = gradient.cpu()
        if self._codec.name == "none":
            pg.allreduce([on_host]).wait(self._timeout)
            return on_host.to(gradient.device)
        codec, numel = tensor_codec(self._codec), gradient.numel()
        mine = torch.empty(self._codec.wire_bytes(numel, 4), dtype=torch.uint8)
        codec.encode(on_host, mine)
        everyone = [torch.empty_like(mine) for _ in range(size)]
        pg.allgather([everyone], [mine]).wait(self._timeout)
        added = codec.decode(everyone[0], numel)
        for part in everyone[1:]:
            added.add_(codec.decode(part, numel))
        return added.to(gradient.device)
