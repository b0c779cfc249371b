"""Device × device and site × site tables, in and out."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_from_data, load_cluster
from hetplanner.cluster.formats.table_export import export_tables, tables_of
from hetplanner.cluster.formats.tables import (
    cluster_from_device_tables,
    cluster_from_folder,
    cluster_from_site_json,
    cluster_from_site_tables,
)
from hetplanner.errors import InvalidInput

SAMPLES = sorted((Path(__file__).parents[4] / "sample_clusters").glob("*.json"))

BANDWIDTH = ",a,b\na,,1.12\nb,0.5,\n"
LATENCY = ",a,b\na,0,67\nb,40,0\n"
DEVICES = "id,kind,site,latitude,longitude,host,nic_out,memory\na,T4,X,1,2,h,10 Gbit/s,16 GiB\nb,V100-16,Y,3,4,,,\n"


MANY = [f"d{i}" for i in range(513)]


def upload(name, text):
    return name, text if isinstance(text, bytes) else text.encode()


def imported(bandwidth=BANDWIDTH, latency=LATENCY, **options):
    return cluster_from_device_tables(upload("bw.csv", bandwidth), upload("lat.csv", latency), **options)


def npy(values, **options):
    stream = io.BytesIO()
    np.save(stream, np.array(values), **options)
    return stream.getvalue()


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InvalidInput) as caught:
        call(*args, **kwargs)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_csv_tables_are_gbit_s_and_ms_row_to_column():
    cluster = imported(name="mine", kind="T4")
    assert cluster.device_ids == ("a", "b")
    assert cluster.link("a", "b").bandwidth == 1.4e8
    assert cluster.link("b", "a").latency == 0.04
    assert {d.kind for d in cluster.devices} == {"T4"}
    assert cluster.provenance == "Imported from device × device tables bw.csv and lat.csv."
    assert cluster.link("a", "b").source == "measured"


def test_round_trips_are_halved_and_the_provenance_says_so():
    cluster = imported(round_trip=True)
    assert cluster.link("a", "b").latency == 0.0335
    assert cluster.provenance.endswith("Latencies were given as round trips and halved on import.")


def test_rows_may_stand_in_another_order_than_the_other_tables():
    swapped = ",b,a\nb,0,40\na,67,0\n"
    np.testing.assert_array_equal(imported(latency=swapped).latency_s_DD, imported().latency_s_DD)


def test_devices_csv_gives_hosts_sites_and_numbers():
    cluster = imported(devices=upload("devices.csv", DEVICES))
    assert cluster.site_of("a").latitude == 1
    assert cluster.host_of("a").id == "h"
    assert cluster.host_of("a").nic_out == 1.25e9
    assert cluster.host_of("b").id == "b"
    assert cluster.devices[0].memory == 2**34
    assert cluster.devices[1].kind == "V100-16"


def test_a_cluster_may_lend_its_devices():
    lender = imported(devices=upload("devices.csv", DEVICES))
    cluster = imported(",b,a\nb,,9\na,8,\n", devices=lender)
    assert cluster.devices == lender.devices
    assert cluster.link("a", "b").bandwidth == 1e9


def test_npy_pairs_have_no_names():
    cluster = cluster_from_device_tables(
        upload("bw.npy", npy([[0.0, 2.0], [1.0, np.nan]])), upload("lat.npy", npy([[0, 5], [7, 0]]))
    )
    assert cluster.device_ids == ("device-0", "device-1")
    assert cluster.link("device-0", "device-1").bandwidth == 2.5e8
    assert cluster.link("device-1", "device-0").latency == 0.007


@pytest.mark.parametrize(
    ("bandwidth", "latency", "says"),
    [
        (",a,b\na,,0\nb,1,\n", LATENCY, "bw.csv: row 'a', column 'b': bandwidth must be above 0 Gbit/s, got 0"),
        (",a,b\na,,-1\nb,nan,\n", LATENCY, "bw.csv: row 'a', column 'b': bandwidth must be above 0 Gbit/s, got -1 "),
        (",a,b\na,,inf\nb,1,\n", LATENCY, "bw.csv: row 'a', column 'b': bandwidth must be from"),
        (BANDWIDTH, ",a,b\na,,5\nb,NaN,\n", "lat.csv: row 'b', column 'a': latency must be from 0 to 1e+09 ms,"),
        (BANDWIDTH, ",a,b\na,,5\nb,-2,\n", "lat.csv: row 'b', column 'a': latency must be from 0 to 1e+09 ms, got -2"),
        (BANDWIDTH, ",a,b\na,,5 ms\nb,2,\n", "lat.csv: row 'a', column 'b': must be a number, got '5 ms'"),
        (",a,b\na,,1,2\nb,1,\n", LATENCY, "bw.csv: row 'a': must have 2 cells, has 3"),
        (",a,b\na,,1\n", LATENCY, "bw.csv: must be square, has 1 rows and 2 columns"),
        (",a,b\na,,1\nc,1,\n", LATENCY, "bw.csv: row 3: must be named 'b', as the column is, got 'c'"),
        (",a,a\na,,1\na,1,\n", LATENCY, "bw.csv: column 'a' is there twice"),
        (BANDWIDTH, ",a,c\na,,1\nc,1,\n", "lat.csv: has no row 'b'; add it"),
        ("", LATENCY, "bw.csv: the file is empty"),
        (b"\xff\xfe", LATENCY, "bw.csv: must be UTF-8 text (CSV) or NPY"),
        (b"PK\x03\x04\x00", LATENCY, "bw.csv: this is a spreadsheet or an archive"),
        (',a,b\na,"x', LATENCY, "bw.csv: not CSV"),
        ("," + ",".join(MANY) + "\n" + "\n".join(MANY), LATENCY, "at most 512 rows"),
        (",,b\n,,1\nb,1,\n", ",,b\n,,1\nb,1,\n", "bw.csv: "),
        (npy([[1, 2, 3], [1, 2, 3]]), LATENCY, "bw.csv: must be square, has 2 rows and 3 columns"),
        (npy([1.0, 2.0]), LATENCY, "bw.csv: must hold a table of numbers"),
        (npy([["a", "b"], ["c", "d"]]), LATENCY, "bw.csv: must hold a table of numbers"),
        (npy([[{}, {}], [{}, {}]], allow_pickle=True), LATENCY, "bw.csv: must hold a table of numbers, holds object"),
        (npy([[1.0, 2.0], [1.0, 2.0]])[:-3], LATENCY, "bw.csv: must hold 2 × 2 numbers"),
        (npy([[1.0, 2.0], [1.0, 2.0]])[:20], LATENCY, "bw.csv: not a NPY file"),
        (npy([[1.0, 0.0], [1.0, 2.0]]), LATENCY, "bw.csv: row 0, column 1 (from 0): bandwidth must be above 0"),
        (npy(np.ones((3, 3))), LATENCY, "bw.csv: must have 2 rows, one for each name, has 3"),
    ],
    ids=range(25),
)  # fmt: skip
def test_bad_tables_name_the_cell(bandwidth, latency, says):
    assert says in refused(imported, bandwidth, latency)


def test_a_npy_header_that_claims_a_huge_table_is_refused_unread():
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**9)})
    assert "at most 512 rows" in refused(imported, stream.getvalue())


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("id,kind\na,T4\nb,T4\n", "devices.csv: column 'site' is missing; add it"),
        ("id,kind,site,colour\na,T4,X,red\n", "devices.csv: column 'colour' is unknown or there twice"),
        ("id,kind,site\na,T4,X\n", "bw.csv: row 'b' is not among the 1 known; remove it"),
        ("id,kind,site\na,T4,X\nb,T4,\n", "devices.csv: row 3, site: must not be blank"),
        ("id,kind,site\na,T4,X\nb,T4\n", "devices.csv: row 3: must have 3 cells, has 2"),
        ("id,kind,site,latitude\na,T4,X,1\nb,T4,X,2\n", "device 'b', latitude: must be the same in every row of site"),
        ("id,kind,site,latitude\na,T4,X,north\nb,T4,X,\n", "row 2, latitude: must be a number, got 'north'"),
        ("id,kind,site,memory\na,T4,X,16\nb,T4,X,\n", "devices.csv: devices[0].memory: must be a number with one"),
        ("id,kind,site,host\na,T4,X,h\nb,T4,Y,h\n", "devices.csv: devices[1].site: host 'h' is at"),
        ("id,kind,site\na,T4,X\na,T4,X\n", "devices.csv: devices: device 'a' is there 2 times; keep one row of it"),
        ("id,kind,site\n", "devices.csv: must have a row of column names"),
    ],
    ids=range(11),
)  # fmt: skip
def test_bad_device_tables(table, says):
    assert says in refused(imported, devices=upload("devices.csv", table))


def test_what_most_pairs_share_becomes_a_site_link():
    devices = "id,kind,site,host\n" + "".join(f"d{i},T4,{'XY'[i // 4]},h{i // 2}\n" for i in range(8))
    bandwidth = np.full((8, 8), 1.0)
    bandwidth[:4, :4] = bandwidth[4:, 4:] = 10.0
    for h in range(4):
        bandwidth[2 * h : 2 * h + 2, 2 * h : 2 * h + 2] = 100.0
    bandwidth[0, 7] = 0.25
    cluster = cluster_from_device_tables(
        upload("bw.npy", npy(bandwidth)),
        upload("lat.npy", npy(np.ones((8, 8)))),
        devices=upload("devices.csv", devices),
    )
    assert len(cluster.site_links) == 4
    assert len(cluster.host_links) == 4
    assert [(k.from_device, k.to_device) for k in cluster.device_links] == [("d0", "d7")]
    off = ~np.eye(8, dtype=bool)
    np.testing.assert_array_equal(cluster.bandwidth_bytes_per_s_DD[off] / 1.25e8, bandwidth[off])


# -- sites ----------------------------------------------------------------------------------------

SITE_DEVICES = "id,kind,site,host\na,T4,X,h\nb,T4,X,h\nc,T4,Y,\n"
SITE_BANDWIDTH = ",X,Y\nX,5,1\nY,2,\n"
SITE_LATENCY = ",X,Y\nX,1,20\nY,30,\n"
OVERRIDES = (
    "per,from,to,bandwidth,latency\nhost,h,h,100 Gbit/s,0 ms\ndevice,a,c,7 Gbit/s,2 ms\nsite,Y,X,3 Gbit/s,8 ms\n"
)


def sites_imported(bandwidth=SITE_BANDWIDTH, latency=SITE_LATENCY, overrides=OVERRIDES, **options):
    return cluster_from_site_tables(
        upload("bw.csv", bandwidth),
        upload("lat.csv", latency),
        upload("devices.csv", SITE_DEVICES),
        overrides=upload("over.csv", overrides) if overrides else None,
        **options,
    )


def test_site_tables_with_overrides_by_pair():
    cluster = sites_imported()
    gbit_s = cluster.bandwidth_bytes_per_s_DD / 1.25e8
    np.testing.assert_array_equal(gbit_s, [[np.inf, 100, 7], [100, np.inf, 1], [3, 3, np.inf]])
    np.testing.assert_array_equal(cluster.latency_s_DD * 1e3, [[0, 0, 2], [0, 0, 20], [8, 8, 0]])
    np.testing.assert_array_equal(sites_imported(overrides=None).latency_s_DD[2], [0.03, 0.03, 0])


def test_site_round_trips_are_halved_overrides_included():
    np.testing.assert_array_equal(sites_imported(round_trip=True).latency_s_DD, sites_imported().latency_s_DD / 2)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("per,from,to\n", "over.csv: must have the columns per, from, to, bandwidth, latency"),
        ("per,from,to,bandwidth,latency\nhost,h,h,100 Gbit/s\n", "over.csv: row 2: must have 5 cells, has 4"),
        ("per,from,to,bandwidth,latency\nrack,h,h,1 Gbit/s,0 ms\n", "over.csv: overrides[0].per: must be 'site'"),
        ("per,from,to,bandwidth,latency\nhost,h,h,1 Gbps,0 ms\n", "did you mean Gbit/s?"),
        ("per,from,to,bandwidth,latency\nhost,h,c,1 Gbit/s,0 ms\n", "overrides[0]: per host, from and to must be"),
        ("per,from,to,bandwidth,latency\ndevice,a,z,1 Gbit/s,0 ms\n", "device_links[0].to: unknown name 'z'"),
    ],
    ids=range(6),
)  # fmt: skip
def test_bad_overrides(overrides, says):
    assert says in refused(sites_imported, overrides=overrides)


def test_a_site_pair_without_numbers_is_disconnected():
    assert "row 'X', column 'Y'" in refused(sites_imported, ",X,Y\nX,5,\nY,2,\n")
    assert "no link from device 'a' to 'b'" in refused(sites_imported, ",X,Y\nX,,1\nY,2,\n", overrides=None)


def site_json(**changes):
    data = {
        "format": "hetplanner/site-tables@1",
        "name": "two",
        "sites": [{"name": n, "latitude": 0, "longitude": 0} for n in "XY"],
        "devices": [{"id": "x", "count": 2, "kind": "T4", "site": "X"}, {"id": "y", "kind": "T4", "site": "Y"}],
        "bandwidth_gbit_s": [[5, 1], [2, None]],
        "latency_ms": [[1, 20], [30, None]],
        "round_trip": True,
        "source": "measured",
        "overrides": [{"per": "device", "from": "x-0", "to": "y", "bandwidth": "7 Gbit/s", "latency": "2 ms"}],
    } | changes
    return json.dumps(data)


def test_site_tables_in_json():
    cluster = cluster_from_site_json(site_json())
    np.testing.assert_array_equal(cluster.latency_s_DD * 1e3, [[0, 0.5, 1], [0.5, 0, 10], [15, 15, 0]])
    assert cluster.provenance == "Latencies were given as round trips and halved on import."
    assert {k.source for k in cluster.site_links} == {"measured"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bandwidth_gbit_s": [[5, 1]]}, "t.json: bandwidth_gbit_s[0]: must have 1 numbers, as many as rows, has 2"),
        ({"bandwidth_gbit_s": []}, "t.json: bandwidth_gbit_s"),
        ({"bandwidth_gbit_s": [[5]]}, "t.json: bandwidth_gbit_s: must have 2 rows, one for each name, has 1"),
        ({"latency_ms": [[1, -20], [30, 1]]}, "t.json: latency_ms: row 0, column 1 (from 0): latency must be from 0"),
        ({"latency_ms": [[1, None], [30, 1]]}, "t.json: latency_ms: row 0, column 1 (from 0)"),
        ({"bandwidth_gbit_s": [[-5, 1], [1, None]]}, "row 0, column 0 (from 0): bandwidth must be above 0"),
        ({"latency_ms": [[1, "20 ms"], [30, 1]]}, "t.json: latency_ms[0][1]: must be a valid number"),
        ({"colour": 1}, "t.json: colour: unknown field"),
        ({"format": "hetplanner/site-tables@9"}, "upgrade hetplanner"),
    ],
    ids=range(9),
)  # fmt: skip
def test_bad_site_json(changes, says):
    assert says in refused(cluster_from_site_json, site_json(**changes), "t.json")


# -- export ---------------------------------------------------------------------------------------


def read_back(folder, form):
    if form == "site-json":
        return cluster_from_site_json((folder / "site_tables.json").read_bytes())
    return cluster_from_folder(folder)


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv", "site-json"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_survives_every_form(tmp_path, sample, form):
    cluster = load_cluster(sample)
    written = export_tables(cluster, tmp_path / "tables", form)
    again = read_back(tmp_path / "tables", form)
    assert {path.name for path in written} == set(tables_of(cluster, form))
    assert (again.devices, again.hosts, again.sites) == (cluster.devices, cluster.hosts, cluster.sites)
    np.testing.assert_allclose(again.latency_s_DD, cluster.latency_s_DD, rtol=1e-15)
    np.testing.assert_allclose(again.bandwidth_bytes_per_s_DD, cluster.bandwidth_bytes_per_s_DD, rtol=1e-15)


def test_written_numbers_are_the_ones_a_person_wrote(tmp_path):
    files = tables_of(imported())
    assert files["bandwidth_gbit_s.csv"].decode() == ",a,b\na,,1.12\nb,0.5,\n"
    assert files["latency_ms.csv"].decode() == ",a,b\na,,67\nb,40,\n"


def test_a_folder_without_tables(tmp_path):
    assert "bandwidth_gbit_s.csv: no such file" in refused(cluster_from_folder, tmp_path)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(export_tables, imported(), tmp_path / "file" / "x")


def test_a_device_with_every_number_survives(tmp_path):
    device = {
        "id": "a",
        "kind": "mine",
        "host": "h",
        "peak": {"float32": "1 TFLOP/s", "float16": "2 TFLOP/s"},
        "memory": "10 GB",
        "memory_bandwidth": "100 GB/s",
        "efficiency": 0.3,
        "reserve": "1 GB",
        "price_usd_per_hour": 0.25,
    }
    data = {
        "name": "c",
        "sites": [{"name": "s", "latitude": 1.5, "longitude": -2, "egress_usd_per_gb": 0.02}],
        "hosts": [{"id": "h", "site": "s", "nic_out": "1 Gbit/s", "nic_in": "2 Gbit/s"}],
        "devices": [device, {"id": "b", "kind": "T4", "host": "h"}],
        "host_links": [{"host": "h", "latency": "0 ms", "bandwidth": "1 Gbit/s"}],
    }
    cluster = cluster_from_data(data)
    export_tables(cluster, tmp_path)
    again = cluster_from_folder(tmp_path)
    assert (again.devices, again.hosts, again.sites) == (cluster.devices, cluster.hosts, cluster.sites)
