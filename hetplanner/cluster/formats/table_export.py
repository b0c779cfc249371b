"""Clusters to tables, in the forms that `hetplanner.cluster.formats.tables` reads: Gbit/s and ms, one way.

Literal numbers of a source (`published`) and, in device × device tables, how a link is known stay behind.
"""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hetplanner.atomic_files import write_whole
from hetplanner.cluster.formats.cluster_files import cluster_to_data, json_by_lines
from hetplanner.cluster.formats.device_table import csv_of_inventory
from hetplanner.cluster.formats.matrices import csv_of_matrix
from hetplanner.cluster.formats.spreadsheet import guarded
from hetplanner.cluster.formats.tables import GBIT_S, OVERRIDE_COLUMNS, SITE_TABLES_VERSION
from hetplanner.cluster.model import Cluster, LinkValue, SiteLink
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line
from hetplanner.units import format_bytes_per_s, format_seconds, parse_bytes_per_s, parse_seconds

TableForm = Literal["csv", "npy", "site-csv", "site-json"]


def export_tables(cluster: Cluster, folder: str | os.PathLike[str], form: TableForm = "csv") -> list[Path]:
    """Writes the cluster as tables that `hetplanner.cluster.formats.tables` reads back.

    Args:
        cluster: what to write.
        folder: made if it is not there.
        form: `csv` or `npy` for device × device, `site-csv` or `site-json` for site × site.

    Returns:
        The files written.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        files = [(path / name, content) for name, content in tables_of(cluster, form).items()]
        for file, content in files:
            write_whole(file, content)
    except OSError as error:
        raise InvalidInput(one_line(f"{path}: cannot be written: {error.strerror}")) from None
    return [file for file, _ in files]


def tables_of(cluster: Cluster, form: TableForm = "csv") -> dict[str, bytes]:
    """The files of `export_tables`, content by name. Raises InvalidInput for what the form cannot say."""
    # A devices.csv knows the sites and hosts of devices alone, so links of others would name no row.
    if cluster.has_gaps:
        raise InvalidInput(f"{cluster.name}: has pairs of sites without a link, which tables cannot say; write json")
    return _WRITERS[form](cluster if form == "site-json" else cluster.subset(cluster.device_ids))


def _device_csv(cluster: Cluster) -> dict[str, bytes]:
    ids = cluster.device_ids
    bandwidth = [[gbit_s_text(v) if np.isfinite(v) else "" for v in row] for row in cluster.bandwidth_bytes_per_s_DD]
    latency = [["" if i == j else ms_text(v) for j, v in enumerate(row)] for i, row in enumerate(cluster.latency_s_DD)]
    return {
        "bandwidth_gbit_s.csv": csv_of_matrix(ids, bandwidth).encode(),
        "latency_ms.csv": csv_of_matrix(ids, latency).encode(),
        "devices.csv": csv_of_inventory(cluster).encode(),
    }


def _device_npy(cluster: Cluster) -> dict[str, bytes]:
    files = {"devices.csv": csv_of_inventory(cluster).encode()}
    tables = {
        "bandwidth_gbit_s.npy": cluster.bandwidth_bytes_per_s_DD / GBIT_S,
        "latency_ms.npy": cluster.latency_s_DD * 1000,
    }
    for name, values_DD in tables.items():
        stream = io.BytesIO()
        np.save(stream, values_DD, allow_pickle=False)
        files[name] = stream.getvalue()
    return files


def _site_rules(cluster: Cluster) -> dict[tuple[str, str], SiteLink]:
    return {(link.from_site, link.to_site): link for link in cluster.site_links}


def _overrides(cluster: Cluster) -> list[dict[str, str]]:
    pairs: list[tuple[str, str, str, LinkValue]] = [("host", k.host, k.host, k) for k in cluster.host_links]
    pairs += [("device", k.from_device, k.to_device, k) for k in cluster.device_links]
    return [
        {
            "per": per,
            "from": start,
            "to": end,
            "bandwidth": format_bytes_per_s(link.bandwidth),
            "latency": format_seconds(link.latency),
        }
        for per, start, end, link in pairs
    ]


def _site_csv(cluster: Cluster) -> dict[str, bytes]:
    names = [site.name for site in cluster.sites]
    rule = _site_rules(cluster)

    def table(text: Callable[[LinkValue], str]) -> bytes:
        rows = [[text(rule[a, b]) if (a, b) in rule else "" for b in names] for a in names]
        return csv_of_matrix(names, rows).encode()

    files = {
        "site_bandwidth_gbit_s.csv": table(lambda link: gbit_s_text(link.bandwidth)),
        "site_latency_ms.csv": table(lambda link: ms_text(link.latency)),
        "devices.csv": csv_of_inventory(cluster).encode(),
    }
    pairs = _overrides(cluster)
    if pairs:
        out = io.StringIO()
        writer = csv.DictWriter(out, OVERRIDE_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: guarded(text) for key, text in pair.items()} for pair in pairs)
        files["overrides.csv"] = out.getvalue().encode()
    return files


def _site_json(cluster: Cluster) -> dict[str, bytes]:
    names = [site.name for site in cluster.sites]
    rule = _site_rules(cluster)
    data = cluster_to_data(cluster)
    kept = ("name", "description", "provenance", "sites", "hosts", "devices")
    fields: dict[str, Any] = {"format": f"hetplanner/site-tables@{SITE_TABLES_VERSION}"}
    fields |= {name: data[name] for name in kept if name in data}
    for name, text in (
        ("bandwidth_gbit_s", lambda k: gbit_s_text(k.bandwidth)),
        ("latency_ms", lambda k: ms_text(k.latency)),
    ):
        fields[name] = [[float(text(rule[a, b])) if (a, b) in rule else None for b in names] for a in names]
    known = {link.source for link in rule.values()}
    fields["source"] = known.pop() if len(known) == 1 else "assumed"
    pairs = _overrides(cluster)
    if pairs:
        fields["overrides"] = pairs
    return {"site_tables.json": json_by_lines(fields).encode()}


_WRITERS: dict[TableForm, Callable[[Cluster], dict[str, bytes]]] = {
    "csv": _device_csv,
    "npy": _device_npy,
    "site-csv": _site_csv,
    "site-json": _site_json,
}


def gbit_s_text(bytes_per_s: float) -> str:
    """A rate in Gbit/s, in the fewest digits that read back to it."""
    return _fewest_digits(bytes_per_s / GBIT_S, lambda text: parse_bytes_per_s(f"{text} Gbit/s") == bytes_per_s)


def ms_text(seconds: float) -> str:
    """A time in ms, in the fewest digits that read back to it."""
    return _fewest_digits(seconds * 1000, lambda text: parse_seconds(f"{text} ms") == seconds)


def _fewest_digits(value: float, reads_back: Callable[[str], bool]) -> str:
    """The shortest decimal that reads back to the same number; at 17 digits the last bit may differ."""
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next((text for text in texts if reads_back(text)), f"{value:.17g}")
