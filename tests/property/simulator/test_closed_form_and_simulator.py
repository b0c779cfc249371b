"""The closed form drives the search, the simulator judges: they must agree."""

import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cost.estimate import estimate_plan
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import TUNINGS, chain_plan, small_cluster, tiny_workload, tuned


@st.composite
def plans(draw, nic=None):
    stages, replicas = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    cuts = draw(st.lists(st.integers(1, 19), min_size=stages - 1, max_size=stages - 1, unique=True).map(sorted))
    shares = draw(st.lists(st.integers(1, 8), min_size=replicas, max_size=replicas))
    extra = draw(st.integers(0, 3))
    schedule = draw(st.sampled_from(["1f1b", "gpipe"]))
    depth = [sum(shares)] * stages if schedule == "gpipe" else [stages - s + extra for s in range(stages)]
    cluster = small_cluster(
        stages * replicas,
        bandwidth=draw(st.sampled_from(["20 Mbit/s", "200 Mbit/s", "1 Gbit/s"])),
        latency=draw(st.sampled_from(["0 s", "1 ms", "20 ms", "80 ms"])),
        nic=nic,
    )
    return chain_plan(
        shares,
        cuts,
        in_flight=depth,
        schedule=schedule,
        cluster=cluster,
        workload=tuned(tiny_workload(layers=8, global_batch=2 * sum(shares)), draw(st.sampled_from(TUNINGS))),
    )


def ratio(plan):
    return estimate_plan(plan).step_s / summarise_trace(simulate(plan)).step_s


@settings(max_examples=150, deadline=None)
@given(plans())
def test_closed_form_is_near_the_simulation(plan):
    assert 0.6 <= ratio(plan) <= 1.3


@settings(max_examples=100, deadline=None)
@given(plans(nic="100 Mbit/s"))
def test_shared_nics_too(plan):
    assert 0.6 <= ratio(plan) <= 1.3


def test_most_plans_agree_closely():
    rng = random.Random(0)
    ratios = []
    for _ in range(80):
        stages, shares = rng.randint(1, 4), [rng.randint(1, 8) for _ in range(rng.randint(1, 3))]
        cluster = small_cluster(
            stages * len(shares),
            bandwidth=rng.choice(["20 Mbit/s", "200 Mbit/s", "1 Gbit/s"]),
            latency=rng.choice(["1 ms", "20 ms", "80 ms"]),
        )
        cuts = sorted(rng.sample(range(1, 20), stages - 1))
        workload = tiny_workload(layers=8, global_batch=2 * sum(shares))
        ratios.append(ratio(chain_plan(shares, cuts, cluster=cluster, workload=workload)))
    assert 0.95 <= statistics.median(ratios) <= 1.05
    assert statistics.quantiles(ratios, n=10)[0] >= 0.75
