"""What is legal in a cluster but hardly meant is said: by validate, on stderr, beside a page's file."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.formats.cluster_files import cluster_from_json
from hetplanner.cluster.formats.tables import cluster_from_folder
from hetplanner.cluster.formats.uploads import cluster_from_uploads
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


SITE_TABLES = {
    "site_bandwidth.csv": b",A,B\nA,1,1\nB,1,1\n",
    "site_latency.csv": b",A,B\nA,1,5\nB,5,1\n",
    "devices.csv": b"id,kind,site\na,T4,A\nb,T4,B\n",
}
OVERRIDES = (
    b"per,from,to,bandwidth,latency\nsite,A,B,2 Gbit/s,7 ms\nsite,A,B,3 GB/s,7 ms\ndevice,a,b,1 GB/s,1 ms\n"
    b"device,a,b,2 GB/s,1 ms\ndevice,a,b,2 GB/s,1 ms\n"
)
ON_OVERRIDES = [
    "overrides.csv: row 3: '3 GB/s' is 24 Gbit/s; if 3 Gbit/s was meant, write that",
    "overrides.csv: site overrides: the link from 'A' to 'B' is given twice, 2 Gbit/s with 7 ms and then 24 Gbit/s"
    " with 7 ms; the later one holds, remove one",
    "overrides.csv: device overrides: the link from 'a' to 'b' is given twice, 8 Gbit/s with 1 ms and then 16 Gbit/s"
    " with 1 ms; the later one holds, remove one",
]


def notes_of_uploads(files, like=None):
    noted: list[str] = []
    with noting(noted.append):
        cluster = cluster_from_uploads(files, like=like)
    return cluster, noted


def test_overrides_are_looked_at_in_new_clusters_and_over_one_in_hand():
    cluster, noted = notes_of_uploads(SITE_TABLES | {"overrides.csv": OVERRIDES})
    assert noted == ON_OVERRIDES
    assert len(cluster.device_links) == 1
    assert notes_of_uploads({"overrides.csv": OVERRIDES}, cluster)[1] == ON_OVERRIDES


def test_tables_over_a_cluster_are_doubted_for_what_they_change():
    before, _ = notes_of_uploads(SITE_TABLES)
    slowed, noted = notes_of_uploads({"site_latency.csv": b",A,B\nA,1,67000\nB,5,1\n"}, before)
    assert [text.split(";")[0] for text in noted] == [
        "site_latency.csv: site_links: from 'A' to 'B': a one-way latency of 67 s is more than any link has"
    ]
    assert notes_of_uploads({"site_latency.csv": b",A,B\nA,1,67000\nB,6,1\n"}, slowed)[1] == []


def test_overrides_of_a_site_tables_file_are_looked_at():
    tables = {
        "format": "hetplanner/site-tables@1",
        "name": "two",
        "sites": SITES,
        "devices": [{"id": name, "kind": "T4", "site": name} for name in "AB"],
        "bandwidth_gbit_s": [[1, 1], [1, 1]],
        "latency_ms": [[1, 5], [5, 1]],
        "overrides": [
            {"per": "site", "from": "A", "to": "B", "bandwidth": bandwidth, "latency": "5 ms"}
            for bandwidth in ("2 Gbit/s", "1 GB/s")
        ],
    }
    _, noted = notes_of_uploads({"t.json": json.dumps(tables).encode()})
    assert [text.split(",")[0] for text in noted] == [
        "t.json: overrides[1].bandwidth: '1 GB/s' is 8 Gbit/s; if 1 Gbit/s was meant",
        "t.json: site overrides: the link from 'A' to 'B' is given twice",
    ]


GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
 <key id="b" for="edge" attr.name="bandwidth" attr.type="string"/>
 <key id="l" for="edge" attr.name="latency" attr.type="string"/>
 <graph edgedefault="undirected"><node id="Oslo"/><node id="Rome"/>
 <edge source="Oslo" target="Rome"><data key="b">1 Gbit/s</data><data key="l">20 ms</data></edge>
 <edge source="Rome" target="Oslo"><data key="b">1 GB/s</data><data key="l">67 s</data></edge></graph></graphml>"""
EDGES = [
    {"source": "Oslo", "target": "Rome", "bandwidth": "1 Gbit/s", "latency": "20 ms"},
    {"source": "Rome", "target": "Oslo", "bandwidth": "1 GB/s", "latency": "67 s"},
]
NODE_LINK = json.dumps({"nodes": [{"id": "Oslo"}, {"id": "Rome"}], "links": EDGES})


@pytest.mark.parametrize(("name", "text"), [("g.graphml", GRAPHML), ("g.json", NODE_LINK)])
def test_edges_of_graphs_are_looked_at(name, text):
    cluster, noted = notes_of_uploads({name: text.encode()})
    assert cluster.link("Oslo", "Rome").latency == cluster.link("Rome", "Oslo").latency == 67
    assert noted[1:] == [
        f"{name}: edge 'Oslo' to 'Rome': '1 GB/s' is 8 Gbit/s; if 1 Gbit/s was meant, write that",
        f"{name}: edges: the link from 'Oslo' to 'Rome' is given twice, 1 Gbit/s with 20 ms and then 8 Gbit/s with"
        " 67 s; the later one holds, remove one",
        *(
            f"{name}: site_links: from {a!r} to {b!r}: a one-way latency of 67 s is more than any link has; if ms were"
            " meant, write 67 ms"
            for a, b in (("Oslo", "Rome"), ("Rome", "Oslo"))
        ),
    ]


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
