"""Whatever is done to a cluster file, it is read or refused with one line; what is read, is written back equal."""

import json
import string

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.formats.table_export import tables_of
from hetplanner.cluster.formats.tables import (
    cluster_from_device_tables,
    cluster_from_site_json,
    cluster_from_site_tables,
)
from hetplanner.cluster.formats.uploads import cluster_from_uploads, files_from_text
from tests.support.files.mutations import ODD_VALUES, garbled, mutated, read_or_refused

VALID = {
    "format": "hetplanner/cluster@1",
    "name": "c",
    "description": "two sites",
    "provenance": "made up",
    "sites": [
        {"name": "A", "latitude": 1.5, "longitude": 2, "egress_usd_per_gb": 0.1},
        {"name": "B", "latitude": -3, "longitude": 4},
    ],
    "hosts": [{"id": "h", "site": "A", "nic_out": "1 Gbit/s", "nic_in": "2 Gbit/s"}],
    "devices": [
        {"id": "a", "count": 2, "kind": "T4", "host": "h"},
        {
            "id": "b",
            "kind": "mine",
            "site": "B",
            "peak": {"float32": "1 TFLOP/s", "float16": "2 TFLOP/s"},
            "memory": "16 GiB",
            "memory_bandwidth": "100 GB/s",
            "efficiency": 0.5,
            "reserve": "1 GiB",
            "price_usd_per_hour": 0.4,
        },
    ],
    "site_links": [
        {"from": "A", "to": "A", "latency": "1 ms", "bandwidth": "1 Gbit/s", "source": "measured", "when": "2022"},
        {"from": "A", "to": "B", "latency": "67 ms", "bandwidth": "1.12 Gbit/s", "symmetric": True},
    ],
    "host_links": [
        {
            "host": "h",
            "latency": "0 ms",
            "bandwidth": "100 Gbit/s",
            "published": {"bandwidth_gbps": 100, "delay_ms": 0},
        }
    ],
    "device_links": [{"from": "a-0", "to": "b", "latency": "5 ms", "bandwidth": "2 Gbit/s"}],
}

SITE_TABLES = {
    "format": "hetplanner/site-tables@1",
    "name": "two",
    "sites": VALID["sites"],
    "hosts": VALID["hosts"],
    "devices": VALID["devices"],
    "bandwidth_gbit_s": [[5, 1], [2, None]],
    "latency_ms": [[1, 20], [30, None]],
    "round_trip": True,
    "source": "measured",
    "overrides": [
        {"per": "device", "from": "a-0", "to": "b", "bandwidth": "7 Gbit/s", "latency": "2 ms"},
        {"per": "host", "from": "h", "to": "h", "bandwidth": "7 Gbit/s", "latency": "2 ms"},
    ],
}

thousands = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


def read_cluster(read, *args, **kwargs):
    """The cluster, or None if it was refused properly; any other exception fails the test."""
    cluster = read_or_refused(read, *args, **kwargs)
    if cluster is not None:
        assert np.isfinite(cluster.latency_s_DD).all()
        assert (cluster.bandwidth_bytes_per_s_DD > 0).all()
        specs = [read_or_refused(resolve_device, device) for device in cluster.devices]
        assert all(0 <= spec.usable_bytes <= spec.memory_bytes < 1e19 for spec in specs if spec is not None)
    return cluster


def test_the_untouched_files_are_read():
    assert read_cluster(cluster_from_json, json.dumps(VALID)) is not None
    assert read_cluster(cluster_from_site_json, json.dumps(SITE_TABLES)) is not None


@thousands
@given(mutated(VALID))
def test_a_changed_cluster_file(data):
    cluster = read_cluster(cluster_from_json, json.dumps(data), "x.json")
    if cluster is not None:
        assert cluster_from_json(cluster_to_json(cluster)) == cluster


@thousands
@given(garbled(VALID))
def test_a_garbled_cluster_file(text):
    read_cluster(cluster_from_json, text, "x.json")


