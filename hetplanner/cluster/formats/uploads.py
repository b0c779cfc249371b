"""A cluster from files that a person hands over together: what each is, is told by its name."""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import PurePath

from hetplanner.cluster.formats.cluster_files import cluster_from_json
from hetplanner.cluster.formats.graph_files import cluster_from_graphml, cluster_from_node_link, is_node_link
from hetplanner.cluster.formats.matrices import Quantity, TableSource
from hetplanner.cluster.formats.overlays import fits, laid_onto
from hetplanner.cluster.formats.tables import (
    cluster_from_device_tables,
    cluster_from_site_json,
    cluster_from_site_tables,
)
from hetplanner.cluster.model import Cluster, Source
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json

_WORDS = {
    "bandwidth": ("bandwidth", "bw", "gbit", "gbps"),
    "latency": ("latency", "delay", "rtt", "ping"),
    "overrides": ("override",),
    "devices": ("device",),
}
"""Words in a file's name by what the file holds, asked in this order."""
XML = (".graphml", ".xml")
SHEETS = (".xlsx", ".xls", ".ods")
WHOLE = (".json", *XML)
"""Endings of files that say a whole cluster."""


@reader("cluster file or table", at="files")
def cluster_from_uploads(
    files: Mapping[str, bytes],
    *,
    like: Cluster | None = None,
    round_trip: bool = False,
    source: Source = "measured",
) -> Cluster:
    """A cluster from one file (JSON or GraphML), or from tables (CSV, NPY): bandwidth, latency and what goes along.

    Names tell what a table holds (`bandwidth…`, `latency…`, `devices…`, `overrides…`); `site` in a name means
    site × site. Tables without a devices table that name sites or devices of `like` are laid onto it: what they do
    not name stays. Other names make a new cluster; cities and cloud regions among them find their places.

    Args:
        files: content by name.
        like: the cluster at hand.
        round_trip: latencies in tables are round trips and are halved.
        source: how the numbers of tables are known.

    Raises:
        InvalidInput: a file whose kind is not clear, is missing, or is bad.
    """
    if not files:
        raise InvalidInput("import: no file was given; choose a cluster file, or bandwidth and latency tables")
    name, content = next(iter(files.items()))
    if PurePath(name.lower()).suffix in WHOLE:
        if len(files) > 1:
            raise InvalidInput(f"{one_line(name)}: a cluster file or graph is imported alone, got {len(files)} files")
        return cluster_from_file(content, one_line(name))
    tables = _by_kind(files)
    if like is not None and "devices" not in tables:
        whole = {"bandwidth", "latency"} <= tables.keys()
        if not whole or fits(like, tables["bandwidth"]):
            return laid_onto(like, tables, round_trip, source)
    for kind in ("bandwidth", "latency"):
        if kind not in tables:
            raise InvalidInput(f"import: no {kind} table was given; add one whose name begins with {kind!r}")
    title = one_line(PurePath(name).stem)
    if any("site" in given.lower() for given in files):
        return _from_site_tables(tables, like, title, round_trip, source)
    return cluster_from_device_tables(
        tables["bandwidth"],
        tables["latency"],
        devices=tables.get("devices"),
        name=title,
        round_trip=round_trip,
        source=source,
    )


@reader("table", name="pasted text")
def files_from_text(text: str, kind: Quantity = "bandwidth") -> dict[str, bytes]:
    """What a person pasted, as the file that it could have been: JSON, or a table from a spreadsheet.

    Tables are separated by commas, tabs or semicolons (then with commas in numbers). Overrides and devices are told by
    their columns; another table holds `kind`.

    Raises:
        InvalidInput: nothing, or what is no table.
    """
    text = text.strip("\r\n\ufeff ")
    if not text:
        raise InvalidInput("nothing was pasted; paste a cluster file (JSON) or a table with names")
    if text[0] in "{[":
        return {"pasted.json": text.encode()}
    if text[0] == "<":
        return {"pasted.graphml": text.encode()}
    first = text.splitlines()[0]
    mark = max(",\t;", key=first.count)
    try:
        lines = list(csv.reader(text.splitlines(), delimiter=mark))
    except csv.Error as error:
        raise InvalidInput(one_line(f"pasted text: cannot be read as a table: {error}")) from None
    if mark == ";":
        lines = [[re.sub(r"^([+-]?\d+),(\d+)$", r"\1.\2", cell.strip()) for cell in line] for line in lines]
    columns = {cell.strip() for cell in lines[0]} if lines else set()
    name = "overrides" if columns >= {"per", "from", "to"} else "devices" if columns >= {"id", "kind"} else kind
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return {f"pasted {name}.csv": out.getvalue().encode()}


@reader("cluster file or graph", at="place")
def cluster_from_file(content: bytes, place: str) -> Cluster:
    """A cluster from a file that says all of it: GraphML, or JSON of `cluster_from_any_json`. Raises InvalidInput."""
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") or place.lower().endswith(XML):
        return cluster_from_graphml(content, place)
    return cluster_from_any_json(content, place)


@reader("cluster file", at="place")
def cluster_from_any_json(content: str | bytes, place: str) -> Cluster:
    """A cluster from a cluster file, a site-tables file or a graph in node-link form. Raises InvalidInput."""
    data = parse_json(content, place)
    if is_node_link(data) and "format" not in data:
        return cluster_from_node_link(data, place)
    is_tables = isinstance(data, dict) and str(data.get("format")).startswith("hetplanner/site-tables@")
    return (cluster_from_site_json if is_tables else cluster_from_json)(content, place)


def _by_kind(files: Mapping[str, bytes]) -> dict[str, TableSource]:
    tables: dict[str, TableSource] = {}
    for name, content in files.items():
        kind = next((k for k, words in _WORDS.items() if any(word in name.lower() for word in words)), None)
        if kind is None and PurePath(name.lower()).suffix in SHEETS:
            raise InvalidInput(f"{one_line(name)}: spreadsheets are not read; save the sheet as CSV and give that")
        if kind is None:
            raise InvalidInput(
                f"{one_line(name)}: the name must say {', '.join(_WORDS)}, or end in {', '.join(WHOLE)}; rename it"
            )
        if kind in tables:
            raise InvalidInput(f"{one_line(name)}: a second {kind} table; give one of each")
        tables[kind] = (name, content)
    return tables


def _from_site_tables(
    tables: Mapping[str, TableSource], like: Cluster | None, title: str, round_trip: bool, source: Source
) -> Cluster:
    devices = tables.get("devices") or like
    if devices is None:
        raise InvalidInput("import: site tables need a devices table (id, kind, site); add devices.csv")
    return cluster_from_site_tables(
        tables["bandwidth"],
        tables["latency"],
        devices,
        overrides=tables.get("overrides"),
        name=title,
        round_trip=round_trip,
        source=source,
    )
