import numpy as np
import pytest

from hetplanner.errors import InvalidInput
from hetplanner.simulator.jitter import COMPUTE, NETWORK, Jitter
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import chain_plan

PLAN = chain_plan((5, 3), (3, 6))


def test_factors_have_mean_one_and_the_spread_asked_for():
    factors = Jitter(compute=0.2).factors(0, 0, 0, COMPUTE, 100_000)
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert np.log(factors).std() == pytest.approx(0.2, rel=0.02)


def test_a_longer_series_begins_with_the_shorter_one():
    jitter = Jitter(network=0.2)
    assert (jitter.factors(1, 2, 3, NETWORK, 50)[:7] == jitter.factors(1, 2, 3, NETWORK, 7)).all()


def test_the_same_seed_gives_the_same_trace_and_another_does_not():
    one, again, other = (simulate(PLAN, jitter=Jitter(0.1, 0.2), seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_no_jitter_is_the_plain_simulation_whatever_the_seed():
    assert simulate(PLAN, jitter=Jitter(), seed=5) == simulate(PLAN)


def test_the_luck_of_an_action_does_not_depend_on_the_network():
    """A forward takes as long when messages vary as when they do not, wherever it moves to."""
    still = simulate(PLAN, jitter=Jitter(compute=0.3), seed=4)
    stormy = simulate(PLAN, jitter=Jitter(compute=0.3, network=1.0), seed=4)

    def lengths(trace):
        return {
            (s.rank, s.kind, s.micro_batch): s.end_s - s.start_s
            for s in trace.spans
            if s.kind in ("forward", "backward", "step")
        }

    assert lengths(still) == pytest.approx(lengths(stormy))
    assert summarise_trace(still).step_s != summarise_trace(stormy).step_s


@pytest.mark.parametrize("value", [-0.1, 4.0, float("nan")])
def test_absurd_spreads_are_refused(value):
    with pytest.raises(InvalidInput, match=r"jitter\.network: must be between 0 and 3"):
        Jitter(network=value)
