"""Laws of rebalancing on random swarms, each shown to be broken by a policy without the guard it rests on."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.elastic.rebalancing import policies as rebalance
from hetplanner.elastic.rebalancing.capacity import bound_throughput, spread_peers
from hetplanner.elastic.rebalancing.policies import propose_by_queue, propose_by_throughput
from hetplanner.elastic.rebalancing.swarm_view import Move, SwarmView
from hetplanner.plan.elastic.rebalancing import Rebalancing

OURS = Rebalancing(hysteresis=0.0)
CASES = settings(max_examples=150, deadline=None)


@st.composite
def swarms(draw, whole=False):
    """Two to five stages, some perhaps empty, of up to twelve peers that serve, download or are about to leave."""
    stages, peers = draw(st.integers(2, 5)), draw(st.integers(1, 12))
    speed = st.integers(1, 4).map(float) if whole else st.floats(0.1, 8.0)

    def column(values, kind):
        return np.array(draw(st.lists(values, min_size=peers, max_size=peers)), dtype=kind)

    return SwarmView(
        peers=[f"p{i}" for i in range(peers)],
        stage_P=column(st.integers(0, stages - 1), np.int64),
        speed_P=column(speed, np.float64),
        serving_P=column(st.integers(0, 4).map(bool), np.bool_),
        load_S=np.ones(stages)
        if whole
        else np.array(draw(st.lists(st.floats(0.5, 3), min_size=stages, max_size=stages))),
        download_s=draw(st.sampled_from([0.0, 120.0])),
        leaving_P=column(st.integers(0, 5).map(lambda v: v == 5), np.bool_),
        queue_P=column(st.floats(0, 20), np.float64),
    )


def moved(view: SwarmView, move: Move, arrived: bool) -> SwarmView:
    """The swarm while the peer downloads, or after it."""
    peer = view.peers.index(move.peer)
    stage_P, serving_P = view.stage_P.copy(), view.serving_P.copy()
    stage_P[peer], serving_P[peer] = move.to_stage, arrived
    return replace(view, stage_P=stage_P, serving_P=serving_P)


def lowered(view, move):
    """Whether the smallest serving capacity falls at any time of a move."""
    least = view.serving_S.min() * (1 - 1e-6)
    return any(moved(view, move, arrived).serving_S.min() < least for arrived in (False, True))


@CASES
@given(swarms())
def test_the_last_peer_never_leaves(view):
    for propose in (propose_by_throughput, propose_by_queue):
        move = propose(view, OURS)
        if move is not None:
            peer = view.peers.index(move.peer)
            assert view.serving_P[peer]
            assert view.stage_P[peer] == move.from_stage != move.to_stage
            assert moved(view, move, arrived=False).servers_S[move.from_stage] >= 1


@CASES
@given(swarms())
def test_no_move_lowers_the_smallest_capacity(view):
    move = propose_by_throughput(view, OURS)
    assert move is None or not lowered(view, move)


def test_the_paper_breaks_that_law():
    """So the property above can fail: one peer is no unit of load."""
    view = SwarmView(
        peers=["slow", "fast"] * 2, stage_P=np.array([0, 0, 1, 1]), speed_P=np.array([1.0, 9.0, 5.0, 4.0]),
        serving_P=np.ones(4, dtype=np.bool_), load_S=np.ones(2), queue_P=np.array([2.0, 1.0, 3.0, 3.0]),
    )  # fmt: skip
    move = propose_by_queue(view, OURS)
    assert move == Move("fast", 0, 1)
    assert lowered(view, move)


def test_without_its_guards_ours_would_break_both_laws(monkeypatch):
    """So the properties above can fail: who downloads counts as coming, but does not serve."""
    view = SwarmView(
        peers=["here", "there", "coming"], stage_P=np.array([0, 1, 0]), speed_P=np.array([3.0, 2.0, 9.0]),
        serving_P=np.array([True, True, False]), load_S=np.ones(2),
    )  # fmt: skip
    assert propose_by_throughput(view, OURS) is None
    monkeypatch.setattr(rebalance, "_may_leave", lambda view: view.serving_P)
    move = propose_by_throughput(view, OURS)
    assert move == Move("here", 0, 1)
    assert moved(view, move, arrived=False).servers_S[0] == 0
    assert lowered(view, move)


@CASES
@given(swarms(whole=True))
def test_the_policy_comes_to_rest_and_never_loses_on_its_way(view):
    """Every finished download leaves the sorted capacities no smaller; soon nothing is left to gain."""
    view = replace(view, serving_P=np.ones_like(view.serving_P), leaving_P=None)
    before = sorted(view.serving_S)
    for _ in range(100):
        move = propose_by_throughput(view, OURS)
        if move is None:
            break
        view = moved(view, move, arrived=True)
        assert view.serving_S.min() >= before[0] - 1e-9
    else:
        pytest.fail("the policy still moves peers after 100 moves")


@CASES
@given(st.integers(1, 5), st.integers(2, 5), st.floats(0.1, 9.0))
def test_equal_loads_give_no_move(each, stages, speed):
    peers = each * stages
    view = SwarmView(
        peers=[f"p{i}" for i in range(peers)], stage_P=np.arange(peers) % stages, speed_P=np.full(peers, speed),
        serving_P=np.ones(peers, dtype=np.bool_), load_S=np.full(stages, 0.3), queue_P=np.full(peers, 7.0),
    )  # fmt: skip
    assert propose_by_throughput(view, OURS) is None
    assert propose_by_queue(view, OURS) is None


@CASES
@given(swarms())
def test_the_same_view_gives_the_same_move(view):
    for propose in (propose_by_throughput, propose_by_queue):
        assert propose(view, OURS) == propose(replace(view), OURS)


def best_of_all(speeds, stages):
    """The best smallest sum over every assignment."""
    reached = {(0,) * stages}
    for speed in speeds:
        reached = {
            tuple(sorted((*sums[:s], sums[s] + speed, *sums[s + 1 :]))) for sums in reached for s in range(stages)
        }
    return max(min(sums) for sums in reached)


@CASES
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 4))
def test_no_assignment_beats_the_bound(speeds, stages):
    speed_P, load_S = np.array(speeds, dtype=np.float64), np.ones(stages)
    best = best_of_all(speeds, stages)
    assert best <= bound_throughput(speed_P, load_S) + 1e-9
    greedy = np.bincount(spread_peers(speed_P, load_S), weights=speed_P, minlength=stages).min()
    assert greedy <= best


@CASES
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_no_assignment_to_unequal_stages_beats_the_bound(speeds, loads):
    speed_P, load_S = np.array(speeds, dtype=np.float64), np.array(loads, dtype=np.float64)
    assignments = itertools.product(range(len(loads)), repeat=len(speeds))
    sums = (np.bincount(stage_P, weights=speed_P, minlength=len(loads)) / load_S for stage_P in assignments)
    assert max(float(have_S.min()) for have_S in sums) <= bound_throughput(speed_P, load_S) * (1 + 1e-9)


def test_the_bound_is_met_where_it_can_be():
    assert bound_throughput(np.array([9.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0])) == 1.0
    assert bound_throughput(np.ones(130), np.ones(32)) == 4.0
    assert bound_throughput(np.array([100.0, 1.0, 1.0]), np.ones(2)) == 2.0
    assert bound_throughput(np.array([1.5, 1.0, 3.0]), np.ones(2)) == 2.5
    assert bound_throughput(np.array([2.0, 4.0]), np.array([1.0, 2.0])) == 2.0
    assert bound_throughput(np.ones(3), np.ones(4)) == 0.0


@given(st.floats(1e-9, 1e15), st.lists(st.sampled_from([1.0, 1.5, 3.0]), min_size=3, max_size=30))
def test_the_bound_does_not_depend_on_the_unit_of_speed(unit, speeds):
    bound = bound_throughput(np.array(speeds), np.ones(3))
    assert bound_throughput(np.array(speeds) * unit, np.ones(3)) == pytest.approx(bound * unit)
