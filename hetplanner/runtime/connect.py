"""Joining the process group: gloo, on loopback when all ranks are on this machine."""

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from hetplanner.errors import InvalidInput, RunError

HUNG_PEER_S = 600.0
"""A peer that is silent this long is given up; one that dies is noticed within milliseconds."""
SIOCGIFADDR = 0x8915
"""Linux's request for an interface's address."""


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the others, from torchrun's environment."""

    rank: int
    world_size: int
    address: str
    port: int
    agent_store: bool
    local_world_size: int = 0
    local_rank: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether the ranks meet at this machine's loopback address."""
        return self.address in ("127.0.0.1", "localhost", "::1")

    @property
    def is_one_machine(self) -> bool:
        """Whether all ranks are on this machine: they share its cores and its clock, and talk over loopback."""
        return self.is_loopback or self.local_world_size == self.world_size


def place_from_environment() -> Place:
    """Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Raises InvalidInput when started without torchrun."""
    try:
        return Place(
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
            int(os.environ.get("LOCAL_RANK", os.environ["RANK"])),
        )
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"environment: {error} is missing or no number; start the worker through torchrun:"
            " torchrun --nproc-per-node=N -m hetplanner.runtime.worker plan.json"
        ) from None


def loopback_listener(port: int) -> socket.socket:
    """A socket bound to 127.0.0.1; TCPStore by itself would listen on every interface."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def loopback_store(port: int, world_size: int | None, timeout: timedelta, *, is_master: bool) -> TCPStore:
    """A TCPStore at 127.0.0.1:port that listens on loopback only; port 0 takes a free one."""
    if not is_master:
        return TCPStore("127.0.0.1", port, world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    listener = loopback_listener(port)
    # The store's daemon owns the descriptor from here on.
    return TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def open_store(place: Place) -> Store:
    """The store at which the ranks meet: the agent's, or one of rank 0's own."""
    timeout = timedelta(seconds=HUNG_PEER_S)
    is_master = place.rank == 0 and not place.agent_store
    if place.is_loopback:
        return loopback_store(place.port, None, timeout, is_master=is_master)
    return TCPStore(place.address, place.port, None, is_master=is_master, timeout=timeout, wait_for_workers=False)


def join(place: Place, store: Store, *, loopback: bool) -> None:
    """Joins all ranks in one gloo group. Raises RunError when they cannot reach each other."""
    torch.set_num_threads(1)
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    elif interface := interface_towards(place.address, place.port):
        # Left to themselves both look for an interface by rules of their own, which may be another one.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        dist.init_process_group(
            "gloo",
            store=PrefixStore(f"hetplanner/{attempt}", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=HUNG_PEER_S),
        )
    except (RuntimeError, dist.DistError) as error:
        raise RunError(f"rank {place.rank}: cannot join the others at {place.address}:{place.port}: {error}") from error


def interface_towards(address: str, port: int) -> str | None:
    """Name of the network interface from which `address` is reached (IPv4); None if that cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))  # sends nothing: it only chooses a route
            return interface_of(probe.getsockname()[0])
        except OSError:
            return None


def interface_of(host: str) -> str | None:
    """Name of this host's network interface with an address (IPv4, or a name that has one); None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            address = socket.gethostbyname(host)
            return next((name for _, name in socket.if_nameindex() if _address_of(probe, name) == address), None)
        except OSError:
            return None


def _address_of(probe: socket.socket, interface: str) -> str | None:
    try:
        found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except OSError:  # it has none
        return None
    return socket.inet_ntoa(found[20:24])


def agree(data: bytes | None, what: str) -> None:
    """Makes sure that all ranks that hold any hold the same bytes (their digest). Raises InvalidInput on all ranks."""
    from hashlib import sha256

    mine = torch.frombuffer(bytearray(bytes(32) if data is None else sha256(data).digest()), dtype=torch.uint8)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    holders = [rank for rank, other in enumerate(all_ranks) if other.any()]
    differing = [rank for rank in holders if not torch.equal(all_ranks[rank], all_ranks[holders[0]])]
    if differing:
        raise InvalidInput(
            f"{what}: rank {differing[0]} has another one than rank {holders[0]}; give every host the same file"
        )
