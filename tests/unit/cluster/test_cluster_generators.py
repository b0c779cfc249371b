"""Drawn clusters: the recipe to the last number, the same from the same seed, honest about what is measured."""

from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json, load_cluster
from hetplanner.cluster.generators import GENERATORS, JITTER, generate_cluster, jit, mixed_gpus, r10, r10j
from hetplanner.cost.dtfm import score_dtfm
from hetplanner.errors import InvalidInput

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
CITIES = ["Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "Singapore", "Sydney", "London", "Frankfurt", "Ireland"]
R10_COST = 176.29352118415306
R10J_COST = 216.65764227546038
JIT_COST = 108.7546825397395


def log_factors(cluster, plain):
    """Logarithms of both kinds of factors on the pairs of different devices."""
    upper = np.triu_indices(len(plain.devices), 1)
    return [
        np.log(getattr(cluster, name)[upper] / getattr(plain, name)[upper])
        for name in ("published_bandwidth_gbps_DD", "published_delay_ms_DD")
    ]


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_cluster_and_files_keep_it(name):
    cluster = generate_cluster(name, 3)
    assert cluster == generate_cluster(name, 3)
    assert cluster != generate_cluster(name, 4)
    assert cluster_from_json(cluster_to_json(cluster)) == cluster
    assert "generated" in cluster.provenance
    assert "seed 3" in cluster.provenance


def test_r10_draws_the_cities_of_the_recipe():
    cluster = r10(2022)
    assert [site.name for site in cluster.sites] == CITIES
    assert np.bincount(cluster.site_index_D).tolist() == [16, 3, 6, 7, 2, 3, 6, 6, 7, 8]
    assert cluster.site_index_D.tolist() == np.random.default_rng(2022).integers(0, 10, 64).tolist()


@pytest.mark.parametrize("sample", ["aws_10_regions", "dtfm_5_worldwide"])
def test_links_are_those_of_the_samples(sample):
    """The package carries the measured numbers itself; they must stay those of the sample files."""
    drawn, known = r10(2022), load_cluster(SAMPLES / f"{sample}.json")
    ours = {(k.from_site, k.to_site): k for k in drawn.site_links}
    for link in known.site_links:
        mine = ours[link.from_site, link.to_site]
        assert (mine.published, mine.source, mine.when) == (link.published, link.source, link.when)
        assert (mine.latency, mine.bandwidth) == pytest.approx((link.latency, link.bandwidth))
    places = {site.name: site for site in drawn.sites}
    assert all(places[site.name] == site for site in known.sites)


def test_jitter_is_symmetric_and_drawn_apart_for_bandwidth_and_delay():
    cluster, plain = r10j(7), r10(7)
    bandwidth, delay = log_factors(cluster, plain)
    for logs in (bandwidth, delay):
        assert abs(logs.mean()) < 0.03
        assert abs(logs.std() - JITTER) < 0.03
    assert abs(np.corrcoef(bandwidth, delay)[0, 1]) < 0.1
    for matrix in (cluster.published_delay_ms_DD, cluster.latency_s_DD, cluster.bandwidth_bytes_per_s_DD):
        assert np.array_equal(matrix, matrix.T)


def test_jit_is_case_5_with_jitter():
    case_5 = load_cluster(SAMPLES / "dtfm_5_worldwide.json")
    cluster = jit(1)
    assert cluster.device_ids == case_5.device_ids
    for logs in log_factors(cluster, case_5):
        assert abs(logs.std() - JITTER) < 0.03
    assert {link.source for link in cluster.device_links} == {"assumed"}


def test_the_drawn_numbers_stay_what_they_are():
    """Published results name these instances: one fixed plan on each has always the same cost."""
    placement = np.arange(64).reshape(8, 8)
    for cluster, cost in ((r10(2022), R10_COST), (r10j(2022), R10J_COST), (jit(2022), JIT_COST)):
        found = score_dtfm(placement, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)
        assert found.total_s == pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_mixed_gpus_leave_no_kind_and_no_site_out(seed):
    cluster = mixed_gpus(seed)
    assert len(cluster.devices) == 16
    assert len(cluster.sites) == 4
    assert {device.kind for device in cluster.devices} == {"T4", "V100-16", "A100-40"}
    assert all(host.nic_out and host.nic_in for host in cluster.hosts)
    for host in cluster.hosts:
        assert len({device.kind for device in cluster.devices if device.host == host.id}) == 1
    for device in cluster.devices:
        assert resolve_device(device).memory_bytes > 0


def test_mixed_gpus_in_other_sizes():
    cluster = mixed_gpus(0, num_devices=9, num_sites=10, gpus_per_host=4, kinds=["V100"])
    assert len(cluster.hosts) == len(cluster.sites) == 3
    assert {device.kind for device in cluster.devices} == {"V100-16"}


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: generate_cluster("r11", 0), "r10, r10j, jit, mixed-gpus"),
        (lambda: generate_cluster("r10", -1), "seed"),
        (lambda: r10(0, num_devices=0), "num_devices"),
        (lambda: r10j(0, num_devices=1000), "num_devices: must be from 1 to 512"),
        (lambda: mixed_gpus(0, kinds=["T5"]), "T5"),
        (lambda: mixed_gpus(0, kinds=[]), "kinds"),
        (lambda: mixed_gpus(0, num_sites=11), "num_sites"),
    ],
)
def test_bad_arguments_are_refused(draw, words):
    with pytest.raises(InvalidInput, match=words):
        draw()
