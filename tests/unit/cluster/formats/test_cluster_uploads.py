from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json, load_cluster
from hetplanner.cluster.formats.table_export import tables_of
from hetplanner.cluster.formats.uploads import cluster_from_uploads, files_from_text
from hetplanner.errors import InvalidInput
from hetplanner.reading import noting
from tests.support.plans.factories import sites_cluster

CAMPUS = load_cluster(Path(__file__).parents[4] / "sample_clusters" / "campus_3_sites_6.json")


def refused(files, **options) -> str:
    with pytest.raises(InvalidInput) as caught:
        cluster_from_uploads(files, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv", "site-json"])
def test_what_is_exported_can_be_handed_back(form):
    again = cluster_from_uploads(tables_of(CAMPUS, form))
    assert again.devices == CAMPUS.devices
    np.testing.assert_allclose(again.latency_s_DD, CAMPUS.latency_s_DD, rtol=1e-15)


def test_a_cluster_file():
    assert cluster_from_uploads({"Mine.JSON": cluster_to_json(CAMPUS).encode()}) == CAMPUS


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv"])
def test_the_cluster_at_hand_lends_its_devices(form):
    files = {name: content for name, content in tables_of(CAMPUS, form).items() if "devices" not in name}
    assert cluster_from_uploads(files, like=CAMPUS).sites == CAMPUS.sites
    smaller = CAMPUS.subset(CAMPUS.device_ids[:2])
    if form == "site-csv":
        assert "is not among the 1 known" in refused(files, like=smaller)
        assert "site tables need a devices table" in refused(files)
    else:
        assert [site.name for site in cluster_from_uploads(files, like=smaller).sites] == ["imported"]


def test_names_may_be_a_persons_own_and_round_trips_are_halved():
    files = tables_of(CAMPUS)
    own = {"my BW.csv": files["bandwidth_gbit_s.csv"], "ping rtt.csv": files["latency_ms.csv"]}
    halved = cluster_from_uploads(own, like=CAMPUS, round_trip=True)
    np.testing.assert_allclose(halved.latency_s_DD * 2, CAMPUS.latency_s_DD)
    assert halved.name == CAMPUS.name  # they go onto the current cluster
    assert cluster_from_uploads(own).name == "my BW"


def test_unclear_missing_and_doubled_files():
    files = tables_of(CAMPUS)
    bandwidth = files["bandwidth_gbit_s.csv"]
    assert "no file was given" in refused({})
    assert "no latency table was given" in refused({"bandwidth.csv": bandwidth})
    assert "a second bandwidth table" in refused({"bandwidth.csv": bandwidth, "bw.csv": bandwidth})
    assert "a\\nb.txt: the name must say" in refused({"a\nb.txt": b""})
    assert "save the sheet as CSV" in refused({"all.xlsx": b"PK"})
    assert "imported alone" in refused({"a.json": b"{}", "bw.csv": bandwidth})
    assert "a.json: format: required field" in refused({"a.json": b"{}"})


def pasted(text: str, like=CAMPUS, kind="bandwidth", **options):
    return cluster_from_uploads(files_from_text(text, kind), like=like, **options)


def site_table(text_of) -> str:
    names = [site.name for site in CAMPUS.sites]
    return "\n".join(["\t".join(["", *names]), *("\t".join([a, *(text_of(a, b) for b in names)]) for a in names)])


def test_one_table_of_sites_changes_just_that_and_says_so():
    after = pasted(site_table(lambda a, b: "" if a == b else "3"))
    assert (after.devices, after.name) == (CAMPUS.devices, CAMPUS.name)
    between = [k for k in after.site_links if k.from_site != k.to_site]
    assert {k.bandwidth for k in between} == {3e9 / 8}
    np.testing.assert_array_equal(after.latency_s_DD, CAMPUS.latency_s_DD)
    assert all(k.replaces for k in between)
    assert [k for k in after.site_links if k.from_site == k.to_site] == [
        k for k in CAMPUS.site_links if k.from_site == k.to_site
    ]
    # The latency was not measured with it.
    before = {(k.from_site, k.to_site): k.source for k in CAMPUS.site_links}
    assert {k.source for k in between} == {before[k.from_site, k.to_site] for k in between}
    known = pasted(site_table(lambda a, b: "3"), source="specified")
    assert {k.source for k in known.site_links} == {"specified"}


def test_a_round_trip_is_halved_in_a_single_table_too():
    after = pasted(site_table(lambda a, b: "3,5").replace("\t", ";"), kind="latency", round_trip=True)
    assert {k.latency for k in after.site_links} == {0.00175}


def test_one_table_of_devices_changes_just_that():
    files = tables_of(CAMPUS)
    doubled = {"bw.csv": files["bandwidth_gbit_s.csv"]}
    assert (
        cluster_from_uploads(doubled, like=CAMPUS).bandwidth_bytes_per_s_DD == CAMPUS.bandwidth_bytes_per_s_DD
    ).all()
    npy = tables_of(CAMPUS, "npy")["latency_ms.npy"]
    after = cluster_from_uploads({"rtt.npy": npy}, like=CAMPUS, round_trip=True)
    np.testing.assert_allclose(after.latency_s_DD * 2, CAMPUS.latency_s_DD)
    np.testing.assert_array_equal(after.bandwidth_bytes_per_s_DD, CAMPUS.bandwidth_bytes_per_s_DD)


def test_pasted_overrides_are_laid_onto_the_cluster():
    a, b = CAMPUS.device_ids[0], CAMPUS.device_ids[-1]
    after = pasted(f"per,from,to,bandwidth,latency\ndevice,{a},{b},2 Gbit/s,1 s")
    assert after.link(a, b).latency == 1
    assert after.link(b, a) == CAMPUS.link(b, a)
    with pytest.raises(InvalidInput, match="there is no device 'Mars'"):
        pasted(f"per,from,to,bandwidth,latency\ndevice,{a},Mars,2 Gbit/s,1 s")


def test_site_tables_are_known_by_the_names_in_them():
    files = tables_of(CAMPUS, "site-csv")
    own = {"bw.csv": files["site_bandwidth_gbit_s.csv"], "rtt.csv": files["site_latency_ms.csv"]}
    after = cluster_from_uploads(own, like=CAMPUS)
    assert {(k.from_site, k.to_site) for k in after.site_links} == {(k.from_site, k.to_site) for k in CAMPUS.site_links}


def test_tables_of_some_sites_or_devices_change_just_those_and_spelling_is_forgiven():
    text = cluster_to_json(sites_cluster([2, 1, 1]))
    like = cluster_from_json(text.replace("site-0", "Frankfurt").replace("site-1", "Oregon"))
    files = {
        "bw.csv": b",frankfurt,us-west-2\nfrankfurt,,3\nus-west-2,4,\n",
        "rtt.csv": b",frankfurt,us-west-2\nfrankfurt,,30\nus-west-2,40,\n",
    }
    after = cluster_from_uploads(files, like=like)
    assert (after.devices, after.name) == (like.devices, like.name)
    changed = {(k.from_site, k.to_site): (k.bandwidth, k.latency) for k in after.site_links if k not in like.site_links}
    assert changed == {("Frankfurt", "Oregon"): (3e9 / 8, 0.03), ("Oregon", "Frankfurt"): (4e9 / 8, 0.04)}
    devices = {"bw.csv": b",d0,d1\nd0,,1\nd1,2,\n", "rtt.csv": b",d0,d1\nd0,,5\nd1,6,\n"}
    after = cluster_from_uploads(devices, like=like)
    assert after.site_links == like.site_links
    assert {(k.from_device, k.to_device, k.latency) for k in after.device_links} == {
        ("d0", "d1", 0.005),
        ("d1", "d0", 0.006),
    }


def test_names_of_cities_find_their_places():
    table = b",Frankfurt,Oregon-1,Oregon-2,lab\n" + b"".join(
        b"%s,1,1,1,1\n" % n for n in (b"Frankfurt", b"Oregon-1", b"Oregon-2", b"lab")
    )
    noted: list[str] = []
    with noting(noted.append):
        cluster = cluster_from_uploads({"bw.csv": table, "rtt.csv": table}, like=CAMPUS)
    assert [cluster.site_of(d).name for d in cluster.device_ids] == ["Frankfurt", "Oregon", "Oregon", "imported"]
    frankfurt = next(s for s in cluster.sites if s.name == "Frankfurt")
    assert (round(frankfurt.latitude), round(frankfurt.longitude)) == (50, 9)
    assert any("'lab' is no place in the list: 1 of 4 names" in text for text in noted)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing was pasted"),
        (" \n ", "nothing was pasted"),
        ("hello", "must have a row of names and a row for each"),
        ('{"format": 1', "pasted.json:1: not JSON"),
        ("[1]", "must be a JSON object"),
        (",x,y\nx,1,2\ny,3,4", "row 'x' is no site and no device of campus"),
        ("id,kind,site\na,T4,here", "no bandwidth table was given"),
        ("\t".join(["", *(s.name for s in CAMPUS.sites)]) + "\n" + "x" * 50, "must be square"),
        ('"unended', "pasted bandwidth.csv"),
        ("x" * 200_000 + ",y", "cannot be read as a table"),
    ],
)
def test_what_was_pasted_and_cannot_be_read(text, why):
    with pytest.raises(InvalidInput) as caught:
        pasted(text)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()