@thousands
@given(mutated(SITE_TABLES))
def test_changed_site_tables(data):
    read_cluster(cluster_from_site_json, json.dumps(data), "x.json")


@settings(max_examples=300, deadline=None)
@given(ODD_VALUES)
def test_a_file_that_is_something_else(value):
    assert read_cluster(cluster_from_json, json.dumps(value)) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_bytes(data):
    assert read_cluster(cluster_from_json, data) is None
    for table in (data, b"\x93NUMPY" + data, b"\x93NUMPY\x01\x00\x76\x00" + data):
        read_cluster(cluster_from_device_tables, ("bw", table), ("lat", table), devices=("devices.csv", data))


CELLS = st.sampled_from(
    ["", "1", "2.5", "-1", "nan", "inf", "1e400", "x", "a", '"', "5 ms", "1_0", "٣", "two\nlines", "\x00", "9" * 400]
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.lists(CELLS, max_size=4), max_size=4), st.lists(st.lists(CELLS, max_size=5), max_size=4))
def test_tables_of_odd_cells(rows, devices):
    bandwidth = "\n".join([",a,b", *(",".join(row) for row in rows)]).encode()
    table = "\n".join(["id,kind,site,latitude,memory", *(",".join(row) for row in devices)]).encode()
    fine = b",a,b\na,,1\nb,1,\n"
    read_cluster(cluster_from_device_tables, ("bw.csv", bandwidth), ("lat.csv", fine))
    read_cluster(cluster_from_device_tables, ("bw.csv", fine), ("lat.csv", bandwidth), round_trip=True)
    read_cluster(cluster_from_device_tables, ("bw.csv", fine), ("lat.csv", fine), devices=("d.csv", table))
    read_cluster(cluster_from_site_tables, ("bw.csv", bandwidth), ("lat.csv", fine), ("d.csv", table))


# -- round trips ----------------------------------------------------------------------------------

NAMES = st.text(string.ascii_letters + string.digits + "é東-_ ,;#\"'[]{}", min_size=1, max_size=8).map(str.strip)
RATES = st.floats(min_value=1.0, max_value=1e15) | st.integers(1, 10**6).map(lambda kbit: kbit * 125.0)
# Zero or a picosecond and more: far below, halves are no longer exact.
LATENCIES = st.just(0.0) | st.floats(min_value=1e-12, max_value=1e6) | st.integers(0, 10**6).map(lambda us: us / 1e6)


@st.composite
def clusters(draw):
    """Any valid cluster of one to six devices whose sites all hold one."""
    names = draw(st.lists(NAMES.filter(bool), min_size=1, max_size=6, unique=True))
    num_sites = draw(st.integers(1, len(names)))
    site_of = [i if i < num_sites else draw(st.integers(0, num_sites - 1)) for i in range(len(names))]
    sites = [f"site {names[i]}" for i in range(num_sites)]
    places = [
        {"name": site, "latitude": draw(st.floats(-90, 90)), "longitude": draw(st.floats(-180, 180))} for site in sites
    ]

    def value():
        return {"latency": f"{draw(LATENCIES)!r} s", "bandwidth": f"{draw(RATES)!r} B/s"}

    data = {
        "format": "hetplanner/cluster@1",
        "name": "c",
        "sites": places,
        "hosts": [{"id": f"host {s}", "site": site} for s, site in enumerate(sites)],
        "devices": [
            {"id": name, "kind": "T4"} | draw(st.sampled_from([{"host": f"host {s}"}, {"site": sites[s]}]))
            for name, s in zip(names, site_of, strict=True)
        ],
        "site_links": [{"from": a, "to": b} | value() for a in sites for b in sites],
        "host_links": [{"host": f"host {s}"} | value() for s in range(num_sites) if draw(st.booleans())],
        "device_links": [
            {"from": a, "to": b} | value() for a in names for b in names if a != b and draw(st.integers(0, 4)) == 0
        ],
    }
    return cluster_from_json(json.dumps(data))


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_cluster_files_read_back_equal(cluster):
    text = cluster_to_json(cluster)
    again = cluster_from_json(text)
    assert again == cluster
    assert cluster_to_json(again) == text


