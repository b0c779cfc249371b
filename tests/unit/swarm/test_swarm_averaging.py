"""Averaging inside a stage: by which library, the same sums by each, and that nobody who is gone holds up the next."""

import threading
import time

import pytest
import torch

from hetplanner.codecs.spec import Codec
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp
from hetplanner.swarm.peer import collective
from hetplanner.swarm.peer.averaging import Averager, Meeting, Tied
from hetplanner.swarm.peer.engine import Sum

SIZE, TIED_FROM = 600, 500
TIMEOUT_S = 20.0


class Peers:
    """Averagers that meet at the store of the first of each group."""

    def __init__(self, names, codec="none"):
        self.averagers = {name: Averager("127.0.0.1", TIMEOUT_S, Codec(name=codec)) for name in names}
        self.replicas = {
            name: Replica(Member(name, Stamp(1, i)), f"127.0.0.1:{i + 1}", False) for i, name in enumerate(names)
        }

    def port_of(self, address):
        return next(
            self.averagers[n].open_store() for n, replica in self.replicas.items() if replica.address == address
        )

    def begin(self, name, number, group, tied=()):
        """This peer's part in an attempt, on a thread; the result is in the list when it is there."""
        shares = tuple(Tied(owner, TIED_FROM, SIZE, tuple(map(self.replicas.get, members))) for owner, members in tied)
        replicas = tuple(map(self.replicas.get, group))
        own_end = TIED_FROM if tied else SIZE
        meeting = Meeting(Stamp(1, number), self.replicas[name].member, replicas, shares, own_end, self.port_of)
        found = []

        def reduce():
            try:
                found.append(self.averagers[name].reduce(brought(name), meeting))
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=reduce, daemon=True)
        thread.start()
        return thread, found

    def reduce(self, number, group, **options):
        """What all of a group get."""
        parts = [self.begin(name, number, group, **options) for name in group]
        for thread, _ in parts:
            thread.join(2 * TIMEOUT_S)
        return [found[0] for _, found in parts]

    @property
    def carriers(self):
        return {name: [c.name for _, c in a._open.values()] for name, a in self.averagers.items()}


def brought(name):
    gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(ord(name)))
    return Sum(gradient, ord(name), ord(name) / 8)


@pytest.fixture(params=["gloo", "nccl"])
def carrier(request, monkeypatch):
    """The library that is chosen. nccl is played by gloo on processors that are said to be GPUs, one for each peer."""
    if request.param == "nccl":
        pretend_gpus(monkeypatch)
    return request.param


def pretend_gpus(monkeypatch, ids=None):
    number = iter(ids or map(str, range(1, 1000)))
    monkeypatch.setattr(collective, "gpu_id", lambda device: next(number))
    monkeypatch.setattr(
        collective, "make_nccl", lambda store, rank, size, host, timeout, device:
        collective.make_gloo(store, rank, size, host, timeout),
    )  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_all_get_the_same_sum_whatever_carries_it(carrier, codec):
    peers, groups = Peers("abc", codec), []
    for number in (1, 2):  # the second time in the same group
        found = peers.reduce(number, "abc")
        wanted = torch.stack([brought(name).gradient for name in "abc"]).sum(0)
        assert all(torch.equal(one.gradient, found[0].gradient) for one in found)
        assert torch.allclose(found[0].gradient, wanted, atol=1e-5 if codec == "none" else 0.1)
        assert {(one.count, one.loss_sum) for one in found} == {(sum(map(ord, "abc")), sum(map(ord, "abc")) / 8)}
        assert peers.carriers == {name: [carrier] for name in "abc"}
        groups.append([c for a in peers.averagers.values() for _, c in a._open.values()])
    assert groups[0] == groups[1]


def test_a_weight_of_two_stages_is_summed_over_both(carrier):
    peers = Peers("abcd")
    parts = [
        peers.begin(name, 1, group, tied=[("embed", "abcd")]) for group in ("ab", "cd") for name in group
    ]  # fmt: skip
    for thread, _ in parts:
        thread.join(2 * TIMEOUT_S)
    found = [found[0].gradient for _, found in parts]
    for part, (group, together) in zip((found[0], found[2]), (("ab", "abcd"), ("cd", "abcd")), strict=True):
        own = torch.stack([brought(name).gradient for name in group]).sum(0)[:TIED_FROM]
        tied = torch.stack([brought(name).gradient for name in together]).sum(0)[TIED_FROM:]
        assert torch.allclose(part, torch.cat([own, tied]), atol=1e-5)
    assert torch.equal(found[0][TIED_FROM:], found[3][TIED_FROM:])


@pytest.mark.parametrize("ids", [["7", "7"], ["7", ""], ["", ""]], ids=["shared", "one has none", "none"])
def test_without_a_gpu_for_each_of_them_it_is_gloo(monkeypatch, ids):
    pretend_gpus(monkeypatch, ids)
    peers = Peers("ab")
    assert all(isinstance(one, Sum) for one in peers.reduce(1, "ab"))
    assert peers.carriers == {"a": ["gloo"], "b": ["gloo"]}


def test_who_waits_for_somebody_who_is_gone_does_not_hold_up_the_next_attempt(carrier):
    peers = Peers("abc")
    first, found = peers.begin("a", 1, "ab")  # b never comes
    time.sleep(0.2)
    peers.averagers["a"].drop()
    began_s = time.monotonic()
    assert all(isinstance(one, Sum) for one in peers.reduce(2, "ac"))
    assert time.monotonic() - began_s < TIMEOUT_S
    assert first.is_alive()
    assert not found


def test_a_sum_that_was_aborted_while_it_went_on_is_not_used(carrier):
    peers = Peers("abc")
    peers.reduce(1, "abc")
    thread, found = peers.begin("a", 2, "abc")  # in the group that is there; b comes only after the coordinator said no
    time.sleep(0.2)
    peers.averagers["a"].drop()
    late = [peers.begin(name, 2, "abc") for name in "bc"]
    thread.join(2 * TIMEOUT_S)
    assert "aborted" in str(found[0])
    time.sleep(0.2)
    for name in "bc":  # they hear of it while they wait for a; the next attempt does not wait for that
        peers.averagers[name].drop()
    assert all(isinstance(one, Sum) for one in peers.reduce(3, "abc"))
    assert not any(isinstance(part, Sum) for _, parts in late for part in parts)


def test_a_network_that_nccl_cannot_cross_is_averaged_over_by_gloo(monkeypatch, caplog):
    pretend_gpus(monkeypatch)

    def fail(*args):
        raise RuntimeError("nccl: cannot connect")

    monkeypatch.setattr(collective, "make_nccl", fail)
    peers = Peers("ab")
    tries = [peers.reduce(number, "ab") for number in range(1, 5)]
    assert [all(isinstance(one, Sum) for one in found) for found in tries] == [False, False, False, True]
    assert peers.carriers == {"a": ["gloo"], "b": ["gloo"]}
    assert "nccl has come to nothing 3 times" in caplog.text
