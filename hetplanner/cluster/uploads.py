"""A cluster from files that a person hands over together: what each is, is told by its name."""

from collections.abc import Mapping
from pathlib import PurePath

from hetplanner.cluster.files import cluster_from_json
from hetplanner.cluster.matrices import TableSource, read_matrix
from hetplanner.cluster.model import Cluster
from hetplanner.cluster.tables import cluster_from_device_tables, cluster_from_site_json, cluster_from_site_tables
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line, parse_json

_WORDS = {
    "bandwidth": ("bandwidth", "bw", "gbit", "gbps"),
    "latency": ("latency", "delay", "rtt", "ping"),
    "overrides": ("override",),
    "devices": ("device",),
}
"""Words in a file's name by what the file holds, asked in this order."""


def cluster_from_uploads(
    files: Mapping[str, bytes], *, like: Cluster | None = None, round_trip: bool = False
) -> Cluster:
    """A cluster from one JSON file, or from tables: bandwidth and latency (CSV or NPY), and what goes with them.

    Names tell what a table holds (`bandwidth…`, `latency…`, `devices…`, `overrides…`); `site` in a name means
    site × site. Without a devices table, `like` gives the devices if it has those that the tables name.

    Args:
        files: content by name.
        like: the cluster at hand.
        round_trip: latencies in tables are round trips and are halved.

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
    for kind in ("bandwidth", "latency"):
        if kind not in tables:
            raise InvalidInput(f"import: no {kind} table was given; add one whose name begins with {kind!r}")
    title = one_line(PurePath(name).stem)
    if any("site" in given.lower() for given in files):
        return _from_site_tables(tables, like, title, round_trip)
    devices = tables.get("devices") or _lender(tables, like)
    return cluster_from_device_tables(
        tables["bandwidth"], tables["latency"], devices=devices, name=title, round_trip=round_trip
    )


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


def _from_site_tables(tables: Mapping[str, TableSource], like: Cluster | None, title: str, round_trip: bool) -> Cluster:
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
    )


def _lender(tables: Mapping[str, TableSource], like: Cluster | None) -> Cluster | None:
    """`like`, if the tables speak of exactly its devices (or have no names, and as many rows)."""
    if like is None:
        return None
    matrix = read_matrix(tables["bandwidth"], "bandwidth")
    if matrix.labels is None:
        return like if len(matrix.values_NN) == len(like.devices) else None
    return like if set(matrix.labels) == set(like.device_ids) else None
