"""A torchrun rendezvous that listens on loopback only: `--rdzv-backend=hetplanner-loopback`.

torch's own backends open their store on every interface of the machine, and the elastic one unpickles what it
finds there. This one is static (ranks are fixed by node rank, nobody joins later) and bound to 127.0.0.1. With
several agents on one machine, each gets its node rank by `--rdzv-conf=rank=R` (torchrun hands `--node-rank` to its
own static backend only).
"""

import os
from datetime import timedelta

from torch.distributed import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from hetplanner.errors import InvalidInput
from hetplanner.runtime.connect import loopback_store

BACKEND = "hetplanner-loopback"
TIMEOUT_S = 600.0


class LoopbackRendezvous(RendezvousHandler):
    """Static ranks around a store on 127.0.0.1; node rank 0 holds the store."""

    def __init__(self, port: int, rank: int, num_nodes: int, run_id: str) -> None:
        self.port, self.rank, self.num_nodes, self.run_id = port, rank, num_nodes, run_id
        self._store: PrefixStore | None = None

    def get_backend(self) -> str:
        """Name of the backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet at the agent's store and open none of their own."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Opens the store (once) and returns the fixed rank."""
        if self._store is None:
            # No check of the number of clients: the ranks connect to this store as well.
            inner = loopback_store(self.port, None, timedelta(seconds=TIMEOUT_S), is_master=self.rank == 0)
            self.port = inner.port
            self._store = PrefixStore(self.run_id, inner)
        meeting = RendezvousStoreInfo("127.0.0.1", self.port)
        return RendezvousInfo(self._store, self.rank, self.num_nodes, meeting)

    def is_closed(self) -> bool:
        """Never closed: it does not change."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Nobody can join later."""
        return 0

    def get_run_id(self) -> str:
        """The run's id."""
        return self.run_id

    def shutdown(self) -> bool:
        """Lets the store go with the process."""
        return True


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Builds the handler from torchrun's flags. Raises InvalidInput."""
    address, port = parse_rendezvous_endpoint(parameters.endpoint or "127.0.0.1:0", 0)
    if address not in ("127.0.0.1", "localhost"):
        raise InvalidInput(f"--rdzv-endpoint: {BACKEND} serves 127.0.0.1 only, got {address!r:.60}; use 127.0.0.1:PORT")
    num_nodes = parameters.max_nodes
    rank = int(parameters.config.get("rank", os.environ.get("PET_NODE_RANK", 0 if num_nodes == 1 else -1)))
    if not 0 <= rank < num_nodes:
        raise InvalidInput(
            f"--rdzv-conf: rank must be this agent's node rank, 0 to {num_nodes - 1}, got {rank};"
            " add --rdzv-conf=rank=R"
        )
    if num_nodes > 1 and port == 0:
        raise InvalidInput("--rdzv-endpoint: several agents must share one port; use 127.0.0.1:PORT")
    return LoopbackRendezvous(port, rank, num_nodes, parameters.run_id)


def get_handler() -> object:
    """Entry point of the group `torchrun.handlers`: returns the factory."""
    return create_handler
