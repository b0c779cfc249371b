"""A cluster from files that a person hands over together: what each is, is told by its name."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np

from hetplanner.cluster.device_table import inventory_of
from hetplanner.cluster.files import cluster_from_json
from hetplanner.cluster.inference import infer_links
from hetplanner.cluster.link_edits import Numbers, set_links
from hetplanner.cluster.matrices import Matrix, Quantity, TableSource, read_matrix
from hetplanner.cluster.model import Cluster, Source
from hetplanner.cluster.tables import (
    GBIT_S,
    cluster_from_device_tables,
    cluster_from_site_json,
    cluster_from_site_tables,
    read_overrides,
)
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


@reader("cluster file or table", at="files")
def cluster_from_uploads(
    files: Mapping[str, bytes],
    *,
    like: Cluster | None = None,
    round_trip: bool = False,
    source: Source = "measured",
) -> Cluster:
    """A cluster from one JSON file, or from tables: bandwidth and latency (CSV or NPY), and what goes with them.

    Names tell what a table holds (`bandwidth…`, `latency…`, `devices…`, `overrides…`); `site` in a name means
    site × site, and so do the names of the sites of `like` inside. Without a devices table, `like` gives the devices if
    it has those that the tables name. A table of bandwidth or latency alone, or of overrides, changes just that in
    `like`.

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
    if name.lower().endswith(".json"):
        if len(files) > 1:
            raise InvalidInput(f"{one_line(name)}: a JSON file is imported alone, got {len(files)} files")
        return cluster_from_any_json(content, one_line(name))
    tables = _by_kind(files)
    if like is not None and not {"bandwidth", "latency"} <= tables.keys() and "devices" not in tables:
        return _laid_onto(like, tables, round_trip, source)
    for kind in ("bandwidth", "latency"):
        if kind not in tables:
            raise InvalidInput(f"import: no {kind} table was given; add one whose name begins with {kind!r}")
    title = one_line(PurePath(name).stem)
    if any("site" in given.lower() for given in files) or _names_sites(tables["bandwidth"], like):
        return _from_site_tables(tables, like, title, round_trip, source)
    devices = tables.get("devices") or _lender(tables, like)
    return cluster_from_device_tables(
        tables["bandwidth"], tables["latency"], devices=devices, name=title, round_trip=round_trip, source=source
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


@reader("cluster file", at="place")
def cluster_from_any_json(content: str | bytes, place: str) -> Cluster:
    """A cluster from a cluster file or a site-tables file. Raises InvalidInput."""
    data = parse_json(content, place)
    is_tables = isinstance(data, dict) and str(data.get("format")).startswith("hetplanner/site-tables@")
    return (cluster_from_site_json if is_tables else cluster_from_json)(content, place)


def _by_kind(files: Mapping[str, bytes]) -> dict[str, TableSource]:
    tables: dict[str, TableSource] = {}
    for name, content in files.items():
        kind = next((k for k, words in _WORDS.items() if any(word in name.lower() for word in words)), None)
        if kind is None:
            raise InvalidInput(f"{one_line(name)}: the name must say {', '.join(_WORDS)}, or end in .json; rename it")
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


def _names_sites(table: TableSource, like: Cluster | None) -> bool:
    """Whether a table speaks of the sites of `like`, and not of its devices."""
    labels = read_matrix(table, "bandwidth").labels if like is not None else None
    return like is not None and labels is not None and _are_sites(set(labels), like)


def _are_sites(labels: set[str], like: Cluster) -> bool:
    return labels == {site.name for site in like.sites} != set(like.device_ids)


def _laid_onto(like: Cluster, tables: Mapping[str, TableSource], round_trip: bool, source: Source) -> Cluster:
    """`like` with what the tables say: bandwidth or latency, then overrides."""
    result = like
    for quantity in ("bandwidth", "latency"):
        if quantity in tables:
            result = _with_table(result, quantity, tables[quantity], round_trip, source)
    if "overrides" in tables:
        for per in ("site", "host", "device"):
            result = set_links(result, per, read_overrides(tables["overrides"], per, round_trip), source=source)
    return result


def _with_table(like: Cluster, quantity: Quantity, table: TableSource, round_trip: bool, source: Source) -> Cluster:
    matrix = read_matrix(table, quantity)
    names = [site.name for site in like.sites]
    by_site = len(matrix.values_NN) == len(names) != len(like.devices)
    if matrix.labels is not None:
        by_site = _are_sites(set(matrix.labels), like)
    if by_site:
        values_SS = _in_si(read_matrix(table, quantity, diagonal=True), names, quantity, round_trip)
        pairs = np.argwhere(np.isfinite(values_SS)).tolist()
        numbers = {(names[a], names[b]): _numbers(quantity, float(values_SS[a, b])) for a, b in pairs}
        return set_links(like, "site", numbers, source=source)
    values_DD = _in_si(matrix, like.device_ids, quantity, round_trip)
    other = "latency" if quantity == "bandwidth" else "bandwidth"
    given = {quantity: values_DD, other: like.latency_s_DD if other == "latency" else like.bandwidth_bytes_per_s_DD}
    if like.has_gaps:
        raise InvalidInput(f"{matrix.place}: {like.name} has pairs without a link; give the {other} table as well")
    # One measured number does not make the other one measured.
    known = {link.source for link in like.links}
    links = infer_links(
        inventory_of(like),
        latency_s_DD=given["latency"],
        bandwidth_bytes_per_s_DD=given["bandwidth"],
        source=source if source != "measured" or known == {"measured"} else "assumed",
        when=None,
    )
    return like.replace(**{name: tuple(group) for name, group in links.items()})


def _in_si(matrix: Matrix, names: Sequence[str], quantity: Quantity, round_trip: bool) -> np.ndarray:
    values_NN = matrix.in_order(names)
    # Dividing keeps decimals exact: 67 / 1000 is the number written 0.067.
    return values_NN * GBIT_S if quantity == "bandwidth" else values_NN / (2000 if round_trip else 1000)


def _numbers(quantity: Quantity, value: float) -> Numbers:
    return (None, value) if quantity == "bandwidth" else (value, None)


def _lender(tables: Mapping[str, TableSource], like: Cluster | None) -> Cluster | None:
    """`like`, if the tables speak of exactly its devices (or have no names, and as many rows)."""
    if like is None:
        return None
    matrix = read_matrix(tables["bandwidth"], "bandwidth")
    if matrix.labels is None:
        return like if len(matrix.values_NN) == len(like.devices) else None
    return like if set(matrix.labels) == set(like.device_ids) else None
