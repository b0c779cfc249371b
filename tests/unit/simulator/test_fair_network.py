"""Transfers that share links and NICs, against what can be worked out by hand, and against the queue."""

import math

import pytest

from hetplanner.cluster.model import Cluster
from hetplanner.schema import checked
from hetplanner.simulator.fair_network import FairNetwork
from hetplanner.simulator.network import NetworkClock
from hetplanner.simulator.simulation import simulate, summarise_plan, summarise_trace
from tests.support.plans.factories import chain_plan, small_cluster
from tests.unit.simulator.test_simulator import durations

SECOND = 125_000  # bytes in a second at 1 Mbit/s


def network(hosts, **nics):
    """Devices d0 to d3 on these hosts, links of 10 Mbit/s without latency; NICs in bytes/s by host."""
    link = {"latency": 0.0, "bandwidth": 10 * SECOND}
    names = sorted(set(hosts))
    data = {
        "name": "four",
        "sites": [{"name": "here", "latitude": 0, "longitude": 0}],
        "hosts": [{"id": name, "site": "here"} | nics.get(name, {}) for name in names],
        "devices": [{"id": f"d{i}", "kind": "CPU generic", "host": host} for i, host in enumerate(hosts)],
        "site_links": [{"from": "here", "to": "here", "source": "specified"} | link],
        "host_links": [{"host": name} | link for name in names],
    }
    cluster = checked(Cluster, data, "test")
    return FairNetwork(NetworkClock(cluster, cluster.device_ids))


def arrivals(net, messages):
    """When each message arrives: (when it is handed over, source, target, bytes), in that order."""
    found = {}
    for i, (at, source, target, num_bytes) in enumerate(messages):
        while net.next_end_s() < at:
            net.finish_next()
        net.send(at, source, target, num_bytes, 1.0, lambda now, start, arrival, i=i: found.__setitem__(i, arrival))
    while net.next_end_s() < math.inf:
        net.finish_next()
    return [found[i] for i in range(len(messages))]


def test_one_transfer_takes_its_bytes_at_the_slowest_rate():
    net = network("abcd", a={"nic_out": SECOND})
    assert arrivals(net, [(1.0, 0, 1, SECOND)]) == [2.0]


def test_messages_of_one_pair_come_one_after_the_other():
    net = network("abcd", a={"nic_out": SECOND})
    assert arrivals(net, [(0.0, 0, 1, SECOND), (0.0, 0, 1, SECOND)]) == [1.0, 2.0]


def test_two_connections_share_the_nic_of_their_host():
    net = network("abcd", a={"nic_out": SECOND})
    assert arrivals(net, [(0.0, 0, 1, SECOND), (0.0, 0, 2, SECOND)]) == [2.0, 2.0]
    # The second begins when the first is half way: both then run at half the rate.
    net = network("abcd", a={"nic_out": SECOND})
    assert arrivals(net, [(0.0, 0, 1, SECOND), (0.5, 0, 2, SECOND)]) == [1.5, 2.0]


def test_what_one_connection_cannot_use_the_other_takes():
    net = network("abcd", a={"nic_out": 4 * SECOND}, b={"nic_in": SECOND})
    # 1 of 4 Mbit/s goes to b, so 3 are left for c.
    assert arrivals(net, [(0.0, 0, 1, SECOND), (0.0, 0, 2, 3 * SECOND)]) == [1.0, 1.0]


def test_a_nic_into_a_host_is_shared_too():
    net = network("abcd", d={"nic_in": SECOND})
    assert arrivals(net, [(0.0, 0, 3, SECOND), (0.0, 1, 3, SECOND), (0.0, 1, 2, SECOND)]) == pytest.approx(
        [2.0, 2.0, 0.1]
    )


def test_inside_a_host_nothing_passes_a_nic():
    net = network("aabb", a={"nic_out": SECOND})
    assert arrivals(net, [(0.0, 0, 1, 10 * SECOND), (0.0, 0, 2, SECOND)]) == [1.0, 1.0]


def test_all_bytes_are_sent_and_none_before_its_time():
    net = network("abcd", a={"nic_out": 3 * SECOND}, c={"nic_in": 2 * SECOND})
    messages = [(0.1 * i, i % 3, (i + 1 + i % 2) % 4, SECOND * (1 + i % 5)) for i in range(40)]
    messages = [m for m in messages if m[1] != m[2]]
    found = arrivals(net, messages)
    assert all(end >= at + size / (10 * SECOND) - 1e-9 for end, (at, _, _, size) in zip(found, messages, strict=True))
    out = sum(size for _, source, _, size in messages if source == 0)
    assert max(e for e, m in zip(found, messages, strict=True) if m[1] == 0) >= out / (3 * SECOND) - 1e-9


def test_without_anything_shared_it_is_the_queue():
    plan = chain_plan((4,), (5,), cluster=small_cluster(2))
    given = durations(2)
    queue, fair = (summarise_plan(plan, given, steps=3, fair_links=fair).step_s for fair in (False, True))
    assert fair == pytest.approx(queue)


@pytest.mark.parametrize("plan", [chain_plan((4,), (3, 6)), chain_plan((2, 2), (4,)), chain_plan((2, 1, 1), (3, 6))])
def test_a_simulation_does_the_same_work_whoever_shares(plan):
    given = durations(len(plan.ranks))
    queue, fair = (simulate(plan, given, steps=2, fair_links=fair) for fair in (False, True))
    key = [
        sorted((s.rank, s.kind, s.step, s.micro_batch, s.peer, s.role, s.bytes) for s in t.spans) for t in (queue, fair)
    ]
    assert key[0] == key[1]
    assert summarise_trace(fair).step_s == pytest.approx(summarise_trace(queue).step_s, rel=0.5)
    assert simulate(plan, given, steps=2, fair_links=True) == fair
