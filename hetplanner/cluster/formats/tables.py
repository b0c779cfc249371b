"""Clusters from tables: device × device (CSV, NPY) and site × site (CSV, JSON) with overrides by pair.

Every table states bandwidth in Gbit/s and latency in ms. Latencies are one way; round trips (what `ping` prints)
are halved on import, and the cluster's provenance says so. `table_export` writes the same forms. A folder holds

    bandwidth_gbit_s.csv, latency_ms.csv            device × device (or .npy, devices in the order of devices.csv)
    site_bandwidth_gbit_s.csv, site_latency_ms.csv  or site × site: diagonal = between hosts of a site
    devices.csv                                     id, kind, site … (see `device_table`)
    overrides.csv                                   optional, site × site alone: per, from, to, bandwidth, latency

Literal numbers of a source (`published`) are kept by cluster files alone, not by tables.
Shape legend: D devices, S sites.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetplanner.cluster.formats.cluster_files import DeviceEntry, expand_devices
from hetplanner.cluster.formats.device_table import Inventory, inventory_of, plain_inventory, read_inventory
from hetplanner.cluster.formats.matrices import (
    Matrix,
    TableSource,
    matrix_from_rows,
    read_matrix,
    read_rows,
    read_source,
)
from hetplanner.cluster.inference import infer_links
from hetplanner.cluster.model import Cluster, DeviceLink, Host, HostLink, LinkValue, Site, SiteLink, Source
from hetplanner.cluster.plausibility import note_cluster, note_file, note_rates, note_twice
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import BytesPerSecond, Name, Noun, Seconds, Text, check_format, checked, one_line, parse_json

SITE_TABLES_VERSION = 1
GBIT_S = 1e9 / 8
"""Bytes per second of one Gbit/s."""


class Override(Noun):
    """One pair that differs from its sites' link.

    Attributes:
        per: what `from` and `to` name; a host's own name twice means between its devices.
    """

    per: Literal["site", "host", "device"]
    start: Annotated[Name, Field(alias="from")]
    end: Annotated[Name, Field(alias="to")]
    latency: Seconds
    bandwidth: BytesPerSecond
    model_config = LinkValue.model_config | {"validate_by_name": True, "validate_by_alias": True}


class SiteTables(Noun):
    """The content of a `hetplanner/site-tables@1` file: a cluster with its site links as matrices."""

    name: Name
    description: Text = ""
    provenance: Text = ""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    hosts: tuple[Host, ...] = ()
    devices: Annotated[tuple[DeviceEntry, ...], Field(min_length=1)]
    bandwidth_gbit_s: tuple[tuple[float | None, ...], ...]
    latency_ms: tuple[tuple[float | None, ...], ...]
    round_trip: bool = False
    source: Source = "assumed"
    when: Text | None = None
    overrides: tuple[Override, ...] = ()


@reader("table of links", at="bandwidth")
def cluster_from_device_tables(
    bandwidth: TableSource,
    latency: TableSource,
    *,
    devices: TableSource | Cluster | None = None,
    name: str = "imported",
    kind: str = "CPU generic",
    round_trip: bool = False,
    source: Source = "measured",
    when: str | None = None,
) -> Cluster:
    """A cluster from device × device tables, row from, column to.

    Args:
        bandwidth: CSV or NPY, Gbit/s. The diagonal is not read.
        latency: CSV or NPY, ms.
        devices: `devices.csv`, or a cluster that has these devices. Without it, devices are named by the CSV
            (`device-<i>` for NPY), all of `kind`, at one site.
        name: of the cluster.
        kind: of devices that nothing else describes.
        round_trip: latencies are round trips and are halved.
        source, when: how the numbers are known.

    Raises:
        InvalidInput: naming the table and cell.
    """
    tables = read_matrix(bandwidth, "bandwidth"), read_matrix(latency, "latency")
    inventory = _inventory(devices, tables, kind)
    ids = [device.id for device in inventory.devices]
    bandwidth_DD, latency_DD = (table.in_order(ids) for table in tables)
    links = infer_links(
        inventory,
        latency_s_DD=_seconds(latency_DD, round_trip),
        bandwidth_bytes_per_s_DD=bandwidth_DD * GBIT_S,
        source=source,
        when=when,
    )
    return _cluster(name, inventory, links, _origin(tables, "device × device", round_trip), place=tables[1].place)


def _inventory(devices: TableSource | Cluster | None, tables: tuple[Matrix, Matrix], kind: str) -> Inventory:
    if isinstance(devices, Cluster):
        return inventory_of(devices)
    if devices is not None:
        return read_inventory(devices)
    labels = next((table.labels for table in tables if table.labels is not None), None)
    ids = labels or tuple(f"device-{i}" for i in range(len(tables[0].values_NN)))
    return plain_inventory(ids, kind, tables[0].place)


@reader("table of links", at="bandwidth")
def cluster_from_site_tables(
    bandwidth: TableSource,
    latency: TableSource,
    devices: TableSource | Cluster,
    *,
    overrides: TableSource | None = None,
    name: str = "imported",
    round_trip: bool = False,
    source: Source = "measured",
    when: str | None = None,
) -> Cluster:
    """A cluster from site × site CSV tables; the diagonal is between hosts of a site, blank = no such link.

    Args:
        bandwidth: Gbit/s.
        latency: ms.
        devices: `devices.csv`, or a cluster that has these sites.
        overrides: `overrides.csv`: columns per (site, host, device), from, to, bandwidth, latency, with units.
        name, round_trip, source, when: as for `cluster_from_device_tables`; overrides are halved as well.

    Raises:
        InvalidInput: naming the table and cell.
    """
    tables = read_matrix(bandwidth, "bandwidth", diagonal=True), read_matrix(latency, "latency", diagonal=True)
    inventory = inventory_of(devices) if isinstance(devices, Cluster) else read_inventory(devices)
    names = [site.name for site in inventory.sites]
    bandwidth_SS, latency_SS = (table.in_order(names) for table in tables)
    pairs = _read_overrides(overrides) if overrides is not None else ()
    links = _site_links(names, bandwidth_SS, latency_SS, pairs, round_trip, source, when)
    return _cluster(name, inventory, links, _origin(tables, "site × site", round_trip), place=tables[1].place)


@reader("site-tables file", at="place")
def cluster_from_site_json(text: str | bytes, place: str = "site tables") -> Cluster:
    """A cluster from the text of a `hetplanner/site-tables@1` file. Raises InvalidInput."""
    place = one_line(place)
    data = check_format(parse_json(text, place), "site-tables", SITE_TABLES_VERSION, place)
    tables = checked(SiteTables, data, place, from_file=True)
    note_file(data, place)
    rates = [(f"overrides[{i}].bandwidth", each["bandwidth"]) for i, each in enumerate(data.get("overrides", ()))]
    _note_overrides(tables.overrides, rates, place)
    devices, hosts = expand_devices(tables.devices, tables.hosts, place)
    names = [site.name for site in tables.sites]
    bandwidth = matrix_from_rows(tables.bandwidth_gbit_s, f"{place}: bandwidth_gbit_s", "bandwidth")
    latency = matrix_from_rows(tables.latency_ms, f"{place}: latency_ms", "latency")
    links = _site_links(
        names,
        bandwidth.in_order(names),
        latency.in_order(names),
        tables.overrides,
        tables.round_trip,
        tables.source,
        tables.when,
    )
    inventory = checked(Inventory, {"sites": tables.sites, "hosts": hosts, "devices": devices}, place)
    halved = _HALVED if tables.round_trip else ""
    provenance = f"{tables.provenance} {halved}".strip()
    return _cluster(tables.name, inventory, links, provenance, tables.description, place)


@reader("folder of tables", at="folder")
def cluster_from_folder(folder: str | os.PathLike[str], *, round_trip: bool = False) -> Cluster:
    """A cluster from a folder of tables, named as this module says.

    Raises:
        InvalidInput: a table is missing or bad.
    """
    path = Path(folder)
    devices = path / "devices.csv" if (path / "devices.csv").is_file() else None
    site_tables = path / "site_bandwidth_gbit_s.csv", path / "site_latency_ms.csv"
    if site_tables[0].is_file():
        overrides = path / "overrides.csv"
        return cluster_from_site_tables(
            *site_tables,
            devices or path / "devices.csv",
            overrides=overrides if overrides.is_file() else None,
            name=path.name,
            round_trip=round_trip,
        )
    form = "npy" if (path / "bandwidth_gbit_s.npy").is_file() else "csv"
    return cluster_from_device_tables(
        path / f"bandwidth_gbit_s.{form}",
        path / f"latency_ms.{form}",
        devices=devices,
        name=path.name,
        round_trip=round_trip,
    )


_HALVED = "Latencies were given as round trips and halved on import."


def _seconds(latency_ms_NN: np.ndarray, round_trip: bool) -> np.ndarray:
    # Dividing keeps decimals exact: 67 / 1000 is the number written 0.067.
    return latency_ms_NN / (2000 if round_trip else 1000)


def _origin(tables: Sequence[Matrix], form: str, round_trip: bool) -> str:
    text = f"Imported from {form} tables {' and '.join(table.place for table in tables)}."
    return f"{text} {_HALVED}" if round_trip else text


def _cluster(
    name: str,
    inventory: Inventory,
    links: Mapping[str, Sequence[LinkValue]],
    provenance: str,
    description: str = "",
    place: str = "cluster",
) -> Cluster:
    fields = {field: getattr(inventory, field) for field in Inventory.model_fields}
    fields |= {"name": name, "provenance": provenance, "description": description}
    cluster = checked(Cluster, fields | {key: tuple(value) for key, value in links.items()}, place)
    note_cluster(cluster, place)
    return cluster


def _site_links(
    names: Sequence[str],
    bandwidth_SS: np.ndarray,
    latency_SS: np.ndarray,
    overrides: Sequence[Override],
    round_trip: bool,
    source: Source,
    when: str | None,
) -> dict[str, list[LinkValue]]:
    """Links of every pair of sites that has both numbers, and of the overrides; the last one of a pair holds."""
    known = {"source": source, "when": when}
    latency_s_SS = _seconds(latency_SS, round_trip)
    of_sites: dict[tuple[str, str], LinkValue] = {}
    of_hosts: dict[str, LinkValue] = {}
    of_devices: dict[tuple[str, str], LinkValue] = {}
    for a, b in np.argwhere(np.isfinite(bandwidth_SS) & np.isfinite(latency_SS)):
        value = {"latency": float(latency_s_SS[a, b]), "bandwidth": float(bandwidth_SS[a, b]) * GBIT_S}
        of_sites[names[a], names[b]] = SiteLink(from_site=names[a], to_site=names[b], **value, **known)
    for i, pair in enumerate(overrides):
        value = {"latency": pair.latency / (2 if round_trip else 1), "bandwidth": pair.bandwidth} | known
        if pair.per == "site":
            of_sites[pair.start, pair.end] = SiteLink(from_site=pair.start, to_site=pair.end, **value)
        elif pair.per == "device":
            of_devices[pair.start, pair.end] = DeviceLink(from_device=pair.start, to_device=pair.end, **value)
        elif pair.start == pair.end:
            of_hosts[pair.start] = HostLink(host=pair.start, **value)
        else:
            raise InvalidInput(
                f"overrides[{i}]: per host, from and to must be one host, got {pair.start!r:.60} and {pair.end!r:.60}"
            )
    lists = [list(links.values()) for links in (of_sites, of_hosts, of_devices)]
    return dict(zip(("site_links", "host_links", "device_links"), lists, strict=True))


@reader("table of overrides", at="source")
def read_overrides(
    source: TableSource, per: str, round_trip: bool = False
) -> dict[tuple[str, str], tuple[float, float]]:
    """One-way latency and bandwidth of the pairs of an `overrides.csv` that name sites, hosts or devices.

    Raises:
        InvalidInput: naming the row.
    """
    pairs = [pair for pair in _read_overrides(source) if pair.per == per]
    return {(pair.start, pair.end): (pair.latency / (2 if round_trip else 1), pair.bandwidth) for pair in pairs}


class _Overrides(Noun):
    overrides: tuple[Override, ...]


def _read_overrides(source: TableSource) -> tuple[Override, ...]:
    place, data = read_source(source)
    rows = read_rows(place, data)
    header = rows[0] if rows else []
    if sorted(header) != sorted(OVERRIDE_COLUMNS):
        raise InvalidInput(f"{place}: must have the columns {', '.join(OVERRIDE_COLUMNS)}, has {', '.join(header):.80}")
    for i, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InvalidInput(f"{place}: row {i}: must have {len(header)} cells, has {len(row)}")
    fields = {"overrides": [dict(zip(header, row, strict=True)) for row in rows[1:]]}
    overrides = checked(_Overrides, fields, place, from_file=True).overrides
    _note_overrides(overrides, [(f"row {i}", row["bandwidth"]) for i, row in enumerate(fields["overrides"], 2)], place)
    return overrides


def _note_overrides(overrides: Sequence[Override], rates: Sequence[tuple[str, str]], place: str) -> None:
    """Notes rates of sites' links in bytes per second (given as where, text), and pairs with unlike numbers."""
    note_rates((rate for o, rate in zip(overrides, rates, strict=True) if o.per == "site"), place)
    note_twice(
        ((f"{o.per} overrides", f"from {o.start!r:.60} to {o.end!r:.60}", (o.latency, o.bandwidth)) for o in overrides),
        place,
    )


OVERRIDE_COLUMNS = ("per", "from", "to", "bandwidth", "latency")
