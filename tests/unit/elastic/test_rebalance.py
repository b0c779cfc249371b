"""Rebalancing policies on small swarms whose answers can be worked out by hand."""

import numpy as np
import pytest

from hetplanner.elastic.rebalancing.policies import REBALANCERS, place_joiner, propose_by_queue, propose_by_throughput
from hetplanner.elastic.rebalancing.swarm_view import Move, SwarmView
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import REBALANCER_NAMES, Rebalancing

OURS, PAPER = Rebalancing(), Rebalancing(policy="queue")


def swarm(speeds, *, loads=None, joining=(), leaving=(), queues=None, download_s=0.0):
    """A view of stages that hold peers of these speeds, called a0, a1 in stage 0, b0 in stage 1, and so on."""
    names = [f"{chr(97 + s)}{i}" for s, held in enumerate(speeds) for i in range(len(held))]
    return SwarmView(
        peers=names,
        stage_P=np.array([s for s, held in enumerate(speeds) for _ in held], dtype=np.int64),
        speed_P=np.array([v for held in speeds for v in held], dtype=np.float64),
        serving_P=np.array([name not in joining for name in names], dtype=np.bool_),
        load_S=np.array(loads or [1.0] * len(speeds)),
        download_s=download_s,
        leaving_P=np.array([name in leaving for name in names], dtype=np.bool_),
        queue_P=None if queues is None else np.array(queues, dtype=np.float64),
    )


def test_every_name_of_a_plan_has_a_policy():
    assert set(REBALANCERS) == set(REBALANCER_NAMES)


def test_the_paper_moves_the_least_loaded_peer_of_the_least_loaded_stage():
    view = swarm([[1, 1], [1, 1], [1]], queues=[5, 5, 2, 1, 9])
    assert propose_by_queue(view, PAPER) == Move("b1", 1, 2)


def test_the_paper_has_our_guards():
    assert propose_by_queue(swarm([[1], [1]], queues=[0, 9]), PAPER) is None
    assert propose_by_queue(swarm([[1, 1], [1, 1]], queues=[3, 3, 3, 3]), PAPER) is None
    assert propose_by_queue(swarm([[1, 1, 1], []], queues=[3, 3, 3]), PAPER) == Move("a0", 0, 1)


def test_the_paper_needs_queues():
    with pytest.raises(InvalidInput, match="needs queue lengths"):
        propose_by_queue(swarm([[1, 1], [1]]), PAPER)


def test_the_relocation_that_leaves_the_weaker_stage_strongest_is_chosen():
    assert propose_by_throughput(swarm([[4, 2, 1], [2]]), OURS) == Move("a1", 0, 1)  # 5 and 4, not 6 and 3
    assert propose_by_throughput(swarm([[4, 4], [3, 3, 3], [1]]), OURS) == Move("b0", 1, 2)


def test_one_slow_peer_more_is_no_reason_to_move():
    """By number stage 1 has twice as many peers; by speed both have the same."""
    assert propose_by_throughput(swarm([[4], [2, 2]]), OURS) is None


def test_loads_count():
    assert propose_by_throughput(swarm([[1, 1, 1, 1], [1, 1]], loads=[2.0, 1.0]), OURS) is None
    assert propose_by_throughput(swarm([[2, 2, 2], [2, 2, 2]], loads=[2.0, 1.0]), OURS) == Move("b0", 1, 0)


def test_a_download_on_its_way_counts():
    assert propose_by_throughput(swarm([[1, 1, 1, 1], [1, 1]]), OURS) is not None
    assert propose_by_throughput(swarm([[1, 1, 1], [1, 1, 1]], joining=["b2"]), OURS) is None


def test_who_was_told_of_its_preemption_counts_no_more_and_is_not_sent():
    view = swarm([[1, 1, 1, 1, 1], [1, 1, 1, 1]], leaving=["b0", "b1"])
    assert propose_by_throughput(view, OURS) == Move("a0", 0, 1)
    assert propose_by_throughput(swarm([[1, 1, 1, 1], [1, 1]], leaving=["a0"]), OURS) is None
    assert place_joiner(view, OURS, np.random.default_rng(0)) == 1


def test_the_last_that_serves_stays_even_beside_one_that_downloads():
    view = swarm([[3, 3], []], joining=["a1"])
    assert propose_by_throughput(view, OURS) is None
    assert propose_by_queue(swarm([[3, 3], []], joining=["a1"], queues=[1, 1]), PAPER) is None


def test_an_empty_stage_is_filled_whatever_the_settings():
    stubborn = Rebalancing(hysteresis=10.0, horizon=60.0)
    view = swarm([[4, 1], [2, 2], []], download_s=120.0)
    assert propose_by_throughput(view, stubborn) == Move("b0", 1, 2)


def test_a_move_must_pay_its_hysteresis_and_its_download():
    view = swarm([[1] * 12, [1] * 10])  # 10 becomes 11; eleven peers a stage
    root = 11**0.5
    assert propose_by_throughput(view, Rebalancing(hysteresis=0.09 * root)) is not None
    assert propose_by_throughput(view, Rebalancing(hysteresis=0.11 * root)) is None
    slow = swarm([[1] * 12, [1] * 10], download_s=120.0)
    assert propose_by_throughput(slow, Rebalancing(hysteresis=0.09 * root, horizon=600.0)) is None
    assert propose_by_throughput(slow, Rebalancing(hysteresis=0.09 * root, horizon=6000.0)) is not None
    assert propose_by_throughput(slow, Rebalancing(hysteresis=0.0, horizon=120.0)) is None


def test_an_exchange_takes_two_moves():
    """No single peer may come (4 + 4 + 4 + 3 - 4 < 12), but a 4 for a 2 gives 13 and 14."""
    view = swarm([[4, 4, 4, 4], [4, 4, 2, 2]])
    first = propose_by_throughput(view, OURS)
    assert first == Move("a0", 0, 1)
    second = propose_by_throughput(swarm([[4, 4, 4], [4, 4, 2, 2, 4]]), OURS)
    assert second == Move("b2", 1, 0)
    assert propose_by_throughput(swarm([[4, 4, 4, 2], [4, 4, 2, 4]]), OURS) is None


def test_joiners_go_to_the_neediest_stage_or_to_any():
    view = swarm([[2, 2], [1, 1, 1], [4]])
    assert place_joiner(view, OURS, np.random.default_rng(0)) == 1
    anywhere = Rebalancing(joiners="random")
    rng = np.random.default_rng(0)
    assert {place_joiner(view, anywhere, rng) for _ in range(50)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"speed_P": np.array([1.0, 0.0])}, "speed_P"),
        ({"speed_P": np.array([1.0])}, "2 entries"),
        ({"stage_P": np.array([0, 2])}, "from 0 to 1"),
        ({"load_S": np.array([1.0, 0.0])}, "load above 0"),
    ],
)
def test_views_that_cannot_be_are_refused(change, text):
    view = swarm([[1], [1]])
    fields = {name: getattr(view, name) for name in ("peers", "stage_P", "speed_P", "serving_P", "load_S")}
    with pytest.raises(InvalidInput, match=text):
        SwarmView(**fields | change)
