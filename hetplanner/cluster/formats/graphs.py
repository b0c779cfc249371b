"""Clusters from NetworkX graphs, and as such.

A node is a device if it has a `kind` and no `count`; its other attributes are the columns of `devices.csv` (`site`,
`host`, `latitude`, `memory` … see `device_table`). Without a `site` it has one of its own, called as the node. Any
other node is a site: `kind` and `count` say what stands there, `per_host` how many of them share a host; devices may
name it as their `site`. A node is called by its `label` or `name` where these are unique, else by its key.

An edge is a link between two sites or two devices, both ways in an undirected graph: `bandwidth` and `latency` (one
way) as text with a unit, or the numbers `bandwidth_gbit_s` and `latency_ms`; `known` (measured, specified, assumed)
and `when` say how they are known. What an edge leaves out is assumed from the distance. Other attributes are left
aside, and that is noted.
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from hetplanner.cluster.distance import distance_link
from hetplanner.cluster.formats.device_table import COLUMNS, Inventory, inventory_from_rows, rows_of_inventory
from hetplanner.cluster.formats.table_export import gbit_s_text, ms_text
from hetplanner.cluster.formats.tables import GBIT_S
from hetplanner.cluster.inference import infer_links
from hetplanner.cluster.model import MAX_DEVICES, Cluster, LinkValue, Site, Source
from hetplanner.cluster.plausibility import note_cluster, note_rates, note_twice
from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import note, reader
from hetplanner.schema import checked
from hetplanner.units import parse_bytes_per_s, parse_seconds

if TYPE_CHECKING:
    import networkx as nx

MAX_EDGES = 2 * 512 * 512
DEFAULT_KIND = "CPU generic"
_SITE_ATTRIBUTES = ("kind", "count", "per_host")
_NAMES = ("label", "name")
_OTHER_SPELLINGS = {"Latitude": "latitude", "Longitude": "longitude", "lat": "latitude", "lon": "longitude"}
_EDGE_ATTRIBUTES = ("bandwidth", "bandwidth_gbit_s", "latency", "latency_ms", "known", "when")
_GRAPH_NAME = "name"
Ends = tuple[str, str]


class _Nodes(NamedTuple):
    """What the nodes say: rows of devices, and the names of nodes by what they are."""

    names: dict[Hashable, str]
    rows: list[dict[str, str]]
    devices: set[str]


@reader("graph", name="graph")
def cluster_from_networkx(graph: "nx.Graph", place: str = "graph") -> Cluster:
    """The cluster that a graph draws, as the module says; directed or not; of parallel edges the last one holds.

    Args:
        graph: of NetworkX.
        place: what to call it in messages.

    Raises:
        InvalidInput: a node or an edge that cannot be read, or devices that are cut off.
    """
    if not 0 < graph.number_of_nodes() <= MAX_DEVICES or graph.number_of_edges() > MAX_EDGES:
        raise InvalidInput(
            f"{place}: must have 1 to {MAX_DEVICES} nodes and at most {MAX_EDGES:,} edges, has"
            f" {graph.number_of_nodes():,} and {graph.number_of_edges():,}; draw sites in place of devices"
        )
    nodes = _read_nodes(graph, place)
    inventory = inventory_from_rows(nodes.rows, place)
    links = _links(inventory, nodes, _read_edges(graph, nodes, inventory, place), place)
    title = one_line(" ".join(str(graph.graph.get(_GRAPH_NAME) or "").split()))[:120].strip() or "graph"
    fields = {name: getattr(inventory, name) for name in Inventory.model_fields}
    fields |= {"name": title, "provenance": f"Read from a graph ({place})."}
    cluster = checked(Cluster, fields | {name: tuple(group) for name, group in links.items()}, place)
    note_cluster(cluster, place)
    return cluster


# -- nodes ----------------------------------------------------------------------------------------


def _read_nodes(graph: "nx.Graph", place: str) -> _Nodes:
    names = _node_names(graph)
    strange: set[str] = set()
    read = {names[key]: _attributes(data, strange) for key, data in graph.nodes(data=True)}
    _note_strange(place, "node", strange)
    devices = {name for name, said in read.items() if said.get("kind") and not said.get("count")}
    rows = [_device_row(name, read[name], read, devices) for name in read if name in devices]
    used = {row["site"] for row in rows}
    bare = [name for name in read if name not in devices | used and "kind" not in read[name]]
    if bare:
        note(
            f"{place}: no kind at {bare[0]!r:.60} ({len(bare)} such): {DEFAULT_KIND!r} is assumed, give kind and count"
        )
    for name, said in read.items():
        if name not in devices | used:
            rows += _site_rows(name, said, place, MAX_DEVICES - len(rows))
    return _Nodes(names, rows, devices)


def _node_names(graph: "nx.Graph") -> dict[Hashable, str]:
    keys = {key: str(key) for key in graph.nodes}
    for attribute in _NAMES:
        called = {key: " ".join(str(data.get(attribute) or "").split()) for key, data in graph.nodes(data=True)}
        if all(called.values()) and len(set(called.values())) == len(called):
            return called
    if len(set(keys.values())) < len(keys):
        raise InvalidInput("graph: two nodes have the same name; rename one")
    return keys


def _attributes(data: Mapping[Any, Any], strange: set[str]) -> dict[str, str]:
    """What is known of a node's attributes, as text."""
    said = {}
    for key, value in data.items():
        name = _OTHER_SPELLINGS.get(str(key), str(key))
        if name in COLUMNS or name in _SITE_ATTRIBUTES:
            said[name] = "" if value is None else str(value).strip()
        elif name not in _NAMES:
            strange.add(name)
    return said


