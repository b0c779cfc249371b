"""What carries the sums of a group of peers: gloo in host memory, or nccl where every member has a GPU of its own.

`Carriers` opens a group's `Collective`; all members say over the group's store which GPU they have, and so choose
alike. nccl meets no more authentication than gloo does: see `hetplanner.swarm.peer.averaging`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from hetplanner.runtime.comm.connect import interface_of
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.device import gpu_id

log = logging.getLogger(__name__)

MAX_UNPROVEN = 3
"""So many nccl groups in a row may come to nothing; after that this peer averages by gloo.

nccl chooses addresses and ports of its own, which not every network between two peers lets through.
"""


class Collective:
    """Sums and gathers in one group; all members call the same in the same order, each on a thread that may wait.

    Args:
        name: of the library.
        pg: torch's backend for the group.
        device: where its tensors have to be.
        timeout: of one call.
        on_sum: called when a sum is done.

    Attributes:
        name, device: as given.
        rank, size: this member's, and how many there are.
    """

    def __init__(
        self, name: str, pg: Any, device: torch.device, timeout: timedelta, on_sum: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.device, self.rank, self.size = name, device, pg.rank(), pg.size()
        self._pg, self._timeout, self._on_sum = pg, timeout, on_sum
        self._is_aborted = False
        # A kernel that waits for a lost peer must not block the passes of other micro-batches.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def sum(self, tensor: Tensor) -> None:
        """Every element becomes its sum over the group, to the bit the same at all members.

        Raises:
            RuntimeError: a member is lost, it took too long, or `abort` was called; the tensor is then invalid.
        """
        self._do(lambda: self._pg.allreduce([tensor]))
        self._on_sum()

    def gather(self, mine: Tensor) -> list[Tensor]:
        """What every member gave, by rank, of equal shapes. Raises RuntimeError as `sum` does."""
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._do(lambda: self._pg.allgather([everyone], [mine]))
        return everyone

    def _do(self, begin: Callable[[], Any]) -> None:
        with self._on_stream():
            begin().wait(self._timeout)
        if self._is_aborted:  # nccl's work then ends as if it were done
            raise RuntimeError(f"averaging: {self.name}: aborted")

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        if self._stream is None:
            return contextlib.nullcontext()
        self._stream.wait_stream(torch.cuda.default_stream(self.device))  # which computes what is summed
        return torch.cuda.stream(self._stream)

    def abort(self) -> None:
        """The group is used no more; what nccl has under way ends, gloo's does at its timeout. Does not wait."""
        self._is_aborted = True
        if self.name != "gloo":  # which has nothing to abort, in some versions of torch with an error
            threading.Thread(target=self._pg.abort, name="abort", daemon=True).start()


class Carriers:
    """Opens collectives for one peer.

    Args:
        host: by which others reach this peer.
        timeout: of one call.
        device: where gradients are.
    """

    def __init__(self, host: str, timeout: timedelta, device: torch.device = CPU) -> None:
        self._host, self._timeout, self._device = host, timeout, device
        self._unproven = 0

    def open(self, store: Store, rank: int, size: int) -> Collective:
        """The group's collective, when all members have come to the store.

        Args:
            store: of this group alone.
            rank, size: this member's, and how many there are.

        Raises:
            RuntimeError: a member did not come in time.
        """
        store.set(f"gpu/{rank}", self._own_gpu())
        gpus = store.multi_get([f"gpu/{other}" for other in range(size)])
        has_own = all(gpus) and len(set(gpus)) == size
        collective = self._open_nccl(store, rank, size) if has_own else self._open_gloo(store, rank, size)
        log.info("averaging: a group of %d by %s", size, collective.name)
        return collective

    def _open_gloo(self, store: Store, rank: int, size: int) -> Collective:
        return Collective("gloo", make_gloo(store, rank, size, self._host, self._timeout), CPU, self._timeout)

    def _own_gpu(self) -> str:
        """Of which GPU the others are told."""
        if self._unproven < MAX_UNPROVEN:
            return gpu_id(self._device)
        log.warning("averaging: by gloo, as nccl has come to nothing %d times in a row", MAX_UNPROVEN)
        return ""

    def _open_nccl(self, store: Store, rank: int, size: int) -> Collective:
        self._unproven += 1
        pg = make_nccl(store, rank, size, self._host, self._timeout, self._device)
        return Collective("nccl", pg, self._device, self._timeout, self._prove)

    def _prove(self) -> None:
        self._unproven = 0


def make_gloo(store: Store, rank: int, size: int, host: str, timeout: timedelta) -> Any:
    """Torch's backend over sockets of this host's address."""
    gloo: Any = torch.distributed.ProcessGroupGloo  # torch's stubs say little of it
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=host)]
    return gloo(store, rank, size, options)


def make_nccl(store: Store, rank: int, size: int, host: str, timeout: timedelta, device: torch.device) -> Any:
    """Torch's backend between GPUs, connected."""
    if interface := interface_of(host):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # left to itself it may take another
    # Left to itself torch ends the process when a member is lost.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(int(timeout.total_seconds()) + 1))
    nccl: Any = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options.config.blocking = 0  # so that connecting to a lost peer ends at the timeout
    torch.cuda.set_device(device)
    pg = nccl(store, rank, size, options)
    pg.eager_connect_single_device(device)
    return pg
