"""The slower bound of DT-FM's objective: never above the optimum, rising, and well above the cheap bound."""

import itertools

import numpy as np
import pytest

from hetplanner.cluster.generators import jit
from hetplanner.cost.bounds import placement_bound
from hetplanner.cost.bounds.hop_floors import bound_hops
from hetplanner.cost.bounds.placement_bound import improve_bound
from hetplanner.cost.dtfm import bound_dtfm, pair_costs


def groupings(devices, replicas, stages):
    """All sets of so many disjoint groups."""
    if stages == 0:
        yield ()
        return
    for first in itertools.combinations(devices, replicas):
        later = [d for d in devices if d > first[0] and d not in first]
        for rest in groupings(later, replicas, stages - 1):
            yield (first, *rest)


def optimum(shared_DD, piped_DD, stages, replicas):
    """The least cost, and the least sums of the hops of any path, by plain enumeration."""
    orders = list(itertools.permutations(range(replicas)))
    groups = list(itertools.combinations(range(len(shared_DD)), replicas))
    row = {g: shared_DD[np.ix_(g, g)].sum(axis=1).max() for g in groups}
    hop = {}
    for a, b in itertools.combinations(groups, 2):
        if not set(a) & set(b):
            hop[a, b] = hop[b, a] = min(
                max(piped_DD[x, b[p]] for x, p in zip(a, order, strict=True)) for order in orders
            )
    best, hops = np.inf, np.full(stages - 1, np.inf)
    for chosen in groupings(range(len(shared_DD)), replicas, stages):
        paths = [[hop[pair] for pair in itertools.pairwise(path)] for path in itertools.permutations(chosen)]
        best = min(best, max(row[g] for g in chosen) + min(map(sum, paths)))
        for path in paths:
            hops = np.minimum(hops, sorted(path))
    return best, hops


def network(kind, num_devices, seed, replicas):
    """Costs of pairs on a network of one kind."""
    rng = np.random.default_rng(seed)
    delay, bandwidth = rng.uniform(1, 100, (num_devices, num_devices)), rng.uniform(0.3, 5, (num_devices, num_devices))
    if kind == "regions":
        region = rng.integers(0, 3, num_devices)
        near = region[:, None] == region[None, :]
        factor = np.exp(rng.normal(0, 0.3, (num_devices, num_devices)))
        delay, bandwidth = np.where(near, 5.0, 120.0) * factor, np.where(near, 2.0, 0.7) * factor.T
    if kind == "equal":
        region = rng.integers(0, 2, num_devices)
        near = region[:, None] == region[None, :]
        delay, bandwidth = np.where(near, 5.0, 100.0), np.where(near, 2.0, 0.5)
    return pair_costs(delay, bandwidth, replicas)


@pytest.mark.parametrize("kind", ["random", "regions", "equal"])
@pytest.mark.parametrize(("num_devices", "stages", "replicas"), [(6, 3, 2), (7, 3, 2), (8, 4, 2), (9, 3, 3), (8, 2, 4)])
def test_no_bound_is_above_the_optimum(kind, num_devices, stages, replicas):
    for seed in range(3):
        costs = network(kind, num_devices, seed, replicas)
        least, hops = optimum(*costs, stages, replicas)
        assert (bound_hops(costs[1], stages, replicas) <= hops * (1 + 1e-12)).all()
        values = list(improve_bound(*costs, stages, replicas, turns=30))
        assert values == sorted(values)
        assert values[0] == bound_dtfm(*costs, stages, replicas)
        assert values[-1] <= least * (1 + 1e-12)


def test_bounds_of_one_stage_one_pipeline_and_split_networks_are_the_cheap_ones():
    for stages, replicas in [(1, 4), (4, 1)]:
        costs = network("random", 6, 0, replicas)
        assert list(improve_bound(*costs, stages, replicas)) == [bound_dtfm(*costs, stages, replicas)]
    shared, piped = network("regions", 6, 0, 2)
    apart = np.arange(6)[:, None] // 3 != np.arange(6) // 3
    shared[apart] = piped[apart] = np.inf
    assert len(list(improve_bound(shared, piped, 3, 2, turns=3))) >= 1


def test_the_bound_closes_a_good_part_of_the_gap_on_a_jittered_network_and_can_be_cancelled(
    monkeypatch,
):
    monkeypatch.setattr(placement_bound, "MOST_COUNTS", 500)  # fewer are faster
    cluster = jit(0)
    some = np.ix_(np.arange(32), np.arange(32))  # four of the eight regions
    costs = pair_costs(cluster.published_delay_ms_DD[some], cluster.published_bandwidth_gbps_DD[some], 8)
    values = list(improve_bound(*costs, 4, 8, turns=6))
    assert values[-1] > 1.15 * values[0]
    assert values == list(improve_bound(*costs, 4, 8, turns=6))
    asked = itertools.count()
    assert list(improve_bound(*costs, 4, 8, is_cancelled=lambda: next(asked) > 5)) == values[:1]
