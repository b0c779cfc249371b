"""Ranks' reducers over queues instead of a network: exact sums, and equal bits whatever the codec loses."""

import queue
import threading
from collections import defaultdict

import pytest
import torch
from factories import chain_plan, sites_cluster

from hetplanner.codecs.spec import Codec
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.runtime.reduce import GroupReducer
from hetplanner.runtime.transport import HEADER_BYTES


class Queues:
    """The transport's interface between threads; what was sent must be what the receiver expects."""

    def __init__(self, rank, messages):
        self.rank, self.messages, self.sent_bytes = rank, messages, 0

    def buffer(self, num_bytes):
        return torch.empty(HEADER_BYTES + num_bytes, dtype=torch.uint8)

    def payload(self, message):
        return message[HEADER_BYTES:]

    def send(self, message, peer, topic, index):
        assert self.messages[self.rank, peer, topic, index].empty(), "two messages under one name"
        self.messages[self.rank, peer, topic, index].put(message.clone())
        self.sent_bytes += message.numel() - HEADER_BYTES

    def receive(self, expected):
        name = (expected.peer, self.rank, expected.topic, expected.index)
        data = self.messages[name].get(timeout=20)[HEADER_BYTES:]
        assert data.numel() == expected.num_bytes
        return data


def reduce_all(group, buckets):
    """Every member in its own thread; bytes they sent."""
    messages, queues, told = defaultdict(queue.Queue), [], []
    reducers = []
    for rank, bucket in zip(group.ranks, buckets, strict=True):
        queues.append(Queues(rank, messages))
        reducers.append(GroupReducer(group, (0, 1), rank, bucket, queues[-1]))
    threads = [threading.Thread(target=lambda r=r: told.append(r.reduce())) for r in reducers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(reducers), "a member failed"
    assert sum(told) == sum(q.sent_bytes for q in queues)
    return sum(told)


SITES = [(2,), (2, 1), (3, 1), (3, 3), (2, 2, 1), (4, 1, 1, 2)]


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
@pytest.mark.parametrize("sites", SITES, ids=str)
def test_all_members_end_with_the_same_bits_near_the_sum(reducer, codec, sites):
    size = sum(sites)
    plan = chain_plan([1] * size, [], cluster=sites_cluster(sites)).replace(reducer=reducer)
    plan = plan.replace(stages=tuple(s.replace(reduce_codec=Codec(name=codec, block=64)) for s in plan.stages))
    (group,) = reduction_groups(plan)
    generator = torch.Generator().manual_seed(size)
    buckets = [torch.randn(group.num_elements, generator=generator) for _ in range(size)]
    expected = torch.stack(buckets).double().sum(0)
    sent = reduce_all(group, buckets)
    assert all(torch.equal(bucket, buckets[0]) for bucket in buckets)
    tolerance = {"none": 1e-5, "fp16": 0.03, "int8": 0.5}[codec]
    assert (buckets[0].double() - expected).abs().max() < tolerance
    assert sent == sum(group.transfer_bytes(t) for t in group.program)


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
def test_a_rehearsal_changes_nothing_and_needs_no_peer(reducer):
    plan = chain_plan([1] * 4, [], cluster=sites_cluster((3, 1))).replace(reducer=reducer)
    (group,) = reduction_groups(plan)
    bucket = torch.randn(group.num_elements)
    before, transport = bucket.clone(), Queues(0, defaultdict(queue.Queue))
    GroupReducer(group, (0, 1), group.ranks[0], bucket, transport).rehearse()
    assert torch.equal(bucket, before)
    assert transport.sent_bytes == 0
