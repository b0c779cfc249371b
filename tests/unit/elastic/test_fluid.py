"""The fluid simulation on traces whose throughput can be worked out by hand, and ours against the paper's policy."""

import numpy as np
import pytest

from hetplanner.elastic.forecast import fluid
from hetplanner.elastic.forecast.fluid import fluid_queues, simulate_swarm
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions, make_fleet
from hetplanner.elastic.forecast.preemptions import Life, PreemptionTrace, load_preemptions
from hetplanner.elastic.forecast.swarm_run import spread_over_seeds
from hetplanner.elastic.rebalancing.swarm_view import SwarmView
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing

STILL = Rebalancing(policy="none")


def trace(*lives, duration=1000.0):
    made = tuple(Life(peer=f"p{i}", start=a, end=b, speed=v) for i, (a, b, v) in enumerate(lives))
    return PreemptionTrace(name="made", duration=duration, lives=made)


def at(run, time_s):
    return float(run.throughput_E[np.searchsorted(run.time_s_E, time_s, side="right") - 1])


def test_a_joiner_serves_after_its_download():
    run = simulate_swarm(trace((0, 1000, 2), (0, 1000, 1), (300, 1000, 1)), [1.0, 1.0], STILL, download_s=100.0)
    assert [at(run, t) for t in (0, 350, 399, 400, 999)] == [1, 1, 1, 2, 2]
    assert run.mean_throughput == pytest.approx(0.4 * 1 + 0.6 * 2)
    assert run.share_of_optimal == pytest.approx(1.6 / (0.3 * 1 + 0.7 * 2))
    assert run.share_of_loaded == pytest.approx(1.0)


def test_a_move_fills_an_empty_stage_after_its_download():
    lives = [(0, 1000, 3), (0, 1000, 1), (0, 500, 3), (0, 1000, 1)]
    still = simulate_swarm(trace(*lives), [1.0, 1.0], STILL)
    assert [at(still, t) for t in (499, 501, 999)] == [4, 1, 1]
    alone = [(0, 1000, 1), (0, 1000, 1), (0, 500, 2)]
    run = simulate_swarm(trace(*alone), [1.0, 1.0], Rebalancing(), download_s=100.0)
    assert [at(run, t) for t in (499, 501, 599, 601)] == [2, 0, 0, 1]
    assert [(m.time_s, m.move.to_stage) for m in run.moves] == [(500.0, 0)]
    assert run.share_of_optimal == pytest.approx((0.5 * 2 + 0.4 * 1) / (0.5 * 2 + 0.5 * 1))


def test_who_dies_on_its_way_never_serves():
    lives = [(0, 1000, 1), (0, 1000, 1), (100, 150, 5)]
    run = simulate_swarm(trace(*lives), [1.0, 1.0], STILL, download_s=100.0)
    assert set(run.throughput_E) == {1.0}


def test_notice_lets_the_successor_be_there_in_time():
    lives = [(0, 1000, 1)] * 5 + [(0, 500, 1), (0, 1000, 1)]
    late = simulate_swarm(trace(*lives), [1.0, 1.0], Rebalancing(), download_s=100.0)
    told = simulate_swarm(trace(*lives), [1.0, 1.0], Rebalancing(), download_s=100.0, notice_s=100.0)
    assert [m.time_s for m in late.moves] == [500.0]
    assert [m.time_s for m in told.moves] == [400.0]
    assert (at(late, 501), at(told, 501)) == (2, 3)


def test_nobody_there_is_no_throughput_and_no_loss():
    run = simulate_swarm(trace((500, 900, 1)), [1.0, 1.0], Rebalancing())
    assert run.mean_throughput == 0.0
    assert run.share_of_optimal == 1.0


def test_the_same_seed_gives_the_same_run():
    drawn = generate_preemptions(0, peers=40, lifetime_s=3 * 3600.0, duration_s=6 * 3600.0, speeds=(1.0, 2.0, 4.0))
    anywhere = Rebalancing(joiners="random")
    one, two, other = (simulate_swarm(drawn, [1.0] * 8, anywhere, seed=seed) for seed in (1, 1, 2))
    assert one.moves == two.moves
    assert np.array_equal(one.throughput_E, two.throughput_E)
    assert one.mean_throughput != other.mean_throughput


