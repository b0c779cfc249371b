"""What is legal in a cluster but hardly meant is said: by validate, on stderr, beside a page's file."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.files import cluster_from_json
from hetplanner.cluster.tables import cluster_from_folder
from hetplanner.cluster.uploads import cluster_from_uploads
from hetplanner.errors import InvalidInput
from hetplanner.reading import noting

SITES = [{"name": name, "latitude": 0, "longitude": i} for i, name in enumerate("AB")]
LINK = {"from": "A", "to": "B", "latency": "67 ms", "bandwidth": "1.12 Gbit/s", "symmetric": True}


def file_of(links=(LINK,), ids=("d0", "d1"), **more):
    devices = [{"id": name, "kind": "T4", "site": site} for name, site in zip(ids, "AB", strict=True)]
    fields = {"format": "hetplanner/cluster@1", "name": "c", "sites": SITES, "devices": devices}
    return json.dumps(fields | {"site_links": list(links)} | more)


def notes_of(text):
    noted: list[str] = []
    with noting(noted.append):
        cluster_from_json(text, "c.json")
    return noted


def test_a_plain_cluster_is_read_without_a_word():
    assert notes_of(file_of()) == []


@pytest.mark.parametrize(
    ("links", "says"),
    [
        (
            [LINK | {"bandwidth": "1.12 GB/s"}],
            "c.json: site_links[0].bandwidth: '1.12 GB/s' is 8.96 Gbit/s; if 1.12 Gbit/s was meant, write that",
        ),
        (
            [LINK | {"latency": "67 s", "symmetric": False}, LINK | {"from": "B", "to": "A"}],
            "c.json: site_links: from 'A' to 'B': a one-way latency of 67 s is more than any link has; if ms were"
            " meant, write 67 ms",
        ),
        (
            [LINK, LINK | {"symmetric": False, "bandwidth": "2 Gbit/s"}],
            "c.json: site_links: the link from 'A' to 'B' is given twice, 1.12 Gbit/s with 67 ms and then 2 Gbit/s with"
            " 67 ms; the later one holds, remove one",
        ),
    ],
)
def test_what_is_hardly_meant_is_said(links, says):
    assert says in notes_of(file_of(links))


def test_a_link_given_twice_with_the_same_numbers_is_no_matter():
    assert notes_of(file_of([LINK, LINK])) == []


def test_of_many_doubts_of_a_kind_the_first_are_named_and_the_others_counted():
    hosts = [{"id": f"h{i}", "site": "A", "nic_out": "1 GB/s"} for i in range(9)]
    noted = notes_of(file_of(hosts=hosts))
    assert len(noted) == 4
    assert noted[-1] == "c.json: 6 more like the last"


def test_names_that_look_alike_are_refused_or_named():
    with pytest.raises(InvalidInput, match=r"hosts\[1\]\.id: 'd\uff10' \('d\\uff10'\) looks like 'd0'; rename one"):
        cluster_from_json(file_of(ids=("d0", "d\uff10")), "c.json")
    said = notes_of(file_of(ids=("da", "d\u0430")))
    assert (
        "c.json: devices: 'd\u0430' mixes Latin and Cyrillic letters, which look alike; write it in one script" in said
    )
    assert notes_of(file_of(ids=("Zürich", "東京"))) == []


def test_tables_are_looked_at_too(tmp_path):
    (tmp_path / "bandwidth_gbit_s.csv").write_text(",a,b\na,,1\nb,1,\n")
    (tmp_path / "latency_ms.csv").write_text(",a,b\na,,67000\nb,5,\n")
    (tmp_path / "devices.csv").write_text("id,kind,site,host,nic_out\na,T4,A,h,1 GB/s\nb,T4,B,g,1 Gbit/s\n")
    noted: list[str] = []
    with noting(noted.append):
        cluster_from_folder(tmp_path)
    assert [text.split(";")[0] for text in noted] == [
        "devices.csv: row 2, nic_out: '1 GB/s' is 8 Gbit/s",
        "latency_ms.csv: site_links: from 'A' to 'B': a one-way latency of 67 s is more than any link has",
    ]


def test_an_override_of_two_sites_replaces_their_link(tmp_path):
    files = {
        "site_bandwidth.csv": b",A,B\nA,1,1\nB,1,1\n",
        "site_latency.csv": b",A,B\nA,1,5\nB,5,1\n",
        "devices.csv": b"id,kind,site\na,T4,A\nb,T4,B\n",
        "overrides.csv": b"per,from,to,bandwidth,latency\nsite,A,B,2 Gbit/s,7 ms\n",
    }
    noted: list[str] = []
    with noting(noted.append):
        cluster = cluster_from_uploads(files)
    assert noted == []
    assert [(k.from_site, k.to_site) for k in cluster.site_links].count(("A", "B")) == 1
    assert cluster.link("a", "b").latency == 0.007


def test_validate_tells_and_lists(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(file_of([LINK | {"bandwidth": "1.12 GB/s"}]))
    assert (
        "warning: c.json: site_links[0].bandwidth" in CliRunner().invoke(app, ["cluster", "validate", str(file)]).stdout
    )
    listed = json.loads(CliRunner().invoke(app, ["cluster", "validate", str(file), "--json"]).stdout)
    assert len(listed["warnings"]) == 1
    file.write_text(file_of())
    assert json.loads(CliRunner().invoke(app, ["cluster", "validate", str(file), "--json"]).stdout)["warnings"] == []


def test_other_commands_warn_on_stderr(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(file_of([LINK | {"bandwidth": "1.12 GB/s"}]))
    command = [sys.executable, "-m", "hetplanner.cli", "cluster", "show", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("hetplanner: warning: c.json: site_links[0].bandwidth: '1.12 GB/s' is 8.96 Gbit/s")
    assert json.loads(done.stdout)["name"] == "c"


def test_no_sample_is_doubted():
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("hetplanner")
    assert spec is not None
    samples = sorted(Path(str(spec.origin)).parents[1].glob("sample_clusters/*.json"))
    assert samples
    for sample in samples:
        assert notes_of(sample.read_text()) == [], sample.name
