"""Clusters and tables in and out of the page: what is read becomes the cluster, what is not is said where it was."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_to_json
from hetplanner.cluster.formats.uploads import cluster_from_uploads
from hetplanner.cluster.link_edits import LinkEnds, remove_link
from hetplanner.ui.cluster.models.exchange import FORMS, MAX_CSV_DEVICES, MAX_PASTED
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import sites_cluster, small_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
JSON = "Cluster file (JSON)"


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard("some-launch-token"), SearchService(), SAMPLES, tmp_path)


def test_an_imported_file_becomes_the_cluster_and_downloads_again(app):
    app.exchange.take_files({"mine.json": cluster_to_json(small_cluster(3)).encode()})
    assert app.exchange.errors == {}
    assert app.cluster.cluster.name == "small"
    assert app.cluster.sample == "(drawn or imported)"
    assert app.plan.cluster is app.cluster.cluster
    app.exchange.take_files({"again.json": app.exchange.download(JSON).getvalue()})
    assert app.cluster.cluster == small_cluster(3)


def test_tables_are_imported_and_round_trips_halved_on_request(app):
    def npy(value: float) -> bytes:
        out = io.BytesIO()
        np.save(out, np.full((4, 4), value))
        return out.getvalue()

    app.exchange.round_trip = True
    app.exchange.take_files({"bandwidth.npy": npy(1.0), "latency.npy": npy(20.0)})
    assert app.exchange.errors == {}
    assert app.cluster.cluster.latency_s_DD[0, 1] == pytest.approx(0.01)
    assert app.cluster.cluster.bandwidth_bytes_per_s_DD[0, 1] == pytest.approx(1.25e8)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"[]"),
        ("a.json", b'{"format":"hetplanner/cluster@99"}'),
        ("a.json", b"\xff\xfe\x00"),
        ("a.json", b"[" * 100_000),
        ("bandwidth.csv", b",a,b\na,1,nan\nb,1,1\n"),
        ("bandwidth.npy", b"\x93NUMPY\x01\x00v\x00garbage"),
        ("<img src=x onerror=alert(1)>.exe", b"MZ"),
        ("bandwidth.npy", b""),
    ],
)
def test_a_bad_upload_is_one_line_and_loses_nothing(app, name, content):
    before = app.cluster.cluster
    app.exchange.take_files({name: content})
    assert list(app.exchange.errors) == ["file"]
    assert app.exchange.errors["file"].isprintable()
    app.exchange.take_text(content.decode("latin-1"))
    assert list(app.exchange.errors) == ["text"]
    assert app.exchange.errors["text"].isprintable()
    assert app.cluster.cluster is before
    assert app.plan.problem().cluster is before


def test_a_pasted_table_changes_the_links_it_names_and_excluded_devices_stay_so(app):
    app.cluster.editor.apply(sites_cluster([1, 1]), "drawn")
    app.cluster.editor.exclude(["d1"], "excluded d1")
    app.exchange.source, app.exchange.kind = "specified", "latency"
    assert app.exchange.take_text("\tsite-0\tsite-1\nsite-0\t\t9\nsite-1\t9\t")
    assert app.cluster.cluster.latency_s_DD[0, 1] == 0.009
    assert app.cluster.cluster.link("d0", "d1").source == "specified"
    assert app.cluster.editor.excluded == ("d1",)
    assert app.cluster.editor.undo_words == "imported sites"
    assert app.exchange.take_text(cluster_to_json(small_cluster(3)))
    assert app.cluster.editor.excluded == ()
    assert not app.exchange.take_text("x" * (MAX_PASTED + 1))
    assert "give it as a file" in app.exchange.errors["text"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_downloaded_and_read_again(app, form):
    app.cluster.editor.apply(sites_cluster([2, 1]), "drawn")
    content = app.exchange.download(form).getvalue()
    name = app.exchange.file_name(form)
    files = {name: content}
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {one: archive.read(one) for one in archive.namelist()}
    again = cluster_from_uploads(files)
    np.testing.assert_allclose(again.latency_s_DD, app.cluster.cluster.latency_s_DD)
    np.testing.assert_allclose(again.bandwidth_bytes_per_s_DD, app.cluster.cluster.bandwidth_bytes_per_s_DD)


def test_only_what_can_be_said_is_offered(app):
    assert app.exchange.forms() == list(FORMS)
    app.cluster.editor.apply(small_cluster(MAX_CSV_DEVICES + 1), "drawn")
    large = ["Devices × devices (CSV)", "Graph (GraphML)", "Graph (node-link JSON)"]
    assert app.exchange.forms() == [form for form in FORMS if form not in large]
    gapped = remove_link(small_cluster(3), LinkEnds("site", "site-0", "site-1"))
    app.cluster.editor.apply(gapped, "drawn")
    assert app.exchange.forms() == [JSON, *large[1:]]
    assert app.exchange.download("Devices × devices (NPY)").getvalue() == b""
    assert "without a link" in app.exchange.errors["download"]
    app.cluster.editor.apply(None, "emptied")
    assert app.exchange.download(JSON).getvalue() == b""


DOUBTFUL = """{"format": "hetplanner/cluster@1", "name": "c", "sites": [{"name": "A", "latitude": 0, "longitude": 0}],
 "devices": [{"id": "d", "kind": "T4", "site": "A"}], "site_links": [{"from": "A", "to": "A", "latency": "1 ms",
 "bandwidth": "1.12 GB/s"}]}"""


def test_what_is_hardly_meant_is_said_beside_what_was_read(app):
    app.exchange.take_files({"c.json": DOUBTFUL.encode()})
    assert app.exchange.errors == {}
    assert "1.12 GB/s" in app.exchange.notes["file"]
    app.exchange.take_text(DOUBTFUL.replace("GB/s", "Gbit/s"))
    assert app.exchange.notes == {"text": ""}


TABLES = {"bandwidth.csv": b",a,b\na,,1\nb,1,\n", "latency.csv": b",a,b\na,,5\nb,5,\n"}
BROKEN = {
    "a device twice": TABLES | {"devices.csv": b"id,kind,site\na,T4,X\na,T4,X\nb,T4,X\n"},
    "an open string as NPY header": {"latency.npy": b"\x93NUMPY\x01\x00\x03\x00" + b"'" * 3},
    "a number of 5,000 digits": {"c.json": b'{"format": "hetplanner/cluster@1", "name": ' + b"9" * 5000 + b"}"},
    "nesting": {"c.json": b"[" * 100_000},
    "no text": {"latency.csv": b"\xff\xfe\x00"},
}


@pytest.mark.parametrize("files", BROKEN.values(), ids=BROKEN)
def test_every_refused_file_is_named_beside_the_button(app, files):
    """A device given twice once ended in an error without words."""
    assert not app.exchange.take_files(files)
    said = app.exchange.errors["file"]
    assert any(name in said for name in files)
    assert len(said) > 20


def test_what_a_tool_printed_is_pasted_with_its_place(app):
    app.cluster.editor.apply(sites_cluster([1, 1]), "drawn")
    app.cluster.editor.exclude(["d1"], "excluded d1")
    app.exchange.first, app.exchange.second = "site-1", "box"
    assert app.exchange.take_text("GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n")
    assert [d.id for d in app.cluster.cluster.devices] == ["d0", "d1", "box-gpu0", "box-gpu1"]
    assert app.cluster.editor.excluded == ("d1",)
    before = app.cluster.cluster
    assert not app.exchange.take_text("GPU 0: Tesla T4 (UUID: GPU-1)")
    assert "is there already" in app.exchange.errors["text"]
    assert app.cluster.cluster is before


def test_a_refusal_of_the_browsers_stands_beside_the_button(app):
    before = app.cluster.cluster
    app.exchange.refuse_files("a file must be …")
    assert app.exchange.errors == {"file": "a file must be …"}
    assert app.cluster.cluster is before
