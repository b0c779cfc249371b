"""SWARM's assignment: ragged where devices are unlike, and executable."""

import numpy as np
import pytest

from hetplanner.cluster.model import Cluster, Device, Host, Site, SiteLink
from hetplanner.cost.check import check_plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.baselines.swarm import overlap_routes
from hetplanner.planners.layout import apportion
from hetplanner.planners.registry import make_planner
from hetplanner.simulator.simulation import simulate
from tests.support.plans.factories import tiny_workload


def problem(rates, memory=1e9, **constraints):
    """One device of each rate (FLOP/s) at one site."""
    cluster = Cluster(
        name="unlike",
        sites=(Site(name="here", latitude=0.0, longitude=0.0),),
        hosts=tuple(Host(id=f"h{i}", site="here") for i in range(len(rates))),
        devices=tuple(
            Device(
                id=f"d{i}", kind="any", host=f"h{i}", peak={"float32": rate}, memory=memory, memory_bandwidth=1e12,
                efficiency=1.0, reserve=0.0, price_usd_per_hour=1.0,
            )
            for i, rate in enumerate(rates)
        ),
        site_links=(SiteLink(from_site="here", to_site="here", latency=1e-4, bandwidth=1e9),),
    )  # fmt: skip
    return Problem(cluster=cluster, workload=tiny_workload(), constraints=Constraints(**constraints))


def test_replicas_follow_throughput_not_count():
    plan = make_planner("swarm").solve(problem([8e9] + [1e9] * 8, stages=2)).plan
    fast = next(s for s, stage in enumerate(plan.stages) if ("d0",) in stage.replicas)
    assert len(plan.stages[fast].replicas) < len(plan.stages[1 - fast].replicas)
    assert len(plan.ranks) == 9
    assert simulate(plan).end_s > 0
    check_plan(plan)


def test_equal_devices_that_do_not_divide_are_all_used():
    plan = make_planner("swarm").solve(problem([1e9] * 7, stages=3)).plan
    assert sorted(len(stage.replicas) for stage in plan.stages) == [2, 2, 3]
    assert len(plan.ranks) == 7
    load = [0] * 7
    for route in plan.routes:
        for s, replica in enumerate(route.replicas):
            load[plan.rank_at(s, replica)] += route.micro_batches
    assert min(load) >= 1
    assert sum(load) == 3 * plan.problem.workload.num_micro_batches


def test_routes_carry_exactly_the_shares():
    shares = [np.array([3, 5]), np.array([4, 4]), np.array([8]), np.array([1, 2, 5])]
    routes = overlap_routes(shares)
    for s, share in enumerate(shares):
        got = np.zeros(len(share), dtype=int)
        for route in routes:
            got[route.replicas[s]] += route.micro_batches
        assert got.tolist() == share.tolist()
    assert len(routes) <= 1 + sum(len(share) - 1 for share in shares)


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [(10, [1, 1], [5, 5]), (10, [3, 1], [8, 2]), (7, [1, 1, 1], [3, 2, 2]), (3, [100, 1, 1], [1, 1, 1])],
)
def test_apportionment_is_by_largest_remainder_and_leaves_nobody_out(total, weights, shares):
    assert apportion(total, np.array(weights, dtype=float)).tolist() == shares
