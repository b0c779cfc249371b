"""Graphs and clusters: what an attribute means, files of graphs, and XML that is no graph."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import hetplanner as hp
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.formats.graph_files import cluster_from_graphml, graphml_text, node_link_json
from hetplanner.cluster.formats.uploads import cluster_from_any_json, cluster_from_uploads, files_from_text
from hetplanner.cluster.link_edits import LinkEnds, remove_link
from hetplanner.errors import InvalidInput
from hetplanner.reading import noting
from tests.support.plans.factories import sites_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"


@pytest.mark.parametrize("name", ["lab_2_sites_4", "campus_3_sites_6", "aws_10_regions", "dtfm_2_spot"])
def test_a_cluster_comes_back_from_its_graph_and_from_both_files(name):
    cluster = load_cluster(SAMPLES / f"{name}.json")
    for again in (
        hp.cluster_from_networkx(hp.cluster_to_networkx(cluster)),
        hp.cluster_from_networkx(
            nx.node_link_graph(nx.node_link_data(hp.cluster_to_networkx(cluster), edges="edges"), edges="edges")
        ),
        cluster_from_graphml(graphml_text(cluster).encode()),
        cluster_from_any_json(node_link_json(cluster), "graph.json"),
    ):
        assert again.name == cluster.name
        assert again.devices == cluster.devices
        assert {s.name for s in again.sites} == {s.name for s in cluster.sites}
        np.testing.assert_array_equal(again.latency_s_DD, cluster.latency_s_DD)
        np.testing.assert_allclose(again.bandwidth_bytes_per_s_DD, cluster.bandwidth_bytes_per_s_DD, rtol=1e-15)


def test_a_graph_in_place_of_a_cluster_file_names_the_command_that_converts_it(tmp_path):
    graph = tmp_path / "lab.graphml"
    graph.write_text(graphml_text(load_cluster(SAMPLES / "lab_2_sites_4.json")))
    with pytest.raises(InvalidInput, match=r"^lab.graphml: is XML .*'hetplanner cluster convert lab.graphml -o"):
        load_cluster(graph)


def test_a_graph_with_gaps_keeps_them():
    chain = sites_cluster([1, 2, 1])
    chain = remove_link(chain, LinkEnds("site", "site-0", "site-2"))
    again = hp.cluster_from_networkx(hp.cluster_to_networkx(chain))
    np.testing.assert_array_equal(again.latency_s_DD, chain.latency_s_DD)


def test_nodes_without_a_kind_are_sites_that_stand_where_their_names_say():
    graph = nx.Graph(name="drawn by hand")
    graph.add_node("Frankfurt", kind="A100-80", count=4, per_host=2, colour="red")
    graph.add_node("Oregon")
    graph.add_node("mine", kind="T4", site="Oregon")
    graph.add_edge("Frankfurt", "Oregon", bandwidth="2 Gbit/s", latency_ms=70)
    noted: list[str] = []
    with noting(noted.append):
        cluster = hp.cluster_from_networkx(graph)
    assert cluster.name == "drawn by hand"
    assert {d.id: (d.kind, cluster.site_of(d.id).name) for d in cluster.devices} == {
        **{f"Frankfurt-{i}": ("A100-80", "Frankfurt") for i in range(4)},
        "mine": ("T4", "Oregon"),
    }
    assert len(cluster.hosts) == 3
    assert round(cluster.site_of("mine").latitude) == 46
    link = cluster.link("mine", "Frankfurt-0")
    assert (link.bandwidth, link.latency, link.source) == (2.5e8, 0.07, "specified")
    assert any("colour" in text for text in noted)


def test_what_an_edge_leaves_out_is_assumed_from_the_distance():
    graph = nx.Graph([("Frankfurt", "Tokyo")])
    link = hp.cluster_from_networkx(graph).link("Frankfurt", "Tokyo")
    assert link.source == "assumed"
    assert 0.05 < link.latency < 0.15


def test_parallel_edges_and_labels_of_a_topology_from_elsewhere():
    text = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
     <key id="a" for="node" attr.name="label" attr.type="string"/>
     <key id="b" for="node" attr.name="Latitude" attr.type="double"/>
     <key id="c" for="node" attr.name="Longitude" attr.type="double"/>
     <graph edgedefault="undirected">
      <node id="0"><data key="a">Vienna</data><data key="b">48.2</data><data key="c">16.4</data></node>
      <node id="1"><data key="a">Nowhere at all</data><data key="b">1.5</data><data key="c">-2</data></node>
      <edge id="e0" source="0" target="1"/><edge id="e1" source="0" target="1"/>
     </graph></graphml>"""
    cluster = cluster_from_uploads(files_from_text(text))
    assert {s.name: s.latitude for s in cluster.sites} == {"Vienna": 48.2, "Nowhere at all": 1.5}


LAUGHS = b"""<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"><node id="&c;"/>
</graph></graphml>"""
OUTSIDE = b"""<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><graphml>&a;</graphml>"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LAUGHS, "document type or entities"),
        (OUTSIDE, "document type or entities"),
        (b"<a>" * 2000, "nested at most"),
        (b"<graphml", "not XML"),
        (b"", "is empty"),
        (b"<html><body/></html>", "not GraphML"),
        (b"<graphml><graph>" + b"<a/>" * 5_000, "0 nodes and edges and 1,033 other elements"),
        (b"<graphml><graph>" + b"<node/>" * 5_000, "a graph has at most 4,096 nodes"),
        (b"<graphml " + b" ".join(b'a%d=""' % i for i in range(20_000)) + b"/>", "has a tag of more than 100 kB"),
        (b'<?xml version="1.0" encoding="nope"?><graphml/>', "not XML"),
        (
            b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"/></graphml>',
            "1 to 4096 nodes",
        ),
    ],
)
def test_xml_from_strangers(content, words):
    with pytest.raises(InvalidInput, match=r"x\.graphml: ") as caught:
        cluster_from_uploads({"x.graphml": content})
    assert words in str(caught.value)
    assert str(caught.value).count("x.graphml") == 1
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("nodes", "edges", "words"),
    [
        ([{"id": "a", "kind": "T4"}, {"id": "a", "kind": "T4"}], [], "is there twice"),
        ([{"id": "a"}], [{"source": "a", "target": "b"}], "there is no node 'b'"),
        ([{"kind": "T4"}], [], "nodes[0].id"),
        ([{"id": "a", "count": 10**6}], [], "count: must be a whole number from 1 to 4096"),
        (
            [{"id": "a"}, {"id": "b"}],
            [{"source": "a", "target": "b", "latency": 5}],
            "latency must be a string with a unit",
        ),
        ([{"id": "a"}, {"id": "b"}], [{"source": "a", "target": "b", "bandwidth_gbit_s": -1}], "must be above 0"),
        ([{"id": "a"}, {"id": "b"}], [], "disconnected"),
        (
            [{"id": "a", "kind": "T4", "site": "b"}, {"id": "b"}],
            [{"source": "a", "target": "b"}],
            "joins a device and a site",
        ),
        ([{"id": "a", "kind": "T4", "memory": "much"}], [], "memory"),
    ],
)
def test_graphs_that_cannot_be_clusters(nodes, edges, words):
    with pytest.raises(InvalidInput) as caught:
        cluster_from_any_json(json.dumps({"nodes": nodes, "links": edges}), "g.json")
    assert words in str(caught.value)
    assert str(caught.value).startswith("g.json: ")
