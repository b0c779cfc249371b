"""Measured links and NICs go into a cluster, and what its file says otherwise is told."""

from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
from hetplanner.cluster.measured import (
    Measured,
    MeasuredLink,
    MeasuredNic,
    corrected,
    differences,
    load_measured,
    save_measured,
)
from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from tests.support.plans.factories import hosted

DEVICES = {"d0": "a", "d1": "a", "d2": "b", "d3": "c"}


@pytest.fixture
def cluster() -> Cluster:
    """Devices d0, d1 on host a, d2 on b, d3 on c; 125 MB/s and 1 ms between them."""
    return hosted(DEVICES)


def link(start: str, end: str, bandwidth: float = 125e6, latency_s: float = 1e-3) -> MeasuredLink:
    return MeasuredLink(from_host=start, to_host=end, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)


def test_links_of_hosts_go_to_the_devices_that_are_named(cluster: Cluster) -> None:
    measured = Measured(links=(link("a", "b", 5e6, 0.02),))
    found = corrected(cluster, measured, ["d0", "d2", "d3"], "today")
    one = found.link("d0", "d2")
    assert (one.bandwidth, one.latency, one.source, one.when) == (5e6, 0.02, "measured", "today")
    for pair in (("d2", "d0"), ("d1", "d2"), ("d0", "d3"), ("d0", "d1")):
        assert found.link(*pair) == cluster.link(*pair)


def test_a_nic_that_connections_share_is_what_they_carried_together(cluster: Cluster) -> None:
    nics = (MeasuredNic(host="a", out_bytes_per_s=6e6, out_is_shared=True), MeasuredNic(host="b", in_bytes_per_s=9e6))
    hosts = {h.id: h for h in corrected(cluster, Measured(links=(), nics=nics), DEVICES).hosts}
    assert (hosts["a"].nic_out, hosts["a"].nic_in, hosts["b"].nic_in) == (6e6, None, None)


def test_a_nic_that_the_file_calls_slower_than_what_it_carried_is_corrected(cluster: Cluster) -> None:
    slow = cluster.replace(hosts=tuple(h.replace(nic_out=1e6, nic_in=1e9) for h in cluster.hosts))
    nics = (MeasuredNic(host="a", out_bytes_per_s=20e6),)
    found = corrected(slow, Measured(links=(link("a", "b", 10e6), link("b", "a", 7e6)), nics=nics), DEVICES)
    assert [(h.nic_out, h.nic_in) for h in found.hosts] == [(20e6, 1e9), (7e6, 1e9), (1e6, 1e9)]


def test_what_the_file_says_otherwise_is_told_the_greatest_error_first(cluster: Cluster) -> None:
    measured = Measured(
        links=(link("a", "b", 12.5e6), link("b", "a", 120e6), link("a", "c", latency_s=3e-3), link("c", "a", 60e6)),
        nics=(MeasuredNic(host="c", in_bytes_per_s=50e6, in_is_shared=True),),
    )
    assert differences(cluster, measured) == (
        "c: NIC in is 400 Mbit/s, the cluster file states no limit",
        "a → b: bandwidth is 100 Mbit/s, the cluster file says 1 Gbit/s",
        "a → c: latency is 3 ms, the cluster file says 1 ms",
        "c → a: bandwidth is 480 Mbit/s, the cluster file says 1 Gbit/s",
    )
    assert differences(corrected(cluster, measured, DEVICES), measured) == ()


def test_hosts_that_the_cluster_does_not_have_are_passed_over(cluster: Cluster) -> None:
    measured = Measured(links=(link("x", "b"), link("a", "y")), nics=(MeasuredNic(host="z", out_bytes_per_s=1e6),))
    assert corrected(cluster, measured, DEVICES) == cluster
    assert differences(cluster, measured) == ()


def test_the_corrected_cluster_is_a_file_that_reads_back(cluster: Cluster, tmp_path: Path) -> None:
    found = corrected(cluster, Measured(links=(link("a", "b", 5e6),)), cluster.device_ids, "by a run of 2026-11-24")
    save_cluster(found, tmp_path / "cluster.json")
    assert load_cluster(tmp_path / "cluster.json") == found


def test_measurements_read_back(tmp_path: Path) -> None:
    measured = Measured(
        links=(link("a", "b"),), nics=(MeasuredNic(host="a", in_bytes_per_s=1e6),), measured_unix_s=1.5e9
    )
    save_measured(measured, tmp_path / "links.json")
    assert load_measured(tmp_path / "links.json") == measured


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "links.json"),
        ('{"format": "hetplanner/plan@1"}', "must be 'hetplanner/links@1'"),
        ('{"format": "hetplanner/links@1", "links": [{"from_host": "a"}]}', r"links.json: links\[0\].to_host"),
        (
            '{"format": "hetplanner/links@1", "links": [{"from_host": "a", "to_host": "b", "latency_s": -1,'
            ' "bandwidth_bytes_per_s": 1.0}]}',
            r"links\[0\].latency_s",
        ),
    ],
)
def test_damaged_measurements_are_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "links.json").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        load_measured(tmp_path / "links.json")
