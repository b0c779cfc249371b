"""`devices.csv`: one device a row, with its host and site; what matrices of numbers cannot say.

Columns: `id`, `kind`, `site`, then any of `host`, `latitude`, `longitude`, `egress_usd_per_gb`, `provider`, `region`
(of the site; the last three say what its traffic costs), `nic_out`, `nic_in`, `memory`, `memory_bandwidth`, `reserve`,
`efficiency`, `price_usd_per_hour`, `peak_float32`, `peak_tf32`, `peak_bfloat16`, `peak_float16`. Quantities carry units
("16 GiB"); a blank cell is not said.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from hetplanner.cluster.formats.cluster_files import DeviceEntry, expand_devices
from hetplanner.cluster.formats.matrices import TableSource, read_rows, read_source
from hetplanner.cluster.formats.spreadsheet import guarded
from hetplanner.cluster.model import Cluster, Device, Host, Site
from hetplanner.cluster.places import find_place
from hetplanner.cluster.plausibility import note_rates
from hetplanner.errors import InvalidInput
from hetplanner.reading import note, reader
from hetplanner.schema import Noun, checked

_SITE_COLUMNS = ("latitude", "longitude", "egress_usd_per_gb", "provider", "region")
_HOST_COLUMNS = ("nic_out", "nic_in")
_DEVICE_COLUMNS = ("memory", "memory_bandwidth", "reserve", "efficiency", "price_usd_per_hour")
_PEAK_COLUMNS = ("peak_float32", "peak_tf32", "peak_bfloat16", "peak_float16")
_NUMBERS = {"latitude", "longitude", "egress_usd_per_gb", "efficiency", "price_usd_per_hour"}
COLUMNS = ("id", "kind", "site", "host", *_SITE_COLUMNS, *_HOST_COLUMNS, *_DEVICE_COLUMNS, *_PEAK_COLUMNS)


class Inventory(Noun):
    """Sites, hosts and devices: a cluster without its links."""

    sites: tuple[Site, ...] = Field(min_length=1)
    hosts: tuple[Host, ...] = ()
    devices: tuple[Device, ...] = Field(min_length=1)

    @field_validator("devices")
    @classmethod
    def _each_is_there_once(cls, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        counts = Counter(device.id for device in devices)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"device {twice!r:.60} is there {counts[twice]} times; keep one row of it")
        return devices


def inventory_of(cluster: Cluster) -> Inventory:
    """The cluster without its links."""
    return Inventory(sites=cluster.sites, hosts=cluster.hosts, devices=cluster.devices)


NOWHERE = "imported"
"""The site of devices whose place is not known, drawn at 0°, 0°."""


def plain_inventory(device_ids: Sequence[str], kind: str, place: str) -> Inventory:
    """Devices of one kind, each on its own host; those called as a city or cloud region stand there.

    What was assumed is noted, see `hetplanner.reading.note`.

    Raises:
        InvalidInput: a name that no device may bear.
    """
    found = {name: find_place(name) for name in device_ids}
    sites = {NOWHERE: (0.0, 0.0)} if None in found.values() else {}
    sites |= {city.name: (city.latitude, city.longitude) for city in found.values() if city is not None}
    fields = {
        "sites": [{"name": name, "latitude": point[0], "longitude": point[1]} for name, point in sites.items()],
        "hosts": [{"id": name, "site": city.name if city else NOWHERE} for name, city in found.items()],
        "devices": [{"id": name, "kind": kind, "host": name} for name in device_ids],
    }
    note(f"{place}: nothing says what devices these are: one {kind!r} for each name")
    lost = [name for name, city in found.items() if city is None]
    if lost:
        note(f"{place}: {lost[0]!r:.40} is no place in the list: {len(lost)} of {len(found)} names stand at 0°, 0°")
    return checked(Inventory, fields, place)


@reader("table of devices", at="source")
def read_inventory(source: TableSource) -> Inventory:
    """Sites, hosts and devices of a `devices.csv`.

    Raises:
        InvalidInput: an unknown or missing column, a bad cell, or rows that contradict each other.
    """
    place, data = read_source(source)
    return inventory_from_rows(_dicts(place, read_rows(place, data)), place)


def inventory_from_rows(cells: Sequence[Mapping[str, str]], place: str) -> Inventory:
    """Sites, hosts and devices, one device a row; sites without degrees stand where their names say.

    Args:
        cells: text by column; '' and what is left out is not said.
        place: what to call the whole in messages.

    Raises:
        InvalidInput: a bad cell, or rows that contradict each other.
    """
    rows = [_read_row(place, i, row) for i, row in enumerate(cells)]
    note_rates(((f"row {i}, {name}", row.get(name)) for i, row in enumerate(rows, 2) for name in _HOST_COLUMNS), place)
    sites = _merged(place, rows, "site", "name", _SITE_COLUMNS)
    for site in sites:
        city = find_place(site["name"]) if not {"latitude", "longitude"} & site.keys() else None
        site.setdefault("latitude", city.latitude if city else 0)
        site.setdefault("longitude", city.longitude if city else 0)
    named = [row for row in rows if row.get("host")]
    hosts = _merged(place, named, "host", "id", _HOST_COLUMNS)
    site_by_host = {
        row["host"]: row["site"] for row in reversed(named)
    }  # the first row's; expansion compares the others
    fields = {
        "sites": sites,
        "hosts": [host | {"site": site_by_host[host["id"]]} for host in hosts],
        "devices": [_device(row) for row in rows],
    }
    entry = checked(_InventoryEntry, fields, place, from_file=True)
    devices, all_hosts = expand_devices(entry.devices, entry.hosts, place)
    return checked(Inventory, {"sites": entry.sites, "hosts": all_hosts, "devices": devices}, place)


class _InventoryEntry(Noun):
    sites: tuple[Site, ...] = Field(min_length=1)
    hosts: tuple[Host, ...] = ()
    devices: tuple[DeviceEntry, ...] = Field(min_length=1)


def _dicts(place: str, rows: list[list[str]]) -> list[dict[str, str]]:
    if len(rows) < 2:
        raise InvalidInput(f"{place}: must have a row of column names and a row a device, has {len(rows)} rows")
    header = rows[0]
    for name in header:
        if name not in COLUMNS or header.count(name) > 1:
            raise InvalidInput(
                f"{place}: column {name!r:.40} is unknown or there twice; known are {', '.join(COLUMNS)}"
            )
    for name in ("id", "kind", "site"):
        if name not in header:
            raise InvalidInput(f"{place}: column {name!r} is missing; add it")
    for i, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InvalidInput(f"{place}: row {i}: must have {len(header)} cells, has {len(row)}")
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def _read_row(place: str, index: int, row: Mapping[str, str]) -> dict[str, Any]:
    """The row's cells that are not blank, numbers read."""
    values: dict[str, Any] = {}
    for name, text in row.items():
        if not text:
            continue
        try:
            values[name] = float(text) if name in _NUMBERS else text
        except ValueError:
            raise InvalidInput(f"{place}: row {index + 2}, {name}: must be a number, got {text!r:.40}") from None
    for name in ("id", "kind", "site"):
        if name not in values:
            raise InvalidInput(f"{place}: row {index + 2}, {name}: must not be blank; fill it in")
    return values


