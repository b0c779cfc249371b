"""Ranks' reducers over queues instead of a network: exact sums, and equal bits whatever the codec loses."""

import threading
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from hetplanner.codecs.spec import Codec, folded
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import LinkCodec
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.runtime.comm.power import make_reducer
from tests.support.plans.factories import chain_plan, sites_cluster
from tests.support.training.threaded_ranks import Mailboxes, MailTransport


def make_reducers(group, buckets):
    messages = Mailboxes()
    return [
        make_reducer(group, (0, 1), rank, bucket, MailTransport(rank, messages))
        for rank, bucket in zip(group.ranks, buckets, strict=True)
    ]


def reduce_all(reducers):
    """Every member in its own thread; bytes they sent."""
    told, before = [], sum(r.transport.sent_bytes for r in reducers)
    threads = [threading.Thread(target=lambda r=r: told.append(r.reduce())) for r in reducers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(reducers), "a member failed"
    assert sum(told) == sum(r.transport.sent_bytes for r in reducers) - before
    return sum(told)


def group_of(sites, reducer, codec, *, error_feedback=False):
    plan = chain_plan([1] * sum(sites), [], cluster=sites_cluster(sites)).replace(reducer=reducer)
    fields = {"reduce_codec": codec, "error_feedback": error_feedback}
    (group,) = reduction_groups(plan.replace(stages=tuple(s.replace(**fields) for s in plan.stages)))
    return group


SITES = [(2,), (2, 1), (3, 1), (3, 3), (2, 2, 1), (4, 1, 1, 2)]


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
@pytest.mark.parametrize("sites", SITES, ids=str)
def test_all_members_end_with_the_same_bits_near_the_sum(reducer, codec, sites):
    size, group = sum(sites), group_of(sites, reducer, Codec(name=codec, block=64))
    generator = torch.Generator().manual_seed(size)
    buckets = [torch.randn(group.num_elements, generator=generator) for _ in range(size)]
    expected = torch.stack(buckets).double().sum(0)
    sent = reduce_all(make_reducers(group, buckets))
    assert all(torch.equal(bucket, buckets[0]) for bucket in buckets)
    tolerance = {"none": 1e-5, "fp16": 0.03, "int8": 0.5}[codec]
    assert (buckets[0].double() - expected).abs().max() < tolerance
    assert sent == sum(group.transfer_bytes(t) for t in group.program)


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
def test_a_rehearsal_keeps_no_errors_and_needs_no_peer(reducer):
    group = group_of((3, 1), reducer, Codec(name="int8"), error_feedback=True)
    transport = MailTransport(0, Mailboxes())
    alone = make_reducer(group, (0, 1), group.ranks[0], torch.randn(group.num_elements), transport)
    alone.rehearse()
    assert transport.sent_bytes == 0
    assert all(lost.count_nonzero() == 0 for lost in alone.state().values())


COARSE = [Codec(name="int4", block=64), Codec(name="topk", ratio=30.0), Codec(name="fp16")]


def four_steps(size, group):
    """Reducers after four steps of random gradients, the sums that were wanted, and those that came."""
    generator = torch.Generator().manual_seed(size)
    buckets = [torch.empty(group.num_elements) for _ in range(size)]
    reducers = make_reducers(group, buckets)
    wanted, got = (torch.zeros(group.num_elements, dtype=torch.float64) for _ in range(2))
    for _ in range(4):
        for bucket in buckets:
            bucket.copy_(torch.randn(group.num_elements, generator=generator))
            wanted += bucket
        sent = reduce_all(reducers)
        assert sent == sum(group.transfer_bytes(t) for t in group.program)
        assert all(torch.equal(bucket, buckets[0]) for bucket in buckets)
        got += buckets[0]
    return reducers, wanted, got


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
@pytest.mark.parametrize("codec", COARSE, ids=str)
@pytest.mark.parametrize("sites", SITES, ids=str)
def test_with_error_feedback_sums_over_steps_lack_only_what_is_kept(reducer, codec, sites):
    size, group = sum(sites), group_of(sites, reducer, codec, error_feedback=True)
    reducers, wanted, got = four_steps(size, group)
    assert (wanted - got).abs().max() > (1e-4 if codec.name == "fp16" else 0.1)
    assert torch.allclose(got + all_lost(reducers), wanted, atol=1e-4)


def all_lost(reducers):
    """What all members keep, by element; what several keep of one sum (one member of every site) counts once."""
    lost, seen = torch.zeros(reducers[0].bucket.numel(), dtype=torch.float64), set()
    for reducer in reducers:
        for name, part in reducer.state().items():
            effect, span = name.split(".")
            if effect == "copy" and span in seen:
                continue
            seen |= {span} if effect == "copy" else set()
            first, end = (int(edge) for edge in span.split("-"))
            lost[first:end] += part
    return lost


def test_what_is_lost_is_state_that_can_be_saved_and_taken_back():
    group = group_of((2, 1), "hierarchical", Codec(name="topk", ratio=10.0), error_feedback=True)
    gradients = [torch.randn(3, group.num_elements) for _ in range(3)]
    buckets = [torch.empty(group.num_elements) for _ in range(3)]
    reducers = make_reducers(group, buckets)
    saved, sums = None, []
    for gradient in gradients:
        for bucket, mine in zip(buckets, gradient, strict=True):
            bucket.copy_(mine)
        reduce_all(reducers)
        sums.append(buckets[0].clone())
        saved = saved or [{name: lost.clone() for name, lost in r.state().items()} for r in reducers]
    resumed = make_reducers(group, buckets)
    for reducer, state in zip(resumed, saved, strict=True):
        reducer.load_state(state)
    for gradient, expected in zip(gradients[1:], sums[1:], strict=True):
        for bucket, mine in zip(buckets, gradient, strict=True):
            bucket.copy_(mine)
        reduce_all(resumed)
        assert torch.equal(buckets[0], expected)
    with pytest.raises(InvalidInput, match=r"state of stage 0: has nothing, but this plan keeps errors of add\."):
        resumed[0].load_state({})


@pytest.mark.parametrize("codec", COARSE, ids=str)
def test_a_step_with_gradients_that_are_no_numbers_spoils_none_that_follows(codec):
    group = group_of((2, 1), "sharded-ps", codec, error_feedback=True)
    buckets = [torch.randn(group.num_elements) for _ in range(3)]
    buckets[0][5], buckets[1][-7] = torch.nan, torch.inf
    reducers = make_reducers(group, buckets)
    reduce_all(reducers)
    assert not buckets[0].isfinite().all()
    for bucket in buckets:
        bucket.copy_(torch.randn(group.num_elements))
    reduce_all(reducers)
    assert all(bucket.isfinite().all() for bucket in buckets)


@pytest.mark.parametrize("codec", [Codec(name="int4"), Codec(name="powersgd", rank=2)], ids=str)
def test_what_is_lost_follows_the_scale_of_gradients(codec):
    group = group_of((1, 1), "sharded-ps", codec, error_feedback=True)
    buckets = [torch.randn(group.num_elements) for _ in range(2)]
    reducers = make_reducers(group, buckets)
    reduce_all(reducers)
    before = {name: lost.clone() for name, lost in reducers[0].state().items()}
    reducers[0].rescale(0.5)
    after = reducers[0].state()
    assert all(torch.equal(after[name], 0.5 * before[name]) for name in before if name != "q")


def test_without_error_feedback_nothing_is_kept():
    group = group_of((2, 1), "ring", Codec(name="int8"))
    assert all(r.state() == {} for r in make_reducers(group, [torch.ones(group.num_elements)] * 3))
    lossless = group_of((2, 1), "ring", Codec(), error_feedback=True)
    assert all(r.state() == {} for r in make_reducers(lossless, [torch.ones(group.num_elements)] * 3))


def losses_of(group, steps=500, learning_rate=0.01):
    """Least squares on two members whose data disagree, by gradient descent; the loss over both at the end."""
    size, generator = group.num_elements, torch.Generator().manual_seed(5)
    target = torch.randn(2, size, generator=generator) + torch.randn(size, generator=generator)
    weight, gradients = torch.zeros(size), [torch.empty(size) for _ in range(2)]
    reducers = make_reducers(group, gradients)
    for _ in range(steps):
        for gradient, mine in zip(gradients, target, strict=True):
            gradient.copy_(weight - mine)
        reduce_all(reducers)
        weight -= learning_rate * gradients[0]
    return float((weight - target.mean(0)).square().mean())


def test_topk_with_error_feedback_trains_where_without_it_does_not():
    """Members pull many weights apart: the largest gradients cancel, and without feedback nothing else ever travels."""
    fed_back = group_of((1, 1), "sharded-ps", Codec(name="topk", ratio=20.0), error_feedback=True)
    dense, without = replace(fed_back, codec=Codec()), replace(fed_back, error_feedback=False)
    assert losses_of(dense) < 1e-6
    assert losses_of(fed_back) < 0.01
    assert losses_of(without) > 0.1


# -- PowerSGD ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
@pytest.mark.parametrize("sites", [(2,), (2, 1), (3, 3), (2, 2, 1)], ids=str)
def test_powersgds_sums_over_steps_lack_only_what_is_kept(reducer, sites):
    size, group = sum(sites), group_of(sites, reducer, Codec(name="powersgd", rank=4))
    reducers, wanted, got = four_steps(size, group)
    lost = sum(r.state()["lost"].double().view(-1)[: group.num_elements] for r in reducers)
    assert (wanted - got).abs().max() > 0.1
    assert torch.allclose(got + lost, wanted, atol=1e-3)
    dense = replace(group, codec=Codec())
    assert sum(group.transfer_bytes(t) for t in group.program) < 0.1 * sum(
        dense.transfer_bytes(t) for t in dense.program
    )


def test_powersgd_is_exact_where_the_rank_is_enough():
    group = group_of((2, 1), "sharded-ps", Codec(name="powersgd", rank=6))
    rows, columns = folded(group.num_elements)
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(rows, 2, generator=generator)
    buckets = [
        (left @ torch.randn(2, columns, generator=generator)).view(-1)[: group.num_elements].clone() for _ in range(3)
    ]
    buckets[0][-1] = 0.0  # what the fold adds is zero: the last row is not of the same rank
    expected = torch.stack(buckets).sum(0)
    reduce_all(make_reducers(group, buckets))
    assert torch.allclose(buckets[0], expected, atol=1e-3)


def test_powersgd_trains_and_survives_gradients_that_are_no_numbers():
    group = group_of((1, 1), "sharded-ps", Codec(name="powersgd", rank=8))
    assert losses_of(group, steps=1500) < 0.1 < 0.5 < losses_of(group, steps=1)
    buckets = [torch.zeros(group.num_elements) for _ in range(2)]
    reducers = make_reducers(group, buckets)
    reduce_all(reducers)  # of nothing
    buckets[0][3] = torch.nan
    reduce_all(reducers)
    assert not buckets[0].isfinite().all()
    for bucket in buckets:
        bucket.copy_(torch.randn(group.num_elements))
    reduce_all(reducers)
    assert all(bucket.isfinite().all() and bucket.any() for bucket in buckets)
    state = {name: tensor.clone() for name, tensor in reducers[0].state().items()}
    reducers[1].load_state(state)
    with pytest.raises(InvalidInput, match=r"state of stage 0: does not fit powersgd:8; resume with"):
        reducers[1].load_state({})


def test_powersgd_is_for_reductions_only_and_declares_its_bytes():
    with pytest.raises(ValidationError, match="powersgd adds up factors of gradients"):
        LinkCodec(from_device="a", to_device="b", role="activation", codec=Codec(name="powersgd"))
    with pytest.raises(ValidationError, match="rank: belongs to powersgd only, got 3 with int8"):
        Codec(name="int8", rank=3)
    assert Codec(name="powersgd", rank=2).wire_bytes(10_000, 4) == 4 * 2 * (100 + 100)
    assert [folded(n) for n in (1, 2, 4, 5, 10_001)] == [(1, 1), (2, 1), (2, 2), (3, 2), (101, 100)]
    group = group_of((2, 1), "ring", Codec(name="powersgd", rank=2))
    assert {t.round for t in group.program} == set(range(8)), "two rings, one behind the other"
    assert len({m for r in group.ranks for p in group.rounds_of(r) for m in p.sends}) == len(group.program)
