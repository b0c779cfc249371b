"""The published DT-FM objective against its published numbers, brute force, and the compiled kernels."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.errors import InvalidInput
from hetplanner.planners.dtfm.species import DtfmSpecies

SAMPLES = Path(__file__).parents[3] / "sample_clusters"


def published(name):
    cluster = load_cluster(SAMPLES / f"{name}.json")
    return cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD


def random_network(rng, num_devices):
    def symmetric(low, high):
        upper = np.triu(rng.uniform(low, high, (num_devices, num_devices)), 1)
        return upper + upper.T

    return symmetric(1, 200), symmetric(0.3, 5) + np.eye(num_devices)


def brute_force(delay, bandwidth, stages, replicas):
    """Cheapest over all placements; matchings are all column orders, so nothing is shared with the kernels."""
    best = np.inf
    for order in itertools.permutations(range(stages * replicas)):
        best = min(best, score_dtfm(np.reshape(order, (stages, replicas)), delay, bandwidth).total_s)
    return best


@pytest.mark.parametrize(
    ("name", "data_parallel", "pipeline"),
    [
        ("dtfm_3_universities", 5.517, 10.570),
        ("dtfm_4_regional", 8.342, 26.460),
        ("dtfm_5_worldwide", 22.758, 26.460),
    ],
)
def test_published_reference_costs_come_out_to_three_digits(name, data_parallel, pipeline):
    # Eight stages; a region's devices are cut into pipelines of eight.
    placement = np.arange(64).reshape(8, 8).T
    cost = score_dtfm(placement, *published(name))
    assert cost.data_parallel_s == pytest.approx(data_parallel, abs=5e-4)
    assert cost.pipeline_s == pytest.approx(pipeline, abs=5e-4)
    assert cost.total_s == cost.data_parallel_s + cost.pipeline_s


def test_two_by_two_by_hand():
    delay = np.array([[0, 10, 20, 30], [10, 0, 40, 50], [20, 40, 0, 60], [30, 50, 60, 0]], dtype=float)
    cost = score_dtfm([[0, 1], [2, 3]], delay, np.ones((4, 4)))
    assert cost.data_parallel_s == pytest.approx(2 * (0.060 + 0.65 / 2 * 8))
    assert cost.pipeline_s == pytest.approx(2 * (0.050 + 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30 * 8))


def test_directions_of_a_link_are_averaged():
    delay, bandwidth = random_network(np.random.default_rng(0), 4)
    one_way = delay.copy()
    one_way[np.triu_indices(4)] *= 3
    mean = (one_way + one_way.T) / 2
    placement = [[0, 1], [2, 3]]
    assert score_dtfm(placement, one_way, bandwidth).total_s == pytest.approx(
        score_dtfm(placement, mean, bandwidth).total_s
    )


@pytest.mark.parametrize("placement", [[[0, 0], [1, 2]], [[0, 1], [2, 9]], [0, 1, 2, 3], [[0, -1], [2, 3]]])
def test_a_placement_that_is_none_is_refused(placement):
    delay, bandwidth = random_network(np.random.default_rng(0), 4)
    with pytest.raises(InvalidInput):
        score_dtfm(placement, delay, bandwidth)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (6, 1), (1, 6)])
def test_the_search_finds_what_brute_force_finds_and_the_bound_is_below(seed, shape):
    delay, bandwidth = random_network(np.random.default_rng(seed), 6)
    optimum = brute_force(delay, bandwidth, *shape)
    species = DtfmSpecies(delay, bandwidth, tuple("abcdef"), shape, seed, "random")
    found = min((species.anneal(species.random(), 5_000, 0.05) for _ in range(4)), key=lambda c: c.value)
    emitted = score_dtfm(species.placement_SR(found), delay, bandwidth).total_s
    assert emitted == pytest.approx(found.value, rel=1e-12)
    assert emitted == pytest.approx(optimum, rel=1e-12)
    assert bound_dtfm(*pair_costs(delay, bandwidth, shape[1]), *shape) <= optimum * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_kernel_matching_is_the_bottleneck_assignment(seed):
    from hetplanner.planners.dtfm import kernels as dtfm_kernels

    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 7))
    cost = rng.integers(1, 9, (2 * size, 2 * size)).astype(float)  # small integers: many ties
    best = min(max(cost[i, size + p[i]] for i in range(size)) for p in itertools.permutations(range(size)))
    work = (np.empty((size, size)), np.empty(size, np.int64), np.empty(size, np.int64), np.empty((3, size)))
    value, _ = dtfm_kernels.match_groups(cost, np.arange(2 * size), 0, 1, size, np.inf, *work)
    assert value == best
    columns = work[1]
    assert sorted(columns) == list(range(size))
    assert max(cost[i, size + columns[i]] for i in range(size)) == best


def test_held_karp_finds_the_shortest_open_path():
    from hetplanner.planners.dtfm import kernels as dtfm_kernels

    rng = np.random.default_rng(3)
    edge = rng.uniform(1, 2, (6, 6))
    edge = edge + edge.T
    best = min(sum(edge[a, b] for a, b in itertools.pairwise(p)) for p in itertools.permutations(range(6)))
    order = np.empty(6, np.int64)
    length = dtfm_kernels.shortest_path(edge, order, np.empty((64, 6)), np.empty((64, 6), np.int64))
    assert length == pytest.approx(best)
    assert sum(edge[a, b] for a, b in itertools.pairwise(order)) == pytest.approx(best)
    longer = np.arange(6)
    assert dtfm_kernels.improve_path(edge, longer) >= length * (1 - 1e-12)


def test_annealing_reports_the_cost_of_what_it_keeps():
    from hetplanner.planners.dtfm import kernels as dtfm_kernels

    delay, bandwidth = random_network(np.random.default_rng(1), 14)  # two spare devices
    shared, piped = pair_costs(delay, bandwidth, 3)
    members, order = np.arange(14), np.arange(4)
    best, best_order = members.copy(), order.copy()
    state = np.array([7], dtype=np.uint64)
    value = dtfm_kernels.anneal(shared, piped, members, order, 3, 20_000, 0.05, 1e-4, 0.1, state, best, best_order)
    placed = np.empty((4, 3), dtype=np.int64)
    dtfm_kernels.align_columns(piped, best, best_order, 3, placed)
    assert sorted(best) == list(range(14))
    assert score_dtfm(placed, delay, bandwidth).total_s == pytest.approx(value, rel=1e-10)


def test_crossover_keeps_every_device_once():
    from hetplanner.planners.dtfm import kernels as dtfm_kernels

    rng = np.random.default_rng(5)
    state = np.array([11], dtype=np.uint64)
    for _ in range(50):
        child = np.full(14, -1)
        dtfm_kernels.cross_over(
            rng.permutation(14), rng.permutation(4), rng.permutation(14), rng.permutation(4), 3, 5, state, child
        )
        assert sorted(child) == list(range(14))