def _note_strange(place: str, what: str, strange: set[str]) -> None:
    if strange:
        shown = ", ".join(sorted(strange)[:8])
        note(f"{place}: attributes of {what}s that mean nothing here are left aside: {shown:.200}")


def _device_row(
    name: str, said: Mapping[str, str], read: Mapping[str, Mapping[str, str]], devices: set[str]
) -> dict[str, str]:
    """A device, with what the node of its site says about the place."""
    row = {column: text for column, text in said.items() if column in COLUMNS} | {"id": name}
    row["site"] = row.get("site") or name
    if row["site"] in read and row["site"] not in devices:
        of_site = ("latitude", "longitude", "egress_usd_per_gb", "provider", "region")
        row |= {key: text for key, text in read[row["site"]].items() if key in of_site and not row.get(key)}
    return row


def _site_rows(name: str, said: Mapping[str, str], place: str, room: int) -> list[dict[str, str]]:
    count, per_host = (
        _whole(said.get(key) or "1", f"{place}: {name!r:.60}: {key}", room) for key in ("count", "per_host")
    )
    row = {column: text for column, text in said.items() if column in COLUMNS} | {"site": name}
    row["kind"] = row.get("kind") or DEFAULT_KIND
    if count == per_host == 1:
        return [{"host": name, **row, "id": name}]
    return [row | {"id": f"{name}-{i}", "host": f"{name}-host-{i // per_host}"} for i in range(count)]


def _whole(text: str, place: str, most: int) -> int:
    if not text.isascii() or not text.removesuffix(".0").isdecimal() or len(text) > 12 or not 1 <= float(text) <= most:
        raise InvalidInput(f"{place}: must be a whole number from 1 to {most}, got {text!r:.40}")
    return int(float(text))


# -- edges ----------------------------------------------------------------------------------------


def _read_edges(graph: "nx.Graph", nodes: _Nodes, inventory: Inventory, place: str) -> dict[Ends, dict[str, Any]]:
    """What each direction says: fields of a link by the names of its ends."""
    site_of_host = {host.id: host.site for host in inventory.hosts}
    site_of = {device.id: site_of_host[device.host] for device in inventory.devices if device.id in nodes.devices}
    sites = {site.name: site for site in inventory.sites}
    found: dict[Ends, dict[str, Any]] = {}
    strange: set[str] = set()
    rates: list[tuple[str, Any]] = []
    said: list[tuple[str, str, tuple[float, float]]] = []
    for start, end, data in graph.edges(data=True):
        ends = nodes.names[start], nodes.names[end]
        if (ends[0] in nodes.devices) != (ends[1] in nodes.devices):
            device, site = ends if ends[0] in nodes.devices else ends[::-1]
            raise InvalidInput(
                f"{place}: the edge {ends[0]!r:.60} to {ends[1]!r:.60} joins a device and a site; give the device"
                f" {device!r:.60} the attribute site = {site!r:.60} instead"
            )
        if ends[0] == ends[1] and ends[0] in nodes.devices:
            continue
        strange.update(str(key) for key in data if key not in _EDGE_ATTRIBUTES)
        words = f"{ends[0]!r:.60} to {ends[1]!r:.60}"
        rates += [(f"edge {words}", data.get("bandwidth"))] if ends[0] not in nodes.devices else []
        for a, b in dict.fromkeys((ends,) if graph.is_directed() else (ends, ends[::-1])):
            between = sites.get(site_of.get(a, a)), sites.get(site_of.get(b, b))
            if None in between:
                raise InvalidInput(f"{place}: the site of the edge {a!r:.60} to {b!r:.60} has no device; give it some")
            found[a, b] = _link_fields(data, between, f"{place}: edge {a!r:.60} to {b!r:.60}")
        said.append(("edges", f"from {words}", (found[ends]["latency"], found[ends]["bandwidth"])))
    _note_strange(place, "edge", strange)
    note_rates(rates, place)
    note_twice(said, place)
    return found