def _merged(
    place: str, rows: Sequence[Mapping[str, Any]], key: str, name: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """One entry a site (or host): what its rows say about it, which must not contradict."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = found.setdefault(row[key], {name: row[key]})
        for column in columns:
            if column in row and entry.setdefault(column, row[column]) != row[column]:
                raise InvalidInput(
                    f"{place}: device {row['id']!r:.60}, {column}: must be the same in every row of {key}"
                    f" {row[key]!r:.60}, got {entry[column]!r:.40} and {row[column]!r:.40}"
                )
    return list(found.values())


def _device(row: Mapping[str, Any]) -> dict[str, Any]:
    peak = {name.removeprefix("peak_"): row[name] for name in _PEAK_COLUMNS if name in row}
    device = {name: row[name] for name in ("id", "kind", "host", "site", *_DEVICE_COLUMNS) if name in row}
    return device | ({"peak": peak} if peak else {})


def rows_of_inventory(cluster: Cluster) -> list[dict[str, Any]]:
    """What `inventory_from_rows` reads back: by column, only what is said. Sites without a device are lost."""
    dump = cluster.model_dump(mode="json", exclude_none=True)
    sites = {site["name"]: site for site in dump["sites"]}
    hosts = {host["id"]: host for host in dump["hosts"]}
    rows = []
    for device in dump["devices"]:
        host = hosts[device["host"]]
        peak = {f"peak_{dtype}": rate for dtype, rate in device.get("peak", {}).items()}
        row = sites[host["site"]] | host | device | peak
        rows.append({name: row[name] for name in COLUMNS if row.get(name) not in (None, "")})
    return rows


def csv_of_inventory(cluster: Cluster) -> str:
    """The text of a `devices.csv`; columns that nothing fills are left out.

    No spreadsheet takes a name for a formula.
    """
    rows = rows_of_inventory(cluster)
    used = [name for name in COLUMNS if any(name in row for row in rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, used, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: guarded(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows)
    return out.getvalue()
