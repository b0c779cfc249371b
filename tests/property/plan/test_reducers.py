"""Whatever the members and the network: every program ends with the whole sum, alike everywhere, in the bytes told."""

from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.plan.reducers.program import Members
from hetplanner.plan.reducers.registry import REDUCERS


@st.composite
def groups(draw):
    """Two to nine members on one to four sites, unlike links, sometimes with NICs."""
    size = draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    site_M = rng.integers(0, draw(st.integers(1, 4)), size)
    host_M = site_M * 2 + rng.integers(0, 2, size)
    nic_M = (rng.choice([0.0, 1e-9, 1e-7], 8) if draw(st.booleans()) else np.zeros(8))[host_M]
    return Members(
        site_M=site_M,
        host_M=host_M,
        latency_s_MM=rng.choice([0.0, 0.001, 0.08], (size, size)),
        seconds_per_byte_MM=10 ** -rng.uniform(5, 9, (size, size)),
        nic_out_s_per_byte_M=nic_M,
        nic_in_s_per_byte_M=nic_M,
    )


def perform(program, bucket_MX, rng, encode=lambda x: x, decode=lambda x: x):
    """Performs a program as ranks do: each its own rounds, whoever can go on in any order; messages wait in queues."""
    bucket_MX = bucket_MX.copy()
    todo = {m: deque() for m in range(len(bucket_MX))}
    for number in range(max((t.round for t in program), default=-1) + 1):
        for t in program:
            if t.round == number:
                todo[t.sender].append(("send", t))
        for t in program:
            if t.round == number and t.sender != t.receiver:
                todo[t.receiver].append(("take", t))
    queues, copies = defaultdict(deque), defaultdict(dict)
    while any(todo.values()):
        ready = [m for m, actions in todo.items() if actions and can_go_on(actions[0], queues)]
        assert ready, "deadlock"
        me = int(rng.choice(ready))
        what, t = todo[me].popleft()
        values = bucket_MX[me, t.first : t.end]
        if what == "send":
            known = copies[me].get((t.first, t.end)) if t.effect == "copy" else None
            data = encode(values.copy()) if known is None else known
            if t.effect != "add":
                values[:] = decode(data)
            if t.effect == "copy":
                copies[me][t.first, t.end] = data
            if t.sender != t.receiver:
                queues[t.sender, t.receiver].append(data)
            continue
        data = queues[t.sender, t.receiver].popleft()
        values[:] = decode(data) if t.effect == "copy" else values + decode(data)
        if t.effect == "copy":
            copies[me][t.first, t.end] = data
    assert not any(queues.values())
    return bucket_MX


def can_go_on(action, queues):
    what, t = action
    return what == "send" or bool(queues[t.sender, t.receiver])


@pytest.mark.parametrize("name", REDUCER_NAMES)
@settings(max_examples=60, deadline=None)
@given(members=groups(), num_elements=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_every_member_ends_with_the_exact_sum(name, members, num_elements, seed):
    rng = np.random.default_rng(seed)
    bucket_MX = rng.integers(-1000, 1000, (len(members), num_elements)).astype(float)
    done = perform(REDUCERS[name].make_program(members, num_elements), bucket_MX, rng)
    assert (done == bucket_MX.sum(axis=0)).all()


@pytest.mark.parametrize("name", REDUCER_NAMES)
@settings(max_examples=60, deadline=None)
@given(members=groups(), num_elements=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_members_end_alike_with_a_codec_that_loses_some_every_time(name, members, num_elements, seed):
    rng = np.random.default_rng(seed)
    bucket_MX = rng.normal(size=(len(members), num_elements))
    program = REDUCERS[name].make_program(members, num_elements)
    # Encoding what was decoded loses again, so only passing on the very bytes keeps members alike.
    done = perform(program, bucket_MX, rng, encode=lambda x: x * 0.99, decode=lambda x: x + 1e-3)
    assert (done == done[0]).all()
    assert not np.array_equal(done[0], bucket_MX.sum(axis=0))
    again = perform(program, bucket_MX, np.random.default_rng(seed + 1), lambda x: x * 0.99, lambda x: x + 1e-3)
    assert (again == done).all(), "the order in which members get on changes nothing"


@pytest.mark.parametrize("name", REDUCER_NAMES)
@settings(max_examples=60, deadline=None)
@given(members=groups(), num_elements=st.integers(1, 60))
def test_phases_move_what_the_program_moves(name, members, num_elements):
    sent_MM, told_MM, messages_MM = (np.zeros((len(members), len(members))) for _ in range(3))
    for t in REDUCERS[name].make_program(members, num_elements):
        if t.sender != t.receiver:
            sent_MM[t.sender, t.receiver] += t.end - t.first
            messages_MM[t.sender, t.receiver] += 1
    told_messages_MM = np.zeros_like(told_MM)
    for phase in REDUCERS[name].phases(members, num_elements):
        count = phase.rounds * phase.count_F
        np.add.at(told_messages_MM, (phase.sender_F, phase.receiver_F), count)
        np.add.at(told_MM, (phase.sender_F, phase.receiver_F), count * phase.num_elements)
    # Phases count every message as the largest: one or two elements more each (a shard cut once more); empty ones too.
    assert (messages_MM <= told_messages_MM).all()
    assert (sent_MM <= told_MM).all()
    assert (told_MM - sent_MM <= 2 * told_messages_MM).all()


@pytest.mark.parametrize("name", REDUCER_NAMES)
def test_two_sites_of_many_send_the_bucket_across_as_often_as_told(name):
    size, num_elements = 8, 800
    site_M = np.arange(size) % 2
    slow_MM = site_M[:, None] != site_M[None, :]
    members = Members(
        site_M=site_M,
        host_M=np.arange(size),
        latency_s_MM=np.where(slow_MM, 0.05, 0.001),
        seconds_per_byte_MM=np.where(slow_MM, 1e-7, 1e-9),
        nic_out_s_per_byte_M=np.zeros(size),
        nic_in_s_per_byte_M=np.zeros(size),
    )
    crossing = sum(
        t.end - t.first
        for t in REDUCERS[name].make_program(members, num_elements)
        if site_M[t.sender] != site_M[t.receiver]
    )
    # Both ways together: every pair twice a shard; 14 rounds of a chunk over two links; once; all of one site's.
    expected = {"sharded-ps": 2 * 32 * 100, "ring": 2 * 14 * 100, "hierarchical": 2 * 800, "central-ps": 2 * 4 * 800}
    assert crossing == expected[name]