def _link_fields(data: Mapping[Any, Any], sites: tuple[Site | None, Site | None], place: str) -> dict[str, Any]:
    latency = _number(data, "latency", "latency_ms", place)
    bandwidth = _number(data, "bandwidth", "bandwidth_gbit_s", place)
    source, when = data.get("known"), data.get("when")
    if source not in (None, *get_args(Source)):
        raise InvalidInput(f"{place}: known must be one of {', '.join(get_args(Source))}, got {source!r:.40}")
    if latency is not None and bandwidth is not None:
        known: dict[str, Any] = {"source": source or "specified", "when": when if isinstance(when, str) else None}
        return _checked(known | {"latency": latency, "bandwidth": bandwidth}, place)
    assert sites[0] is not None  # the caller has looked
    assert sites[1] is not None
    rest = distance_link(sites[0], sites[1])
    latency = rest.latency if latency is None else latency
    bandwidth = rest.bandwidth if bandwidth is None else bandwidth
    return _checked({"latency": latency, "bandwidth": bandwidth, "source": "assumed", "when": rest.when}, place)


def _checked(fields: dict[str, Any], place: str) -> dict[str, Any]:
    checked(LinkValue, fields, place)
    return fields


def _number(data: Mapping[Any, Any], text: str, number: str, place: str) -> float | None:
    """SI value of an attribute with a unit, or of the number in the unit that its name says."""
    try:
        if data.get(text) not in (None, ""):
            return parse_seconds(data[text]) if text == "latency" else parse_bytes_per_s(data[text])
        if data.get(number) in (None, ""):
            return None
        value = float(data[number])
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {text} {error}, or give {number} as a number") from None
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput(f"{place}: {number} must be a number, got {data[number]!r:.40}") from None
    return value / 1000 if text == "latency" else value * GBIT_S


# -- links ----------------------------------------------------------------------------------------


def _links(
    inventory: Inventory, nodes: _Nodes, edges: Mapping[Ends, Mapping[str, Any]], place: str
) -> dict[str, list[Any]]:
    of_devices = {ends: link for ends, link in edges.items() if ends[0] in nodes.devices}
    count = len(inventory.devices)
    if len(of_devices) == count * (count - 1) > 0:
        return dict(_inferred(inventory, of_devices))
    of_sites = {ends: link for ends, link in edges.items() if ends not in of_devices}
    inside = [distance_link(site, site) for site in inventory.sites if (site.name, site.name) not in of_sites]
    joined = {frozenset(ends) for ends in edges if ends[0] != ends[1]}
    ends = len(inventory.sites) if not of_devices else count
    if len(joined) < ends * (ends - 1) // 2 and ends > 1:
        note(f"{place}: pairs without an edge have no link, so plans do not let them talk to each other")
    return {
        "site_links": [*inside, *({"from": a, "to": b} | dict(link) for (a, b), link in of_sites.items())],
        "device_links": [{"from": a, "to": b} | dict(link) for (a, b), link in of_devices.items()],
    }


def _inferred(inventory: Inventory, edges: Mapping[Ends, Mapping[str, Any]]) -> dict[str, list[LinkValue]]:
    """Few links that say what the edges of all pairs of devices say."""
    row = {device.id: i for i, device in enumerate(inventory.devices)}
    latency_s_DD, bandwidth_DD = np.zeros((len(row), len(row))), np.full((len(row), len(row)), np.inf)
    for (a, b), link in edges.items():
        latency_s_DD[row[a], row[b]], bandwidth_DD[row[a], row[b]] = link["latency"], link["bandwidth"]
    sources = {link["source"] for link in edges.values()}
    return infer_links(
        inventory,
        latency_s_DD=latency_s_DD,
        bandwidth_bytes_per_s_DD=bandwidth_DD,
        source=sources.pop() if len(sources) == 1 else "assumed",
        when=None,
    )


# -- out ------------------------------------------------------------------------------------------


def cluster_to_networkx(cluster: Cluster) -> "nx.DiGraph":
    """Every device as a node with the columns of `devices.csv`, every link of two devices as an edge.

    Edges say `bandwidth_gbit_s`, `latency_ms` (one way) and `known`. Sites without a device are lost.
    """
    import networkx as nx

    graph = nx.DiGraph(name=cluster.name)
    for row in rows_of_inventory(cluster):
        graph.add_node(row.pop("id"), **row)
    said = [
        {
            "bandwidth_gbit_s": float(gbit_s_text(k.bandwidth)),
            "latency_ms": float(ms_text(k.latency)),
            "known": k.source,
        }
        for k in cluster.links
    ]
    for a, b in np.argwhere(cluster.link_index_DD >= 0).tolist():
        graph.add_edge(cluster.device_ids[a], cluster.device_ids[b], **said[cluster.link_index_DD[a, b]])
    return graph
