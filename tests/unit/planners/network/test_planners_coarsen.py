"""Large clusters made small: sites found in noisy links, orders along them, groups inside them."""

import numpy as np
import pytest

from hetplanner.cluster.generators import jitter_factors_DD, r10
from hetplanner.planners.network.coarsen import find_sites, group_devices, list_leaves, sort_devices
from hetplanner.planners.network.seeds import list_orders
from tests.support.plans.purity import purity


def network(num_devices, sigma, seed=0):
    """Seconds of a message between devices scattered over ten regions, in shuffled order, and the regions."""
    cluster = r10(seed, num_devices=num_devices)
    rng = np.random.default_rng(seed)
    seconds = cluster.latency_s_DD + 1e7 / cluster.bandwidth_bytes_per_s_DD
    seconds = seconds * jitter_factors_DD(num_devices, rng, sigma)
    shuffled = rng.permutation(num_devices)
    return (seconds + seconds.T)[np.ix_(shuffled, shuffled)], cluster.site_index_D[shuffled]


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_sites_are_found_whatever_the_luck_of_single_links(sigma):
    seconds, site = network(1200, sigma)
    found = find_sites(seconds)
    assert purity(found, site) == 1.0
    assert int(found.max()) + 1 == 10


def test_equal_links_are_one_site():
    assert not find_sites(np.ones((1100, 1100))).any()


def test_an_order_keeps_sites_together_and_groups_stay_inside_them():
    seconds, site = network(1200, 0.3)
    order, found = sort_devices(seconds)
    assert sorted(order) == list(range(1200))
    assert np.count_nonzero(np.diff(site[order])) == 9
    groups = group_devices(order, found, 16)
    assert len(groups) == 1200 // 16
    assert len(set(groups.reshape(-1))) == groups.size
    assert sum(len(set(site[group])) > 1 for group in groups) <= 9
    place = np.argsort(order)[groups].mean(axis=1)
    assert (np.diff(place) >= 0).all()


def test_orders_of_a_large_cluster_are_by_site():
    seconds, site = network(1100, 0.3)
    orders = list_orders(seconds.astype(np.float32))
    assert len(orders) > 1
    for order in orders:
        assert sorted(order) == list(range(1100))
        assert np.count_nonzero(np.diff(site[order])) == 9


def test_leaves_are_those_of_scipy():
    from scipy.cluster import hierarchy

    for seed in range(5):
        tree = hierarchy.linkage(np.random.default_rng(seed).random((9 + seed, 3)), "average")
        assert list_leaves(tree).tolist() == hierarchy.leaves_list(tree).tolist()
