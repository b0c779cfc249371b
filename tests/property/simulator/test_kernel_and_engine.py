"""The compiled kernels time what the event engine performs, to the last digits, and order tasks as it does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cost.durations import durations_of
from hetplanner.errors import InvalidInput
from hetplanner.plan.action import Kind
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.jitter import Jitter
from hetplanner.simulator.packing import pack_plan
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.simulator.timing import simulate_step_s, simulate_times
from tests.support.plans.random_plans import random_plan

plans = st.builds(random_plan, st.integers(0, 10_000), nics=st.booleans())
jitters = st.sampled_from([Jitter(), Jitter(compute=0.1), Jitter(network=0.3), Jitter(0.2, 0.2)])


@settings(max_examples=60, deadline=None)
@given(plans, jitters, st.integers(1, 3), st.integers(0, 3))
def test_the_kernel_times_what_the_engine_performs(plan, jitter, steps, seed):
    trace = simulate(plan, steps=steps, jitter=jitter, seed=seed)
    times = simulate_times(plan, steps=steps, jitter=jitter, seed=seed)
    assert times.step_s == pytest.approx(summarise_trace(trace).step_s, rel=1e-9)
    assert times.busy_s_N == pytest.approx(trace.of_step(steps - 1).busy_s(), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(plans, jitters, st.floats(0, 1))
def test_messages_may_cost_the_ranks_time(plan, jitter, overlap):
    durations = replace(durations_of(plan), message_s=1e-3, overlap=overlap)
    step_s = summarise_trace(simulate(plan, durations, jitter=jitter)).step_s
    assert simulate_times(plan, durations, jitter=jitter).step_s == pytest.approx(step_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(plans)
def test_compiled_list_scheduling_gives_the_plans_own_order(plan):
    schedule, order = make_schedule(plan), pack_plan(plan).order
    for rank in range(len(plan.ranks)):
        first, end = order.first_task_N[rank : rank + 2]
        packed = list(zip(order.stage_T[first:end].tolist(), order.micro_batch_T[first:end].tolist(), strict=True))
        actions = [a for a in schedule.of_rank(rank) if a.kind in (Kind.FORWARD, Kind.BACKWARD)]
        stages = [a.stage if a.kind == Kind.FORWARD else -1 - a.stage for a in actions]
        assert packed == list(zip(stages, [a.micro_batch for a in actions], strict=True))


def test_shared_cores_are_left_to_the_engine():
    plan = random_plan(1)
    with pytest.raises(InvalidInput, match="use simulate"):
        simulate_times(plan, replace(durations_of(plan), cores_N=np.ones(len(plan.ranks))))


def test_judging_a_plan_is_simulating_one_step():
    plan = random_plan(1)
    assert simulate_step_s(plan) == pytest.approx(summarise_trace(simulate(plan)).step_s, rel=1e-9)
