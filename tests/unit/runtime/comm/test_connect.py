"""Where ranks meet: a store that listens at one address, each rank once."""

import os
import socket
from datetime import timedelta

import psutil
import pytest
from torch.distributed import HashStore

from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.connect import Place, claim_rank, interface_of, open_store, store_at

SOON = timedelta(seconds=60)


def listening(port: int) -> list[str]:
    sockets = psutil.Process().net_connections(kind="inet")
    return [one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN and one.laddr.port == port]


def test_a_ranks_own_store_listens_at_its_address_only() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = open_store(Place(2, 4, "localhost", port, agent_store=False, is_first=True))
    assert listening(port) == ["127.0.0.1"]
    other = open_store(Place(0, 4, "127.0.0.1", port, agent_store=False, is_first=False))  # the plan's first rank
    store.set("key", "value")
    assert other.get("key") == b"value"


def test_a_store_at_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.1:0: .* has no such address"):
        store_at("192.0.2.1", 0, SOON, is_master=True)


def test_a_store_whose_port_is_in_use_is_refused() -> None:
    first = store_at("127.0.0.1", 0, SOON, is_master=True)
    with pytest.raises(InvalidInput, match=rf"127\.0\.0\.1:{first.port}: the port is in use on "):
        store_at("127.0.0.1", first.port, SOON, is_master=True)


def test_a_name_that_only_this_machine_reaches_is_refused() -> None:
    """Debian gives a machine's own name the address 127.0.1.1: other hosts would look for the store elsewhere."""
    with pytest.raises(InvalidInput, match=r"127\.1: is 127\.0\.0\.1 on this machine, where no other host"):
        store_at("127.1", 0, SOON, is_master=True)


def test_a_loopback_address_that_is_given_as_one_is_taken() -> None:
    """Peers of a rehearsal whose links can be cut have such addresses."""
    store = store_at("127.0.1.7", 0, SOON, is_master=True)
    assert listening(store.port) == ["127.0.1.7"]


def test_a_rank_is_claimed_once() -> None:
    store = HashStore()
    place = Place(1, 4, "127.0.0.1", 0, agent_store=True, host="gpu-a")
    claim_rank(place, store)
    claim_rank(place, store)  # by the same process
    assert store.get("hetplanner/0/rank/1") == f"{socket.gethostname()}, process {os.getpid()}".encode()
    store.set("hetplanner/0/rank/3", "gpu-b, process 7")
    with pytest.raises(InvalidInput, match=r"rank 3 of host 'gpu-a': was started twice, by gpu-b, process 7 and by "):
        claim_rank(Place(3, 4, "127.0.0.1", 0, agent_store=True, host="gpu-a"), store)


def test_interfaces_are_found_by_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
