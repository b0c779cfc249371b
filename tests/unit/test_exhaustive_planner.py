"""Exhaustive search lists everything once and refuses what is too much."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
from factories import small_cluster, tiny_workload

from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.symmetry import least_placements, list_partitions, list_placements, twins_of

NOBODY = np.full(6, -1)


def tables(seed, sites=(0, 0, 1, 1, 1, 2)):
    """Symmetric link costs that depend on the sites alone."""
    cost = np.random.default_rng(seed).random((3, 3))
    cost = cost + cost.T
    table = cost[np.ix_(sites, sites)].copy()
    np.fill_diagonal(table, 0.0)
    return table


def test_placements_without_twins_are_counted_by_formula():
    assert len(list(list_placements(NOBODY, 2, 3))) == factorial(6) // factorial(3)
    assert least_placements(NOBODY, 2, 2, ordered=True) == factorial(6) // (2 * 2)
    assert len(list(list_placements(NOBODY, 2, 2))) == factorial(6) // (2 * 2)
    assert len(list(list_partitions(NOBODY, 3, 2))) == factorial(6) // (2**3 * factorial(3))
    assert len(list(list_partitions(NOBODY, 2, 2))) == 15 * factorial(4) // (2**2 * 2)


def test_devices_of_a_site_are_twins():
    assert twins_of([tables(0)]).tolist() == [-1, 0, -1, 2, 3, -1]
    assert twins_of([tables(0)], [np.array([1, 2, 3, 4, 3, 5])]).tolist() == [-1, -1, -1, -1, 2, -1]


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2, 2)])
def test_twins_leave_no_placement_out(shape):
    """Every placement has the same pairs of sites as one that is listed."""
    sites = np.array([0, 0, 1, 1, 1, 2])
    twins = twins_of([tables(1)])
    stages, replicas = shape

    def pattern(placed):
        columns = sites[np.array(placed)].reshape(stages, replicas).T
        return tuple(sorted(map(tuple, columns.tolist())))

    def groups(placed):
        rows = np.sort(sites[np.array(placed)].reshape(stages, replicas), axis=1)
        return tuple(sorted(map(tuple, rows.tolist())))

    everything = list(permutations(range(6), stages * replicas))
    listed = list(list_placements(twins, *shape))
    assert {pattern(p) for p in everything} == {pattern(p) for p in listed}
    partitions = list(list_partitions(twins, *shape))
    assert least_placements(twins, *shape, ordered=True) <= len(listed)
    assert least_placements(twins, *shape, ordered=False) <= len(partitions)
    assert {groups(p) for p in everything} == {groups(p) for p in partitions}
    assert len(partitions) < len(list(list_partitions(NOBODY, *shape)))


@pytest.mark.parametrize("objective", ["step-time", "dtfm"])
def test_large_problems_are_refused_in_one_line(objective):
    cluster = small_cluster(16)
    links = tuple(k.replace(latency=0.001 * (i + 1)) for i, k in enumerate(cluster.site_links))
    task = Problem(
        cluster=cluster.replace(site_links=links),
        workload=tiny_workload(),
        objective=objective,
        constraints=Constraints(stages=4, replicas=4),
    )
    with pytest.raises(InvalidInput, match="more than 2000000 layouts") as refusal:
        make_planner("exhaustive").solve(task)
    assert "\n" not in str(refusal.value)


def test_twins_make_a_uniform_cluster_small():
    task = Problem(
        cluster=small_cluster(8), workload=tiny_workload(global_batch=8), constraints=Constraints(stages=4, replicas=2)
    )
    result = make_planner("exhaustive").solve(task)
    assert result.evaluations < 1000
