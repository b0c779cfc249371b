"""Emulated links of a rehearsal: messages, downloads and averaging take what the cost model says."""

import asyncio
import contextlib
import os
import time

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.simulator.network import NetworkClock
from hetplanner.swarm.launch.links import Links, create_links
from hetplanner.swarm.launch.network_proxy import NetworkProxy
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.wire.endpoint import Endpoint, Lost
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster
from tests.support.processes.own_loop import finish
from tests.support.swarms.swarm_runs import small_spec

NBYTES = 100_000


def test_a_message_arrives_when_the_shared_clocks_say(tmp_path):
    cluster = small_cluster(3, bandwidth="8 Mbit/s", latency="10 ms", nic="16 Mbit/s")
    create_links(cluster, tmp_path)
    ends = [Links(tmp_path, device) for device in cluster.device_ids]
    stamp = ends[0].stamp()
    sent_s = float(stamp[0][1].split()[1])
    rule = NetworkClock(cluster, cluster.device_ids)
    for target in (1, 1, 2):
        wanted = rule.reserve(sent_s, 0, target, NBYTES)[1]
        assert ends[target].arrival_s(stamp, NBYTES) == pytest.approx(wanted, abs=1e-9)
    assert ends[0].arrival_s((("other", "1"),), NBYTES) == 0.0
    with pytest.raises(InvalidInput, match="nobody"):
        Links(tmp_path, "nobody")


@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_takes_what_the_reducers_own_program_takes(tmp_path, size):
    """Round by round over unlike links, as the simulator plays a plan's ring."""
    cluster = sites_cluster((2, size - 1), inside=("80 Mbit/s", "1 ms"), between=("8 Mbit/s", "10 ms"))
    create_links(cluster, tmp_path)
    plan = chain_plan((2,) * size, (), cluster=cluster).replace(reducer="ring")
    (group,) = reduction_groups(plan)
    rule, ready = NetworkClock(cluster, cluster.device_ids), [0.0] * size
    rounds = [group.rounds_of(rank) for rank in range(size)]
    chunk = rounds[0][0].sends[0].num_bytes
    ring = [0]
    while len(ring) < size:
        ring.append(rounds[ring[-1]][0].sends[0].peer)
    for turn in range(len(rounds[0])):
        arrivals = {}
        for rank in ring:
            (send,) = rounds[rank][turn].sends
            arrivals[send.peer] = rule.reserve(ready[rank], rank, send.peer, chunk)[1]
        ready = [max(ready[rank], arrivals[rank]) for rank in range(size)]
    began_s = 1e6
    took_s = Links(tmp_path, cluster.device_ids[0]).ring_s(ring, len(rounds[0]), chunk, began_s) - began_s
    assert took_s == pytest.approx(max(ready), rel=1e-6)


class Echo:
    """Answers work with a gradient of another size, and gives a state in pieces."""

    def __init__(self):
        self.came_s = 0.0

    async def on_message(self, sender, frame):
        self.came_s = time.monotonic()

    async def on_state(self, request):
        for _ in range(10):
            yield bytes(NBYTES // 10)

    async def on_query(self, request):
        return bytes(NBYTES)

    def on_garbage(self, sender, reason):
        raise AssertionError(reason)


async def _pair(tmp_path, cluster):
    create_links(cluster, tmp_path)
    ends = [Endpoint(Echo(), None, 2**20, Links(tmp_path, device)) for device in cluster.device_ids]
    for end in ends:
        await end.start("127.0.0.1")
    return ends


def test_answers_and_downloads_cross_the_link_once_and_never_too_early(tmp_path):
    """100 kB at 1 Mbit/s are 0.8 s: nothing may come before; that nothing comes late is for an idle machine to show."""

    async def story():
        one, two = await _pair(tmp_path, small_cluster(2, bandwidth="1 Mbit/s", latency="50 ms"))
        began_s = time.monotonic()
        assert len(await one.query(two.address, b"", 30.0)) == NBYTES
        asked_s = time.monotonic() - began_s
        began_s = time.monotonic()
        pieces = [piece async for piece in one.state(two.address, b"", 30.0)]
        downloaded_s = time.monotonic() - began_s
        await one.close()
        await two.close()
        assert sum(map(len, pieces)) == NBYTES
        assert asked_s >= 0.9  # 50 ms, then 0.8 s and 50 ms
        assert downloaded_s >= 0.85

    finish(story())


async def _asked(end, address) -> bool:
    """Whether an answer comes, on the old connection or on a new one."""
    for _ in range(100):
        with contextlib.suppress(Lost):
            return len(await end.query(address, b"", 10.0)) == NBYTES
        await asyncio.sleep(0.1)
    return False


def test_a_cut_link_carries_nothing_either_way_and_a_mended_one_what_was_held():
    async def story():
        board = NetworkProxy()
        (host_a, proxy_a), (host_b, proxy_b) = board.admit("a"), board.admit("b")
        ends = [Endpoint(Echo(), None, 2**20, proxy=proxy) for proxy in (proxy_a, proxy_b)]
        addresses = [await end.start(host) for end, host in zip(ends, (host_a, host_b), strict=True)]
        try:
            assert len(await ends[0].query(addresses[1], b"", 10.0)) == NBYTES
            watch = asyncio.ensure_future(ends[0].watch(addresses[1]))
            await asyncio.sleep(0.1)
            board.cut("b", "a")
            await asyncio.wait_for(watch, 30.0)  # it is noticed without anybody's end
            with pytest.raises(Lost):
                await ends[0].query(addresses[1], b"", 0.5)
            board.restore("a", "b")
            assert await _asked(ends[0], addresses[1])
        finally:
            for end in ends:
                await end.close()
            board.close()

    finish(story())


def test_a_joiner_stands_for_a_device_whose_peer_is_gone(tmp_path, monkeypatch):
    started = []
    rehearsal = Rehearsal(small_spec(), tmp_path / "run", cluster=small_cluster(2))
    alive = type("Alive", (), {"is_alive": lambda self: True})()

    def start(name, arguments, plant=None):
        started.append(arguments[-1])
        rehearsal.processes[name] = alive

    monkeypatch.setattr(rehearsal, "_start", start)
    rehearsal.start_peer("d1")
    rehearsal.start_peer("joiner")
    assert started == ["--at=d1", "--at=d0"]
    with pytest.raises(InvalidInput, match="2 devices already"):
        rehearsal.start_peer("one-more")
    del rehearsal.processes["d1"]
    rehearsal.start_peer("later")
    assert started[-1] == "--at=d1"
    assert os.listdir(tmp_path / "run")
