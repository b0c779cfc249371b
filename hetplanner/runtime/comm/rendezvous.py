"""A torchrun rendezvous that listens at one address only: `--rdzv-backend=hetplanner`.

torch's own backends open their store on every interface of the machine, and the elastic one unpickles what it
finds there and orders hosts by name. This one is static: node ranks are fixed, no node joins later, and the first node
opens the store at the endpoint's address alone. Each node gets its rank by `--rdzv-conf=rank=R` (torchrun hands
`--node-rank` to its own static backend only). `hetplanner-loopback` is the same on 127.0.0.1 only.
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
from hetplanner.runtime.comm.connect import LOOPBACKS, store_at

BACKEND, ON_LOOPBACK = "hetplanner", "hetplanner-loopback"
TIMEOUT_S = 600.0


class StaticRendezvous(RendezvousHandler):
    """Static ranks around a store at one address; node rank 0 holds the store."""

    def __init__(self, backend: str, address: str, port: int, rank: int, num_nodes: int, run_id: str) -> None:
        self.backend, self.address, self.port = backend, address, port
        self.rank, self.num_nodes, self.run_id = rank, num_nodes, run_id
        self._store: PrefixStore | None = None

    def get_backend(self) -> str:
        """The name by which torchrun was asked for it."""
        return self.backend

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet at the agent's store and open none of their own."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Opens the store (once) and returns the fixed rank."""
        if self._store is None:
            # No check of the number of clients: the ranks connect to this store as well.
            timeout = timedelta(seconds=TIMEOUT_S)
            inner = store_at(self.address, self.port, timeout, is_master=self.rank == 0)
            self.port = inner.port
            self._store = PrefixStore(self.run_id, inner)
        meeting = RendezvousStoreInfo(self.address, self.port)
        return RendezvousInfo(self._store, self.rank, self.num_nodes, meeting)

    def is_closed(self) -> bool:
        """Never closed: it does not change."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """No node can join later."""
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
    if address in LOOPBACKS:
        address = "127.0.0.1"
    elif parameters.backend == ON_LOOPBACK:
        raise InvalidInput(
            f"--rdzv-endpoint: {ON_LOOPBACK} serves 127.0.0.1 only, got {address!r:.60}; for hosts take"
            f" --rdzv-backend={BACKEND}"
        )
    num_nodes = parameters.max_nodes
    rank = int(parameters.config.get("rank", os.environ.get("PET_NODE_RANK", 0 if num_nodes == 1 else -1)))
    if not 0 <= rank < num_nodes:
        raise InvalidInput(
            f"--rdzv-conf: rank must be this agent's node rank, 0 to {num_nodes - 1}, got {rank};"
            " add --rdzv-conf=rank=R"
        )
    if num_nodes > 1 and port == 0:
        raise InvalidInput(f"--rdzv-endpoint: several agents must share one port; use {address}:PORT")
    return StaticRendezvous(parameters.backend, address, port, rank, num_nodes, parameters.run_id)


def get_handler() -> object:
    """Entry point of the group `torchrun.handlers`: returns the factory."""
    return create_handler
