"""Other orders of a plan's actions: faster for measured seconds, and everywhere the same."""

from dataclasses import replace

import numpy as np
import pytest

import hetplanner as hp
from hetplanner.cost.durations import durations_of
from hetplanner.errors import InvalidInput
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.planners.variants.orders import reorder
from hetplanner.schedule.order import make_schedule, order_durations
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.simulator.timing import simulate_step_s, simulate_times
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Four stages that hold up to eight micro-batches."""
    workload = preset("tiny-gpt", global_batch=32, micro_batch=2)
    cluster = small_cluster(4, bandwidth="200 Mbit/s", latency="5 ms")
    return chain_plan([16], workload.boundaries[:3], cluster=cluster, workload=workload, in_flight=[8] * 4)


def times_as_long(plan: Plan, factor: float) -> Durations:
    found = durations_of(plan)
    return replace(found, forward_s_C=found.forward_s_C * factor, backward_s_C=found.backward_s_C * factor)


def test_devices_far_slower_than_assumed_get_another_order(plan: Plan) -> None:
    durations = times_as_long(plan, 10.0)
    found = reorder(plan, durations)
    assert found.order_scale is not None
    assert found.replace(order_scale=None) == plan, "nothing else changes"
    before, after = (summarise_plan(one, durations).step_s for one in (plan, found))
    assert after < 0.95 * before
    assert reorder(found, durations) == found
    assert simulate_times(found, durations).step_s == pytest.approx(after), "the kernel has the same order"


def test_an_order_that_fits_stays(plan: Plan) -> None:
    assert reorder(plan) == plan
    one = chain_plan([4], [])
    assert reorder(one, times_as_long(one, 10.0)) == one


@pytest.mark.parametrize("scale", [0.125, 8.0])
def test_simulator_and_kernel_follow_the_plan_s_order(plan: Plan, scale: float) -> None:
    scaled = plan.replace(order_scale=scale)
    assert make_schedule(scaled).actions == make_schedule(plan, times_as_long(plan, scale)).actions
    assert order_durations(scaled).forward_s_C == pytest.approx(scale * durations_of(plan).forward_s_C)
    assert np.array_equal(durations_of(scaled).forward_s_C, durations_of(plan).forward_s_C), "only the order changes"
    assert simulate_step_s(scaled) == pytest.approx(summarise_plan(scaled).step_s)


def test_a_plan_file_keeps_the_order(plan: Plan, tmp_path) -> None:
    path = tmp_path / "plan.json"
    hp.save_plan(plan.replace(order_scale=4.0), path)
    assert hp.load_plan(path).order_scale == 4.0
    hp.save_plan(plan, path)
    assert "order_scale" not in path.read_text(), "older versions read it"
    for wrong in (0.0, -1.0, 1e6):
        with pytest.raises(InvalidInput, match="order_scale"):
            plan.replace(order_scale=wrong)
