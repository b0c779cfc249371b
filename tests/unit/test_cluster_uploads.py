from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.files import cluster_to_json, load_cluster
from hetplanner.cluster.table_export import tables_of
from hetplanner.cluster.uploads import cluster_from_uploads
from hetplanner.errors import InvalidInput

CAMPUS = load_cluster(Path(__file__).parents[2] / "sample_clusters" / "campus_3_sites_6.json")


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
    assert halved.name == "my BW"


def test_unclear_missing_and_doubled_files():
    files = tables_of(CAMPUS)
    bandwidth = files["bandwidth_gbit_s.csv"]
    assert "no file was given" in refused({})
    assert "no latency table was given" in refused({"bandwidth.csv": bandwidth})
    assert "a second bandwidth table" in refused({"bandwidth.csv": bandwidth, "bw.csv": bandwidth})
    assert "a\\nb.txt: the name must say" in refused({"a\nb.txt": b""})
    assert "imported alone" in refused({"a.json": b"{}", "bw.csv": bandwidth})
    assert "a.json: format: required field" in refused({"a.json": b"{}"})