@pytest.mark.parametrize("policy", ["throughput", "queue", "none"])
def test_throughput_is_never_above_the_optimum(policy, monkeypatch):
    """With a bound that is a tenth too low the same comparison fails."""
    drawn = generate_preemptions(1, peers=48, lifetime_s=2 * 3600.0, duration_s=4 * 3600.0, speeds=(1.0, 2.0, 4.0))
    run = simulate_swarm(drawn, [1.0] * 8, Rebalancing(policy=policy))
    assert (run.throughput_E <= run.optimal_E + 1e-9).all()
    assert (run.loaded_optimal_E <= run.optimal_E + 1e-9).all()
    assert (np.diff(run.time_s_E) >= 0).all()
    assert run.time_s_E[-1] == drawn.duration
    monkeypatch.setattr(fluid, "bound_throughput", lambda speed_P, load_S: 0.9 * speed_P.sum() / load_S.sum())
    low = simulate_swarm(drawn, [1.0] * 8, Rebalancing())
    assert not (low.throughput_E <= low.optimal_E + 1e-9).all()


def test_ours_beats_the_paper_on_unlike_speeds():
    drawn = generate_preemptions(0, peers=192, lifetime_s=128 * 3600.0, duration_s=4 * 3600.0, speeds=(1.0, 2.0, 4.0))
    ours = simulate_swarm(drawn, [1.0] * 32, Rebalancing()).share_of_optimal
    papers = [simulate_swarm(drawn, [1.0] * 32, Rebalancing(policy="queue", period=t)) for t in (60.0, 300.0)]
    assert ours >= 0.97
    assert ours > max(run.share_of_optimal for run in papers) + 0.05
    assert len(simulate_swarm(drawn, [1.0] * 32, Rebalancing()).moves) < len(papers[0].moves)


def test_ours_beats_the_paper_on_an_observed_zone():
    fleet = make_fleet(load_preemptions("bamboo_g4dn_us_east_1d"), 12, 0, speeds=(1.0, 2.0))
    ours, paper = (simulate_swarm(fleet, [1.0] * 4, Rebalancing(policy=name)) for name in ("throughput", "queue"))
    assert ours.share_of_optimal > paper.share_of_optimal


def test_expected_throughput_and_its_spread():
    runs = [
        simulate_swarm(generate_preemptions(seed, peers=24, lifetime_s=7200.0, duration_s=7200.0), [1.0] * 4, STILL)
        for seed in range(6)
    ]
    found = spread_over_seeds(runs)
    rates = [run.mean_throughput for run in runs]
    assert min(rates) <= found.p05 <= found.mean <= found.p95 <= max(rates)
    assert found.mean == pytest.approx(sum(rates) / 6)
    with pytest.raises(InvalidInput, match="at least one"):
        spread_over_seeds([])


def test_queues_grow_with_a_stage_s_use():
    view = SwarmView(
        peers=["a", "b", "c", "d"],
        stage_P=np.array([0, 0, 1, 2]),
        speed_P=np.array([1.0, 3.0, 2.0, 1.0]),
        serving_P=np.array([True, True, True, False]),
        load_S=np.ones(3),
    )
    queues = fluid_queues(view)
    assert queues[0] == queues[1] < queues[2]
    assert queues[2] == pytest.approx(1 / fluid.QUEUE_SLACK)
    assert queues[3] == 0.0


@pytest.mark.parametrize(
    ("change", "text"),
    [({"load_S": []}, "load_S"), ({"download_s": -1.0}, "download_s"), ({"notice_s": -1.0}, "notice_s")],
)
def test_impossible_settings_are_refused(change, text):
    with pytest.raises(InvalidInput, match=text):
        simulate_swarm(**{"trace": trace((0, 9, 1)), "load_S": [1.0], "settings": STILL} | change)
