"""The baselines do what their names say."""

from functools import partial

import numpy as np
import pytest

from hetplanner.cost.tables import CostTables
from hetplanner.planners.registry import make_planner
from tests.support.plans.published import published_problem

BASELINES = ("rank-order", "pipeline-per-site", "opfence", "swarm", "random")
problem = partial(published_problem, objective="step-time")


def sites_of_pipelines(plan):
    cluster = plan.problem.cluster
    return [
        [cluster.site_of(plan.stages[s].replicas[r][0]).name for s, r in enumerate(route.replicas)]
        for route in plan.routes
    ]


def test_one_pipeline_per_site():
    plan = make_planner("pipeline-per-site").solve(problem("dtfm_5_worldwide", 8, 8, shuffle=1)).plan
    pipelines = sites_of_pipelines(plan)
    assert all(len(set(pipeline)) == 1 for pipeline in pipelines)
    assert len({pipeline[0] for pipeline in pipelines}) == 8


def test_sites_that_are_no_multiple_of_the_pipeline_share_the_rest():
    """Ten sites of four devices and six stages: no site holds a pipeline, three stages: every site holds one."""
    whole = sites_of_pipelines(make_planner("pipeline-per-site").solve(problem("aws_10_regions", 3, 12)).plan)
    assert sum(len(set(pipeline)) == 1 for pipeline in whole) == 10
    mixed = sites_of_pipelines(make_planner("pipeline-per-site").solve(problem("aws_10_regions", 6, 6)).plan)
    assert all(len(set(pipeline)) > 1 for pipeline in mixed)


def test_the_published_baseline_is_found_in_any_file_order():
    task = problem("dtfm_5_worldwide", 8, 8, shuffle=2, objective="dtfm")
    assert make_planner("pipeline-per-site").solve(task).value == pytest.approx(49.21838, abs=1e-5)
    assert make_planner("opfence").solve(task).value == pytest.approx(49.21838, abs=1e-5)
    assert make_planner("rank-order").solve(task).value == pytest.approx(49.21838, abs=1e-5)


def test_equal_layers_and_equal_compute_differ_by_the_head():
    """With the head's FLOPs in the last stage, equal layers are not equal work."""
    task = problem("dtfm_1_datacenter", 8, 8)
    flops = CostTables(task).flops_O

    def spread(cut):
        plan = make_planner("rank-order", {"cut": cut}).solve(task).plan
        parts = np.diff(flops[[0, *(stage.end_op for stage in plan.stages)]])
        return parts.max() / parts.mean(), plan

    layers, even = spread("layers")
    compute, balanced = spread("compute")
    assert compute < layers
    assert even.ranks == balanced.ranks
    assert balanced.estimate.step_s < even.estimate.step_s


def test_evolution_is_never_behind_the_baselines_where_devices_are_unlike():
    """Ten cities of V100s, every third device swapped for another kind."""
    kinds = ["V100-16", "A100-40", "T4"]
    base = problem("aws_10_regions", 4, 10)
    devices = tuple(d.replace(kind=kinds[i % 3]) for i, d in enumerate(base.cluster.devices))
    task = base.replace(cluster=base.cluster.replace(devices=devices))
    best = make_planner("evolution").solve(task, budget="100000 evaluations").value
    others = {name: make_planner(name).solve(task).value for name in BASELINES}
    assert best <= min(others.values()) * (1 + 1e-9)
    # OP-Fence knows the network and the devices' rates, the two others neither's.
    assert others["opfence"] < min(others["rank-order"], others["pipeline-per-site"])
