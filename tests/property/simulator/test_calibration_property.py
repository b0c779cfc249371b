"""Whatever the plan, a cluster fitted to its trace predicts the step, and no worse than what was assumed."""

import json
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hetplanner.calibration.model import calibration_from_json, calibration_to_data
from hetplanner.calibration.trace_fit import calibrate_trace
from hetplanner.cluster.model import Cluster
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.simulation import simulate
from tests.support.plans.random_plans import random_plan


def disturbed(cluster: Cluster, rng: random.Random) -> Cluster:
    """Other efficiencies by kind, other links, and messages that cost time."""
    efficiency = {"CPU generic": rng.uniform(0.3, 0.9), "T4": rng.uniform(0.2, 0.7)}
    return cluster.replace(
        devices=tuple(d.replace(efficiency=efficiency[d.kind]) for d in cluster.devices),
        site_links=tuple(
            k.replace(latency=k.latency * rng.uniform(0.6, 1.8), bandwidth=k.bandwidth * rng.uniform(0.5, 1.5))
            for k in cluster.site_links
        ),
        transfer={"message": rng.choice([0.0, 0.001, 0.005]), "overlap": rng.choice([1.0, 0.7])},
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
@example(280, False)
def test_the_fitted_cluster_predicts_the_step(seed, nics):
    plan = random_plan(seed, nics=nics).replace(reducer="sharded-ps")
    true = disturbed(plan.problem.cluster, random.Random(seed))
    run = plan.replace(problem=plan.problem.replace(cluster=true))
    found = calibrate_trace(simulate(run, steps=4, schedule=make_schedule(plan)), plan)
    assert found.mean_error("after") <= found.mean_error("before") + 0.02
    # A NIC that many share hides how fast a single link is; so does a link assumed slower that crosses no less.
    assert nics or found.mean_error("after") <= max(0.1, 0.5 * found.mean_error("before"))
    assert calibration_from_json(json.dumps(calibration_to_data(found))) == found
