"""The search's kernels against the closed form, where they once parted."""

import pytest

from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.plan.model import Provenance
from hetplanner.plan.problem import Problem
from hetplanner.planners.layout import dense_plan
from hetplanner.planners.step_time.species import StepSpecies
from tests.support.plans.factories import TUNINGS, small_cluster, tiny_workload, tuned


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("seed", range(4))
def test_tied_weights_have_the_nics_to_themselves(seed, tuning):
    """Two hosts with slow NICs, each with two devices: stage gradients and the tied embedding cross them in turn."""
    cluster = small_cluster(4, bandwidth="10 Gbit/s", latency="0.1 ms", nic="20 Mbit/s")
    on_two_hosts = tuple(d.replace(host=f"host-{i % 2}") for i, d in enumerate(cluster.devices))
    problem = Problem(cluster=cluster.replace(devices=on_two_hosts), workload=tuned(tiny_workload(), tuning))
    model = CostModel.of(problem)
    species = StepSpecies(model, (2, 2), seed, "random", recompute=False)
    candidate = species.random()
    plan = dense_plan(species.layout(candidate), problem, Provenance())
    assert candidate.value == pytest.approx(estimate_plan(plan, model=model).step_s, rel=1e-9)
