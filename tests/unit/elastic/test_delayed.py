"""The best that can be held without knowing the future, on traces small enough to reckon by hand."""

import numpy as np
import pytest

from hetplanner.elastic.forecast.delayed import delayed_throughput
from hetplanner.elastic.forecast.fluid import simulate_swarm
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions
from hetplanner.elastic.forecast.preemptions import Life, PreemptionTrace
from hetplanner.plan.elastic.rebalancing import Rebalancing

ONE, TWO = np.ones(1), np.ones(2)


def trace(*lives):
    return PreemptionTrace(
        name="t", duration=1000.0, lives=tuple(Life(peer=f"p{i}", start=a, end=b) for i, (a, b) in enumerate(lives))
    )


def test_who_joins_counts_after_a_download_and_who_dies_at_once():
    assert delayed_throughput(trace((0, 1000)), ONE, 100.0) == pytest.approx(1.0)
    assert delayed_throughput(trace((0, 1000), (300, 1000)), ONE, 100.0) == pytest.approx(1.6)
    assert delayed_throughput(trace((0, 1000), (0, 300)), ONE, 100.0) == pytest.approx(1.3)


def test_a_stage_that_loses_its_peer_is_served_again_after_a_download():
    dies = trace((0, 1000), (0, 300), (0, 1000))
    assert delayed_throughput(dies, TWO, 100.0) in (pytest.approx(0.9), pytest.approx(1.0))
    assert delayed_throughput(trace((0, 1000), (0, 300)), TWO, 100.0) == pytest.approx(0.3)


def test_without_a_download_it_is_the_free_optimum_of_equal_peers():
    run = simulate_swarm(trace((0, 1000), (0, 300), (0, 1000)), [1.0, 1.0], Rebalancing(), download_s=0.0)
    free = float(np.diff(run.time_s_E) @ run.optimal_E[:-1]) / 1000.0
    assert delayed_throughput(trace((0, 1000), (0, 300), (0, 1000)), TWO, 0.0) == pytest.approx(free)


@pytest.mark.parametrize("seed", range(4))
def test_our_rebalancing_holds_nearly_all_of_it(seed):
    drawn = generate_preemptions(seed, peers=48, lifetime_s=6 * 3600.0, duration_s=6 * 3600.0, speeds=(1.0, 2.0, 4.0))
    run = simulate_swarm(drawn, [1.0] * 8, Rebalancing(), download_s=120.0)
    assert run.mean_throughput > 0.95 * delayed_throughput(drawn, np.ones(8), 120.0)
    assert run.share_of_optimal < run.mean_throughput / delayed_throughput(drawn, np.ones(8), 120.0)
