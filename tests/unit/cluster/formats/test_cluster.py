"""The cluster: its laws, its matrices, its files."""

import copy
import json

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import (
    cluster_from_data,
    cluster_from_json,
    cluster_to_data,
    cluster_to_json,
    load_cluster,
    save_cluster,
)
from hetplanner.errors import InvalidInput

GOOD = {
    "format": "hetplanner/cluster@1",
    "name": "two sites",
    "sites": [
        {"name": "Paris", "latitude": 48.9, "longitude": 2.4, "egress_usd_per_gb": 0.05},
        {"name": "Oslo", "latitude": 59.9, "longitude": 10.8},
    ],
    "hosts": [{"id": "p", "site": "Paris", "nic_out": "10 Gbit/s", "nic_in": "5 Gbit/s"}],
    "devices": [
        {"id": "gpu", "count": 2, "kind": "V100-16", "host": "p"},
        {"id": "o", "kind": "T4", "site": "Oslo", "memory": "16 GiB", "peak": {"float32": "8 TFLOP/s"}},
    ],
    "site_links": [
        {
            "from": "Paris",
            "to": "Oslo",
            "latency": "20 ms",
            "bandwidth": "1 Gbit/s",
            "source": "measured",
            "symmetric": True,
        },
        {"from": "Oslo", "to": "Paris", "latency": "25 ms", "bandwidth": "500 Mbit/s"},
    ],
    "host_links": [
        {"host": "p", "latency": "0 ms", "bandwidth": "800 Gbit/s", "published": {"bandwidth_gbps": 100, "delay_ms": 0}}
    ],
    "device_links": [{"from": "gpu-1", "to": "o", "latency": "1 ms", "bandwidth": "2 Gbit/s"}],
}


def good(**changes):
    return copy.deepcopy(GOOD) | changes


def read(data):
    return cluster_from_json(json.dumps(data), "x.json")


def refused(data) -> str:
    with pytest.raises(InvalidInput) as caught:
        cluster_from_json(data if isinstance(data, str) else json.dumps(data), "x.json")
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith("x.json")
    return text


def test_a_brief_file_is_expanded():
    cluster = read(GOOD)
    assert cluster.device_ids == ("gpu-0", "gpu-1", "o")
    assert [h.id for h in cluster.hosts] == ["p", "o"]
    assert cluster.host_of("gpu-1").nic_in == 6.25e8
    assert cluster.site_of("o").name == "Oslo"
    assert cluster.devices[2].memory == 2**34
    assert cluster.device_index("o") == 2


def test_the_strongest_and_latest_rule_is_in_force():
    cluster = read(GOOD)
    np.testing.assert_array_equal(cluster.latency_s_DD, [[0, 0, 0.02], [0, 0, 0.001], [0.025, 0.025, 0]])
    assert cluster.link("gpu-1", "o").bandwidth == 2.5e8
    assert cluster.link("o", "gpu-0").bandwidth == 6.25e7
    assert np.isinf(cluster.bandwidth_bytes_per_s_DD.diagonal()).all()
    assert cluster.link_index_DD.diagonal().tolist() == [-2, -2, -2]
    with pytest.raises(KeyError):
        cluster.link("o", "o")


def test_published_literals_are_read_where_there_are_any():
    cluster = read(GOOD)
    assert cluster.published_bandwidth_gbps_DD[0, 1] == 100
    assert cluster.published_bandwidth_gbps_DD[0, 2] == 1
    assert cluster.published_delay_ms_DD[0, 2] == 20


def test_matrices_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        read(GOOD).latency_s_DD[0, 1] = 5


def test_a_subset_keeps_order_links_and_hosts():
    cluster = read(GOOD)
    part = cluster.subset(["o", "gpu-0"])
    assert part.device_ids == ("o", "gpu-0")
    assert part.link("o", "gpu-0") == cluster.link("o", "gpu-0")
    assert {h.id for h in part.hosts} == {"o", "p"}
    assert cluster.subset(["gpu-0"]).sites == cluster.sites[:1]
    for ids in (["nobody"], ["o", "o"], []):
        with pytest.raises(InvalidInput):
            cluster.subset(ids)


def test_files_read_back_equal_and_are_stable(tmp_path):
    cluster = read(GOOD)
    path = tmp_path / "c.json"
    save_cluster(cluster, path)
    again = load_cluster(path)
    assert again == cluster
    assert cluster_to_json(again) == path.read_text(encoding="utf-8")
    assert all(len(line) < 250 for line in path.read_text().splitlines())


def test_a_written_file_is_brief_where_that_reads_back():
    data = cluster_to_data(read(GOOD))
    assert data["devices"][2] == {
        "id": "o",
        "kind": "T4",
        "peak": {"float32": "8 TFLOP/s"},
        "memory": "16 GiB",
        "site": "Oslo",
    }
    assert [h["id"] for h in data["hosts"]] == ["p"]
    assert data["site_links"][0]["symmetric"] is True
    assert data["format"] == "hetplanner/cluster@1"


