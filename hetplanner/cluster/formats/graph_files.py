"""Graphs of clusters as files: GraphML, and the node-link JSON of NetworkX and D3.

GraphML is XML, and files come from strangers: no document type, so no entity, is read, and size, depth and number of
elements are bounded before NetworkX sees the file.
"""

import io
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError

from hetplanner.cluster.formats.cluster_files import json_by_lines
from hetplanner.cluster.formats.graphs import MAX_EDGES, cluster_from_networkx, cluster_to_networkx
from hetplanner.cluster.model import MAX_DEVICES, Cluster
from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import DAMAGED, reader
from hetplanner.schema import MAX_DEPTH
from hetplanner.units import short_bytes

if TYPE_CHECKING:
    import networkx as nx

MAX_GRAPH_BYTES = 64 * 2**20
MAX_TAG_BYTES = 100_000
MAX_OTHERS = 32
"""Elements beside nodes and edges, for each of these."""
_MOST = {"node": MAX_DEVICES, "edge": MAX_EDGES}
_LISTS = ("edges", "links")


def is_node_link(data: object) -> bool:
    """Whether JSON data is a graph in node-link form."""
    return isinstance(data, Mapping) and isinstance(data.get("nodes"), list) and any(name in data for name in _LISTS)


@reader("graph (node-link JSON)", at="place")
def cluster_from_node_link(data: object, place: str = "graph") -> Cluster:
    """A cluster from the data of a node-link JSON file (`nodes`, and `edges` or `links`). Raises InvalidInput."""
    import networkx as nx

    assert isinstance(data, Mapping)  # told by `is_node_link`
    nodes, edges = data["nodes"], next(data[name] for name in _LISTS if name in data)
    about = data.get("graph")
    graph = nx.MultiDiGraph() if data.get("directed") else nx.MultiGraph()
    if isinstance(about, Mapping):
        graph.graph["name"] = about.get("name")
    _check_entries(nodes, "nodes", ("id",), MAX_DEVICES, place)
    _check_entries(edges, "edges", ("source", "target"), MAX_EDGES, place)
    for i, node in enumerate(nodes):
        if node["id"] in graph:
            raise InvalidInput(f"{place}: nodes[{i}].id: {node['id']!r:.60} is there twice; rename one")
        graph.add_node(node["id"], **{key: value for key, value in node.items() if key != "id"})
    for i, edge in enumerate(edges):
        for end in ("source", "target"):
            if edge[end] not in graph:
                raise InvalidInput(f"{place}: edges[{i}].{end}: there is no node {edge[end]!r:.60}; correct the name")
        said = {key: value for key, value in edge.items() if key not in ("source", "target", "key")}
        key = graph.add_edge(edge["source"], edge["target"])
        graph.edges[edge["source"], edge["target"], key].update(said)
    return cluster_from_networkx(graph, place)


def _check_entries(entries: object, name: str, needed: tuple[str, ...], most: int, place: str) -> None:
    if not isinstance(entries, list) or len(entries) > most:
        raise InvalidInput(f"{place}: {name}: must be a list of at most {most:,} entries")
    for i, entry in enumerate(entries):
        for key in needed:
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str | int) or entry[key] == "":
                raise InvalidInput(f"{place}: {name}[{i}].{key}: must be a name or a number; give one")


def node_link_json(cluster: Cluster) -> str:
    """The text of a node-link JSON file."""
    graph = cluster_to_networkx(cluster)
    data = {
        "directed": True,
        "multigraph": False,
        "graph": {"name": cluster.name},
        "nodes": [{"id": key} | said for key, said in graph.nodes(data=True)],
        "edges": [{"source": a, "target": b} | said for a, b, said in graph.edges(data=True)],
    }
    return json_by_lines(data)


@reader("graph (GraphML)", at="place")
def cluster_from_graphml(content: bytes, place: str = "graph") -> Cluster:
    """A cluster from the bytes of a GraphML file. Raises InvalidInput."""
    return cluster_from_networkx(_parsed(content, place), place)


def _parsed(content: bytes, place: str) -> "nx.Graph":
    import networkx as nx

    _check_xml(content, place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys without a type, which are read as text
            graph = nx.read_graphml(io.BytesIO(content))
    except (nx.NetworkXError, ParseError, *DAMAGED) as error:
        said = one_line(str(error))[:160]
        raise InvalidInput(f"{place}: not GraphML that can be read ({said}); write plain nodes and edges") from None
    return graph


def _check_xml(content: bytes, place: str) -> None:
    """Refuses what is large, deep, or has a document type, before the whole tree is built."""
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    if len(content) > MAX_GRAPH_BYTES:
        raise InvalidInput(f"{place}: must be at most {short_bytes(MAX_GRAPH_BYTES)}, got {short_bytes(len(content))}")
    if not content.strip():
        raise InvalidInput(f"{place}: the file is empty; it must hold a graph in GraphML")
    if re.search(rb"<[^<>]{%d}" % MAX_TAG_BYTES, content):
        raise InvalidInput(f"{place}: has a tag of more than {short_bytes(MAX_TAG_BYTES)}; write plain nodes and edges")
    depth, count = 0, Counter[str]()
    try:
        for event, element in iterparse(io.BytesIO(content), ("start", "end"), forbid_dtd=True):
            depth += 1 if event == "start" else -1
            if depth > MAX_DEPTH:
                raise InvalidInput(f"{place}: must be nested at most {MAX_DEPTH} deep; is this a graph?")
            if event == "start":
                _count_element(count, element.tag, place)
            if event == "end":
                element.clear()
    except DefusedXmlException:
        raise InvalidInput(
            f"{place}: has a document type or entities, which are not read; remove <!DOCTYPE …>"
        ) from None
    except ParseError as error:
        raise InvalidInput(f"{place}: not XML: {one_line(str(error))}; write the GraphML file again") from None
    except InvalidInput:
        raise
    except (ValueError, LookupError) as error:  # an unknown encoding
        raise InvalidInput(
            f"{place}: not XML that can be read: {one_line(str(error))[:160]}; save it as UTF-8"
        ) from None


def _count_element(count: Counter[str], tag: str, place: str) -> None:
    kind = tag.rpartition("}")[2]
    kind = kind if kind in _MOST else "other"
    count[kind] += 1
    drawn = count["node"] + count["edge"]
    if count[kind] > _MOST.get(kind, MAX_OTHERS * (1 + drawn) + 1000):
        most = ", ".join(f"{number:,} {name}s" for name, number in _MOST.items())
        raise InvalidInput(
            f"{place}: has {drawn:,} nodes and edges and {count['other']:,} other elements; a graph has at most {most},"
            " draw sites in place of devices"
        )


def graphml_text(cluster: Cluster) -> str:
    """The text of a GraphML file."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(cluster_to_networkx(cluster))) + "\n"
