"""OP-Fence's communities are the sites of the sample clusters, shuffled or with noisy links."""

from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.problem import Problem
from hetplanner.planners.baselines.opfence import deal_walk, message_seconds, walk_network
from hetplanner.planners.network.communities import find_communities
from hetplanner.workload.presets import preset
from tests.support.plans.purity import purity

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
WITH_SITES = ("dtfm_3_universities", "dtfm_4_regional", "dtfm_5_worldwide", "aws_10_regions")


def network(name, seed):
    """Message times and true site of every device, the file shuffled."""
    cluster = load_cluster(SAMPLES / f"{name}.json")
    order = np.random.default_rng(seed).permutation(len(cluster.devices))
    cluster = cluster.replace(devices=tuple(cluster.devices[i] for i in order))
    problem = Problem(cluster=cluster, workload=preset("gpt3-xl"))
    return problem, message_seconds(CostModel.of(problem)), cluster.site_index_D


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", WITH_SITES)
def test_communities_are_the_sites(name, seed):
    _, seconds, site = network(name, seed)
    found = find_communities(seconds)
    assert found.max() == site.max()
    assert purity(found, site) == 1.0


@pytest.mark.parametrize("name", WITH_SITES)
def test_noise_on_every_link_leaves_most_devices_at_their_site(name):
    of_found, of_site = [], []
    for seed in range(5):
        _, seconds, site = network(name, seed)
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.15, seconds.shape))
        noise = np.triu(noise, 1) + np.triu(noise, 1).T
        found = find_communities(seconds * noise)
        of_found.append(purity(found, site))
        of_site.append(purity(site, found))
    assert np.median(of_found) >= 0.94
    assert np.median(of_site) >= 0.9


def test_equal_links_are_one_community():
    assert find_communities(np.full((9, 9), 0.01)).max() == 0
    assert find_communities(np.ones((2, 2))).max() == 0


def test_purity_counts_the_majority():
    assert purity(np.array([0, 0, 0, 1]), np.array([5, 5, 2, 2])) == 0.75


@pytest.mark.parametrize("name", WITH_SITES)
def test_the_walk_finishes_a_site_before_it_goes_on(name):
    problem, _, site = network(name, 3)
    walk = walk_network(problem, CostModel.of(problem))
    assert sorted(walk) == list(range(len(site)))
    assert (np.diff(site[walk]) != 0).sum() == len(set(site)) - 1


def test_a_walk_is_dealt_as_pipelines_and_as_stages():
    pipelines, stages = deal_walk(np.arange(7), (3, 2))
    assert pipelines.T.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert stages.tolist() == [[0, 1], [2, 3], [4, 5]]