def test_hosts_in_another_order_than_devices_are_written_in_full():
    data = good(hosts=[{"id": "o", "site": "Oslo"}, *GOOD["hosts"]])
    cluster = read(data)
    assert len(cluster_to_data(cluster)["hosts"]) == 2
    assert read(cluster_to_data(cluster)) == cluster


def test_saving_where_one_cannot_write(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be written"):
        save_cluster(read(GOOD), tmp_path / "no folder" / "c.json")


def _without(data, key):
    return {k: v for k, v in data.items() if k != key}


def _changed(where, index, **changes):
    entries = copy.deepcopy(GOOD[where])
    entries[index] |= changes
    return good(**{where: entries})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_without(GOOD, "devices"), "x.json: devices: required field is missing; add it"),
        (_without(GOOD, "name"), "x.json: name: required field is missing"),
        (good(devices=[]), "x.json: devices: "),
        (good(colour="red"), "x.json: colour: unknown field; remove it or correct its spelling"),
        (_changed("devices", 1, module="os:system"), "x.json: devices[1].module: unknown field"),
        (_changed("devices", 1, memory="0 GiB"), "x.json: devices[1].memory: must be above 0, got '0 GiB'"),
        (_changed("devices", 1, memory="-4 GiB"), "x.json: devices[1].memory: must be above 0, got '-4 GiB'"),
        (_changed("devices", 1, memory=16), "x.json: devices[1].memory: must be a string with a unit"),
        (_changed("devices", 1, memory="16 Gibi"), "x.json: devices[1].memory: must be a number with one of the units"),
        (_changed("devices", 1, memory="1e9 PB"), "x.json: devices[1].memory: must be from"),
        (
            _changed("devices", 1, efficiency=1.5),
            "x.json: devices[1].efficiency: must be less than or equal to 1, got 1.5",
        ),
        (_changed("devices", 1, peak={"float8": "1 TFLOP/s"}), "x.json: devices[1].peak.float8"),
        (_changed("devices", 0, count=0), "x.json: devices[0].count: "),
        (_changed("devices", 0, count=10**6), "x.json: devices[0].count: "),
        (_changed("devices", 0, host="q"), "x.json: devices[0].host: unknown name 'q'; known are "),
        (_changed("devices", 1, site="Osl"), "x.json: hosts[1].site: unknown name 'Osl'; known are Oslo"),
        (_changed("devices", 0, site="Oslo"), "x.json: devices[0].site: host 'p' is at 'Paris', got 'Oslo'"),
        (_changed("devices", 1, site=None), "x.json: devices[1]: must give a host or a site; add one"),
        (
            _changed("devices", 1, id="gpu-0"),
            "x.json: devices[2].id: must be unique, 'gpu-0' is already taken; rename one",
        ),
        (_changed("sites", 1, name="Paris"), "x.json: sites[1].name: must be unique"),
        (_changed("sites", 1, latitude=91), "x.json: sites[1].latitude: must be less than or equal to 90, got 91"),
        (_changed("site_links", 0, bandwidth="1 Gbps"), "did you mean Gbit/s?"),
        (_changed("site_links", 0, bandwidth="0 Gbit/s"), "x.json: site_links[0].bandwidth: must be above 0"),
        (_changed("site_links", 0, latency="-1 ms"), "x.json: site_links[0].latency: must be 0 or more, got '-1 ms'"),
        (_changed("site_links", 0, source="guess"), "x.json: site_links[0].source: must be 'measured'"),
        (_changed("device_links", 0, to="nobody"), "x.json: device_links[0].to: unknown name 'nobody'"),
        (good(site_links=[]), "no link from device 'o' to 'gpu-1', only one the other way; add a site_links entry"),
        (
            good(site_links=[], device_links=[]),
            "disconnected: the devices fall into 2 parts without a link between them: Paris (2 devices) | Oslo (1",
        ),
        (good(host_links=[]), "or a host_links entry for host 'p'"),
        (good(format="hetplanner/cluster@2"), "upgrade hetplanner"),
        (good(format="hetplanner/plan@1"), "must be 'hetplanner/cluster@1'"),
        ("[" * 100_000, "nested at most 32 deep"),
        (json.dumps(GOOD).replace("48.9", "NaN"), "NaN is not a number"),
        (json.dumps(GOOD).replace("48.9", "1e999"), "x.json: sites[0].latitude"),
    ],
)
def test_bad_files_end_in_one_line_that_names_the_place(data, says):
    assert says in refused(data)


def test_too_many_devices_in_all():
    devices = [{"id": f"d{i}", "count": 4000, "kind": "T4", "host": "p"} for i in range(2)]
    assert "must be at most 4096 devices in all" in refused(good(devices=devices))


def test_512_devices_in_site_form_are_one_kilobyte_and_read():
    data = good(devices=[{"id": "d", "count": 512, "kind": "T4", "site": "Paris"}], device_links=[])
    data["site_links"] = [{"from": "Paris", "to": "Paris", "latency": "1 ms", "bandwidth": "1 Gbit/s"}]
    cluster = cluster_from_data(_without(data, "format"))
    assert cluster.latency_s_DD.shape == (512, 512)
    assert read(cluster_to_data(cluster)) == cluster
