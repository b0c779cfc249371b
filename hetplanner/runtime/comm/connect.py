"""Joining the process group: gloo, on loopback when all ranks are on this machine, else at one address a host."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from hetplanner.errors import InvalidInput, RunError
from hetplanner.plan.placement import ADDRESS_VARIABLE, HOST_VARIABLE

LOOPBACKS = ("127.0.0.1", "localhost", "::1")
LOOPBACK_ALONE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
LONGEST_QUEUE = 1024
"""Connections that wait for the store; every rank of a run opens one at the same time."""
HUNG_PEER_S = 600.0
"""A peer that is silent this long is given up; one that dies is noticed within milliseconds."""
SIOCGIFADDR = 0x8915
"""Linux's request for an interface's address."""


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the others, from torchrun's environment.

    Attributes:
        rank: torchrun's; the plan's once the host is known (`on_host`).
        address, port: where all ranks meet.
        agent_store: torchrun's agent has opened the store there.
        is_first: whether torchrun counts it as rank 0, whose machine has that address.
        host: which of the plan's hosts its machine is, as its launcher says.
        own_address: at which the other hosts reach its machine, as its launcher says.
    """

    rank: int
    world_size: int
    address: str
    port: int
    agent_store: bool
    local_world_size: int = 0
    local_rank: int = 0
    is_first: bool = True
    host: str | None = None
    own_address: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the ranks meet at this machine's loopback address."""
        return self.address in LOOPBACKS

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
            int(os.environ["RANK"]) == 0,
            os.environ.get(HOST_VARIABLE) or None,
            os.environ.get(ADDRESS_VARIABLE) or None,
        )
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"environment: {error} is missing or no number; start the worker through torchrun:"
            " torchrun --nproc-per-node=N -m hetplanner.runtime.worker plan.json"
        ) from None


def store_at(address: str, port: int, timeout: timedelta, *, is_master: bool) -> TCPStore:
    """A TCPStore at an address of IPv4; port 0 takes a free one.

    Its master listens at that address alone, where torch's own would listen on every interface.

    Raises:
        InvalidInput: the master's address is none of this machine's, or its port is in use.
    """
    if not is_master:
        return TCPStore(address, port, None, is_master=False, timeout=timeout, wait_for_workers=False)
    listener = _listener(address, port)
    # The store's daemon owns the descriptor from here on.
    return TCPStore(
        address,
        listener.getsockname()[1],
        None,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _listener(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(LONGEST_QUEUE)
    except OSError as error:
        listener.close()
        raise InvalidInput(f"{address}:{port}: {_why_not_bound(error, address)}") from None
    found = listener.getsockname()[0]
    if address != found and address not in LOOPBACKS and found.startswith("127."):
        listener.close()
        raise InvalidInput(f"{address}: is {found} on this machine, where no other host reaches it; give its address")
    return listener


def _why_not_bound(error: OSError, address: str) -> str:
    name = socket.gethostname()
    match error.errno:
        case errno.EADDRINUSE:
            return f"the port is in use on {name}; end the process that listens there, or give another port"
        case errno.EADDRNOTAVAIL:
            return f"{name} has no such address; the first host of the plan opens the store at an address of its own"
        case _:
            return f"cannot be opened on {name}: {error.strerror or error}"


@contextmanager
def loopback_alone() -> Iterator[None]:
    """Groups that are made inside talk over this machine's loopback interface alone."""
    before = {name: os.environ.get(name) for name in LOOPBACK_ALONE}
    os.environ.update(LOOPBACK_ALONE)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def open_store(place: Place) -> Store:
    """The store at which the ranks meet: the agent's, or one of the first rank's own. Raises InvalidInput."""
    timeout = timedelta(seconds=HUNG_PEER_S)
    address = "127.0.0.1" if place.is_loopback else place.address
    return store_at(address, place.port, timeout, is_master=place.is_first and not place.agent_store)


def claim_rank(place: Place, store: Store) -> None:
    """Refuses a second process for one rank. Raises InvalidInput, with both machines."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    mine = f"{socket.gethostname()}, process {os.getpid()}"
    first = store.compare_set(f"hetplanner/{attempt}/rank/{place.rank}", "", mine).decode(errors="replace")
    if first != mine:
        host = f" of host {place.host!r:.80}" if place.host else ""
        raise InvalidInput(
            f"rank {place.rank}{host}: was started twice, by {first:.200} and by {mine}; give every machine its own"
            f" {HOST_VARIABLE}"
        )


def join(place: Place, store: Store, *, loopback: bool) -> None:
    """Joins all ranks in one gloo group. Raises RunError when they cannot reach each other."""
    torch.set_num_threads(1)
    if loopback:
        os.environ.update(LOOPBACK_ALONE)
    elif interface := _interface(place):
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


def _interface(place: Place) -> str | None:
    """Name of the interface on which this machine talks to the others. Raises InvalidInput."""
    if place.own_address is None:
        return interface_towards(place.address, place.port)
    interface = interface_of(place.own_address)
    if interface is None:
        raise InvalidInput(
            f"rank {place.rank}: {socket.gethostname()} has no interface with the address {place.own_address:.80};"
            f" correct {ADDRESS_VARIABLE}"
        )
    return interface


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
