"""Receives are posted in their sender's order; interfaces are named."""

import itertools

import pytest

from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.comm.connect import interface_towards
from hetplanner.runtime.comm.receive_order import receive_order, sent_messages
from hetplanner.runtime.comm.transport import Expected, Topic
from hetplanner.schedule.order import make_schedule
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload

PLANS = {
    "2x2": lambda: chain_plan([5, 3], [4]),
    "3x2 ring": lambda: chain_plan([3, 3, 2], [5]).replace(reducer="ring"),
    "2x2 interleaved, tied": lambda: interleave(
        chain_plan([8, 8], [5], cluster=small_cluster(4, latency="50 ms"), workload=tiny_workload()), in_flight=6
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_pair_posts_in_the_order_of_the_sender(name):
    plan = PLANS[name]()
    schedule, groups = make_schedule(plan), reduction_groups(plan)
    sent = sent_messages(schedule.actions, groups, plan.problem.workload.num_micro_batches)
    assert all(len(set(keys)) == len(keys) for keys in sent.values()), "every message has a name of its own"
    for rank in range(len(plan.ranks)):
        # Taken in the worst order there is; one message is of a kind that no list names.
        taken = [Expected(peer, topic, index, 8) for (_, to), keys in sent.items() if to == rank
                 for peer, topic, index in reversed(keys)]  # fmt: skip
        taken.insert(1, Expected(taken[0].peer, Topic.NORM, 0, 8))
        order = receive_order(taken, lambda peer, rank=rank: sent[peer, rank])
        assert sorted(order, key=str) == sorted(taken, key=str)
        for peer in {m.peer for m in taken}:
            mine = [(m.peer, m.topic, m.index) for m in order if m.peer == peer and m.topic is not Topic.NORM]
            assert mine == sent[peer, rank]


def test_messages_already_in_order_stay_as_they_are():
    taken = [Expected(peer, Topic.ACTIVATION, m, 8) for m, peer in itertools.product(range(3), (1, 2))]
    assert receive_order(taken, lambda peer: [(peer, Topic.ACTIVATION, m) for m in range(9)]) == taken


def test_the_interface_towards_this_machine_is_loopback():
    assert interface_towards("127.0.0.1", 29500) == "lo"
    assert interface_towards("no such host.invalid", 29500) is None
