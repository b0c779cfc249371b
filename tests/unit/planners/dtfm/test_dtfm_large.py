"""Objective dtfm on a thousand devices and more: repaired matchings are exact, the multilevel search is good."""

import numpy as np
import pytest

from hetplanner.cluster.generators import r10
from hetplanner.cost.check import check_plan
from hetplanner.cost.dtfm import score_dtfm
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.dtfm import kernels as dtfm_kernels
from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels
from hetplanner.planners.dtfm.large import group_size
from hetplanner.planners.dtfm.species import DtfmSpecies
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset


def costs(num_devices, seed):
    """Random symmetric costs, some of them equal."""
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(2):
        table = np.triu(rng.integers(1, 40, (num_devices, num_devices)) * 0.25, 1)
        tables.append(table + table.T)
    return tables


@pytest.mark.parametrize(
    ("stages", "replicas", "spare"), [(2, 3, 0), (5, 4, 3), (1, 6, 4), (6, 1, 2), (3, 17, 0), (4, 9, 1)]
)
def test_repaired_matchings_give_the_cost_of_matching_anew(stages, replicas, spare):
    num_devices = stages * replicas + spare
    shared, piped = costs(num_devices, replicas)
    for seed in range(3):
        members = np.random.default_rng(seed).permutation(num_devices)
        best, state = members.copy(), np.array([seed + 77], dtype=np.uint64)
        value = dtfm_large_kernels.anneal_large(
            shared, piped, members, stages, replicas, 2000, 0.1, 1e-3, 0.1, state, best
        )
        assert sorted(best) == sorted(members) == list(range(num_devices))
        scored = np.empty(2)
        dtfm_large_kernels.score_in_order(shared, piped, np.array([best, members]), scored, stages, replicas)
        assert value == pytest.approx(scored[0], rel=1e-12)
        assert value <= scored[1] + 1e-9


def test_a_chain_is_the_same_for_the_same_state():
    shared, piped = costs(40, 5)
    found = []
    for _ in range(2):
        best, state = np.arange(40), np.array([9], dtype=np.uint64)
        dtfm_large_kernels.anneal_large(shared, piped, np.arange(40), 4, 10, 500, 0.1, 1e-3, 0.1, state, best)
        found.append(best)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("devices", "replicas", "size"), [(4096, 128, 16), (1024, 32, 4), (1100, 150, 5), (1050, 149, 4), (2000, 2, 2)]
)
def test_groups_divide_the_replicas_where_they_can(devices, replicas, size):
    assert group_size(devices, replicas, 256) == size


def problem(num_devices, stages, replicas, shuffle=None):
    cluster = r10(3, num_devices=num_devices)
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(num_devices)
        cluster = cluster.replace(devices=tuple(cluster.devices[i] for i in order))
    return Problem(
        cluster=cluster,
        workload=preset("gpt2-xl", global_batch=2 * replicas, micro_batch=1),
        objective="dtfm",
        constraints=Constraints(stages=stages, replicas=replicas),
    )


def placement_of(plan):
    index = plan.problem.cluster.device_index
    return np.array([[index(replica[0]) for replica in stage.replicas] for stage in plan.stages])


@pytest.mark.parametrize(("num_devices", "stages", "replicas"), [(1024, 32, 32), (1050, 7, 149)])
def test_a_large_plan_is_valid_and_far_below_random_ones(num_devices, stages, replicas):
    task, evaluations = problem(num_devices, stages, replicas), 400
    result = make_planner("evolution").solve(task, budget=f"{evaluations} evaluations")
    check_plan(result.plan)
    cluster = task.cluster
    tables = cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD
    assert result.value == score_dtfm(placement_of(result.plan), *tables).total_s
    assert result.lower_bound <= result.value
    assert result.evaluations <= evaluations
    species = DtfmSpecies(*tables, cluster.device_ids, (stages, replicas), 0, "random")
    layouts = np.array([np.random.default_rng(s).permutation(num_devices) for s in range(evaluations)])
    random = np.empty(evaluations)
    dtfm_large_kernels.score_in_order(*species.pair_costs, layouts, random, stages, replicas)
    assert result.value < 0.85 * random.min()


def test_a_large_plan_depends_on_seed_and_evaluations_alone():
    task = problem(1024, 8, 128)
    plans = [make_planner("evolution").solve(task, seed=5, budget="9000 evaluations").plan for _ in range(2)]
    assert plans[0].stages == plans[1].stages


def test_the_order_of_a_large_file_matters_little():
    values = [
        make_planner("evolution").solve(problem(1024, 16, 64, shuffle), budget="30000 evaluations").value
        for shuffle in (None, 1, 2)
    ]
    assert max(values) <= 1.05 * min(values)


def test_no_budget_still_gives_a_large_plan_and_random_starts_work():
    task = problem(1024, 8, 128)
    at_once = make_planner("evolution").solve(task, budget="0 s")
    check_plan(at_once.plan)
    scattered = make_planner("evolution", {"starts": "random"}).solve(task, budget="3000 evaluations")
    check_plan(scattered.plan)
    assert at_once.value < scattered.value


def test_both_annealing_kernels_agree_on_the_cost_they_start_from():
    shared, piped = costs(24, 1)
    members, order = np.random.default_rng(4).permutation(24), np.arange(4)
    best, best_order, state = members.copy(), order.copy(), np.array([3], dtype=np.uint64)
    one = dtfm_kernels.anneal(shared, piped, members.copy(), order, 6, 0, 0.1, 0.01, 0.1, state, best, best_order)
    two = dtfm_large_kernels.anneal_large(shared, piped, members.copy(), 4, 6, 0, 0.1, 0.01, 0.1, state, best)
    assert one == pytest.approx(two, rel=1e-12)
