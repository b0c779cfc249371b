"""Exhaustive search lists everything once and refuses what is too much."""

from itertools import permutations
from math import factorial
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.check import check_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.dtfm.factory import dtfm_species
from hetplanner.planners.exhaustive.enumeration import CHUNK, count_placements
from hetplanner.planners.exhaustive.symmetry import Listing, least_placements, twins_of
from hetplanner.planners.interface import Budget, Progress
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
NOBODY = np.full(6, -1)


def listed(twins, stages, replicas, *, is_named, pins=None, part=7):
    """All that a listing lists, part by part."""
    listing = Listing(twins, (stages, replicas), is_named=is_named, pin_D=pins)
    found = []
    while len(some := listing.more(part)):
        found += map(tuple, some.tolist())
    return found


def list_placements(twins, stages, replicas, **options):
    return listed(twins, stages, replicas, is_named=True, **options)


def list_partitions(twins, stages, replicas):
    return listed(twins, stages, replicas, is_named=False)


def tables(seed, sites=(0, 0, 1, 1, 1, 2)):
    """Symmetric link costs that depend on the sites alone."""
    cost = np.random.default_rng(seed).random((3, 3))
    cost = cost + cost.T
    table = cost[np.ix_(sites, sites)].copy()
    np.fill_diagonal(table, 0.0)
    return table


def test_placements_without_twins_are_counted_by_formula():
    assert len(list(list_placements(NOBODY, 2, 3))) == factorial(6) // factorial(3)
    assert least_placements(NOBODY, 2, 2, is_named=True) == factorial(6) // (2 * 2)
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
    assert least_placements(twins, *shape, is_named=True) <= len(listed)
    assert least_placements(twins, *shape, is_named=False) <= len(partitions)
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


@pytest.mark.parametrize("cluster", ["dtfm_2_spot", "dtfm_3_universities", "dtfm_4_regional"])
def test_a_listing_of_many_twins_goes_on_without_dead_ends(cluster):
    """Prefixes that nothing completes are left at once: else the first placements would take for ever."""
    task = Problem(
        cluster=load_cluster(SAMPLES / f"{cluster}.json"),
        workload=preset("gpt3-xl"),
        objective="dtfm",
        constraints=Constraints(stages=8, replicas=8),
    )
    twins = twins_of(dtfm_species(task, (8, 8), 0, "structured").pair_costs)
    listing = Listing(twins, (8, 8), is_named=False)
    for _ in range(3):
        found = listing.more(1000)
        assert len(np.unique(found, axis=0)) == 1000
        assert (np.sort(found, axis=1) == np.arange(64)).all()


def test_pinned_devices_are_listed_in_their_stage_alone():
    pins = np.array([1, -1, -1, 0, -1, -1])
    free = list_placements(NOBODY, 3, 2)
    kept = [p for p in free if p.index(0) // 2 == 1 and p.index(3) // 2 == 0]
    assert sorted(kept) == sorted(list_placements(NOBODY, 3, 2, pins=pins))


def test_counting_ends_with_the_budget():
    now = [0.0]
    progress = Progress(Budget(seconds=10), None, None, clock=lambda: now[0])
    listing = Listing(np.full(16, -1), (4, 4), is_named=False)

    def more(most):
        now[0] += 3.0
        return Listing.more(listing, most)

    listing.more = more
    assert count_placements(listing, 10**9, progress) is None
    assert now[0] == 12.0
    assert count_placements(Listing(NOBODY, (3, 2), is_named=False), 100, progress) == 15
    assert count_placements(Listing(NOBODY, (3, 2), is_named=False), 10, progress) == 11


def test_what_is_cut_short_is_the_best_so_far_and_fits():
    """Layouts too many to hold at once are tried part by part: cuts and shares too."""
    task = Problem(
        cluster=small_cluster(8),
        workload=tiny_workload(global_batch=256),
        constraints=Constraints(stages=2, replicas=4),
    )
    asked = []
    result = make_planner("exhaustive", {"most": 100_000_000}).solve(
        task, budget="600 s", should_stop=lambda: bool(asked.append(1)) or len(asked) > 3
    )
    assert result.cancelled
    assert 0 < result.evaluations <= 4 * CHUNK
    check_plan(result.plan)