def same_links(one, two, rtol):
    order = [two.device_index(device) for device in one.device_ids]
    np.testing.assert_allclose(two.latency_s_DD[np.ix_(order, order)], one.latency_s_DD, rtol=rtol)
    np.testing.assert_allclose(
        two.bandwidth_bytes_per_s_DD[np.ix_(order, order)], one.bandwidth_bytes_per_s_DD, rtol=rtol
    )


def as_sources(files):
    return {name.rsplit(".", 1)[0]: (name, content) for name, content in files.items()}


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_tables_read_back_equal(cluster):
    for form in ("csv", "npy"):
        files = as_sources(tables_of(cluster, form))
        again = cluster_from_device_tables(files["bandwidth_gbit_s"], files["latency_ms"], devices=files["devices"])
        assert again.device_ids == cluster.device_ids
        # A number of the last bit may change where no decimal of Gbit/s or ms is the same one.
        same_links(cluster, again, rtol=4e-16 if form == "csv" else 1e-15)
    files = as_sources(tables_of(cluster, "site-csv"))
    again = cluster_from_site_tables(
        files["site_bandwidth_gbit_s"],
        files["site_latency_ms"],
        files["devices"],
        overrides=files.get("overrides"),
    )
    same_links(cluster, again, rtol=4e-16)
    same_links(cluster, cluster_from_site_json(tables_of(cluster, "site-json")["site_tables.json"]), rtol=4e-16)


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_halving_round_trips(cluster):
    files = as_sources(tables_of(cluster, "npy"))
    tables = files["bandwidth_gbit_s"], files["latency_ms"]
    one_way = cluster_from_device_tables(*tables, devices=files["devices"])
    halved = cluster_from_device_tables(*tables, devices=files["devices"], round_trip=True)
    np.testing.assert_allclose(halved.latency_s_DD * 2, one_way.latency_s_DD, rtol=1e-15)
    assert "halved" in halved.provenance


LIKE = cluster_from_json(json.dumps(VALID))
PASTED_CELLS = st.sampled_from(["", "A", "B", "a-0", "a-1", "b", "per", "from", "to", "1", "1,5", "x", "device", "1 s"])


def read_pasted(text: str, kind: str, round_trip: bool):
    return cluster_from_uploads(files_from_text(text, kind), like=LIKE, round_trip=round_trip)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(st.lists(PASTED_CELLS, max_size=5), max_size=5).map(lambda rows: "\n".join(map("\t".join, rows))),
        st.lists(st.lists(PASTED_CELLS, max_size=5), max_size=5).map(lambda rows: "\n".join(map(";".join, rows))),
    ),
    st.sampled_from(["bandwidth", "latency"]),
    st.booleans(),
)
def test_whatever_is_pasted_is_read_or_refused(text, kind, round_trip):
    read_cluster(read_pasted, text, kind, round_trip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), st.sampled_from("\t,;"), st.booleans())
def test_a_pasted_table_of_sites_is_taken_at_its_word(values, mark, round_trip):
    texts = [repr(v).replace(".", ",") if mark == ";" and "e" not in repr(v) else repr(v) for v in values]
    rows = [["", "A", "B"], ["A", *texts[:2]], ["B", texts[2], ""]]
    cluster = read_pasted("\n".join(map(mark.join, rows)), "latency", round_trip)
    found = {(k.from_site, k.to_site): k.latency for k in cluster.site_links}
    for pair, value in zip([("A", "A"), ("A", "B"), ("B", "A")], values, strict=True):
        assert found[pair] == value / (2000 if round_trip else 1000)
