"""The sample clusters against the facts they are written from."""

from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import cluster_to_json, load_cluster

FOLDER = Path(__file__).parents[4] / "sample_clusters"
SAMPLES = sorted(path.stem for path in FOLDER.glob("*.json"))
REHEARSALS = ("laptop_8_cities", "lab_2_sites_4", "campus_3_sites_6", "continents_4_sites_8")


def sample(name):
    return load_cluster(FOLDER / f"{name}.json")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_whole_says_where_it_comes_from_and_is_in_canonical_form(name):
    cluster = sample(name)
    assert cluster.name == name
    assert cluster.description
    assert cluster.provenance
    for device in cluster.devices:
        resolve_device(device)
    assert cluster_to_json(cluster) == (FOLDER / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "devices", "sites", "hosts"),
    [
        ("dtfm_1_datacenter", 64, 1, 8),
        ("dtfm_2_spot", 64, 1, 40),
        ("dtfm_3_universities", 64, 2, 64),
        ("dtfm_4_regional", 64, 4, 64),
        ("dtfm_5_worldwide", 64, 8, 64),
        ("aws_10_regions", 40, 10, 40),
        ("laptop_8_cities", 8, 8, 8),
    ],
)
def test_sizes(name, devices, sites, hosts):
    cluster = sample(name)
    assert (len(cluster.devices), len(cluster.sites), len(cluster.hosts)) == (devices, sites, hosts)


@pytest.mark.parametrize(("name", "inter", "gbit_s"), [("dtfm_1_datacenter", 3.125, 25), ("dtfm_2_spot", 1.25, 10)])
def test_cases_1_and_2_keep_the_sources_literals_beside_converted_values(name, inter, gbit_s):
    cluster = sample(name)
    same_host = cluster.host_index_D[:, None] == cluster.host_index_D[None, :]
    other = ~np.eye(64, dtype=bool)
    literal = cluster.published_bandwidth_gbps_DD
    assert set(literal[~same_host]) == {inter}
    assert set(literal[same_host & other]) == {100.0}
    np.testing.assert_allclose(cluster.bandwidth_bytes_per_s_DD[other] * 8, literal[other] * 8e9)
    assert not cluster.published_delay_ms_DD.any()
    assert {host.nic_out for host in cluster.hosts} == {gbit_s * 1.25e8}


def test_the_worldwide_case_has_the_sources_links():
    cluster = sample("dtfm_5_worldwide")
    link = cluster.link("oregon-0", "virginia-7")
    assert (link.published.bandwidth_gbps, link.published.delay_ms) == (0.79, 67)
    assert (link.latency, link.bandwidth, link.source) == (0.067, 0.79e9 / 8, "measured")
    inside = cluster.link("seoul-0", "seoul-1")
    assert (inside.latency, inside.bandwidth, inside.source) == (0.005, 2.5e8, "assumed")
    np.testing.assert_array_equal(cluster.latency_s_DD, cluster.latency_s_DD.T)
    assert "one-way" in cluster.provenance
    assert "round trips" in cluster.provenance


def test_the_laptop_has_one_cpu_in_each_city_on_the_measured_links():
    small, full = sample("laptop_8_cities"), sample("dtfm_5_worldwide")
    firsts = full.subset([f"{site.name.lower()}-0" for site in full.sites])
    np.testing.assert_array_equal(small.latency_s_DD, firsts.latency_s_DD)
    np.testing.assert_array_equal(small.bandwidth_bytes_per_s_DD, firsts.bandwidth_bytes_per_s_DD)
    assert {device.kind for device in small.devices} == {"CPU generic"}


@pytest.mark.parametrize("name", REHEARSALS[1:])
def test_rehearsal_clusters_are_synthetic_and_within_what_one_machine_emulates(name):
    cluster = sample(name)
    other = ~np.eye(len(cluster.devices), dtype=bool)
    assert cluster.provenance.startswith("Synthetic")
    assert 4 <= len(cluster.devices) <= 8
    assert 2 <= len(cluster.sites) <= 4
    assert cluster.latency_s_DD[other].min() >= 0.002
    assert cluster.latency_s_DD.max() <= 0.08
    assert cluster.bandwidth_bytes_per_s_DD[other].min() >= 20e6 / 8
    assert cluster.bandwidth_bytes_per_s_DD[other].max() <= 1e9 / 8
