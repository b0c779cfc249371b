"""Cluster files: `hetplanner/cluster@1`, JSON with unit strings, in the compact site form.

Beyond the nouns' own fields a file may be brief:

* a device with `count: n` stands for n devices `<id>-0` … `<id>-<n-1>`;
* a device may give `site` in place of `host`: it then has a host of its own, which bears its id;
  with both, the host is declared by the way;
* a link with `symmetric: true` holds in both directions.

Written files use `site` and `symmetric` wherever that reads back to the same cluster, one device or link a line.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from hetplanner.cluster.model import (
    MAX_DEVICES,
    Cluster,
    Device,
    DeviceLink,
    Host,
    HostLink,
    Site,
    SiteLink,
    TransferCost,
)
from hetplanner.cluster.plausibility import note_cluster, note_file
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, Text, check_format, checked, one_line, parse_json, read_text, write_text

CLUSTER_VERSION = 1
COPIED_FIELDS = ("name", "description", "provenance", "sites", "host_links", "transfer")


class DeviceEntry(Device):
    """A device as written in a file; see the module."""

    host: Name | None = None  # type: ignore[assignment]
    site: Name | None = None
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)] | None = None

    def expanded(self) -> list[tuple[Device, Host | None]]:
        """The devices this entry stands for, each with the host that it declares."""
        names = [self.id] if self.count is None else [f"{self.id}-{i}" for i in range(self.count)]
        fields = {name: getattr(self, name) for name in Device.model_fields}
        return [
            (
                Device.model_construct(**(fields | {"id": name, "host": self.host or name})),
                Host(id=self.host or name, site=self.site) if self.site else None,
            )
            for name in names
        ]


class SiteLinkEntry(SiteLink):
    """A link between sites, or both directions of it."""

    symmetric: bool = False


class DeviceLinkEntry(DeviceLink):
    """A link between devices, or both directions of it."""

    symmetric: bool = False


class ClusterEntry(Noun):
    """A cluster as written in a file."""

    name: Name
    description: Text = ""
    provenance: Text = ""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    hosts: tuple[Host, ...] = ()
    devices: Annotated[tuple[DeviceEntry, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    site_links: tuple[SiteLinkEntry, ...] = ()
    host_links: tuple[HostLink, ...] = ()
    device_links: tuple[DeviceLinkEntry, ...] = ()
    transfer: TransferCost | None = None


@reader("cluster file", at="place")
def cluster_from_json(text: str | bytes, place: str = "cluster") -> Cluster:
    """A cluster from the text of a cluster file.

    Args:
        text: JSON.
        place: what to call the text in messages.

    Raises:
        InvalidInput: naming the field inside `place`, the law and the value.
    """
    place = one_line(place)
    data = check_format(parse_json(text, place), "cluster", CLUSTER_VERSION, place)
    cluster = cluster_from_data(data, place)
    note_file(data, place)
    note_cluster(cluster, place)
    return cluster


@reader("cluster file", at="place")
def cluster_from_data(data: object, place: str = "cluster") -> Cluster:
    """A cluster from the fields of a cluster file (without `format`). Raises InvalidInput."""
    entry = checked(ClusterEntry, data, place, from_file=True)
    devices, hosts = expand_devices(entry.devices, entry.hosts, place)
    fields = {name: getattr(entry, name) for name in COPIED_FIELDS}
    site_links = [k for link in entry.site_links for k in _directions(SiteLink, link, "from_site", "to_site")]
    device_links = [k for link in entry.device_links for k in _directions(DeviceLink, link, "from_device", "to_device")]
    links = {"site_links": tuple(site_links), "device_links": tuple(device_links)}
    return checked(Cluster, fields | links | {"devices": devices, "hosts": hosts}, place, from_file=True)


def expand_devices(
    entries: Iterable[DeviceEntry], hosts: Iterable[Host], place: str
) -> tuple[tuple[Device, ...], tuple[Host, ...]]:
    """Devices that the entries stand for, and all hosts: the given ones, then those the devices declare.

    Raises:
        InvalidInput: a device without host and site, one at another site than its host, or too many devices.
    """
    known = {host.id: host for host in hosts}
    result = list(hosts)
    devices: list[Device] = []
    for i, entry in enumerate(entries):
        if entry.host is None and entry.site is None:
            raise InvalidInput(f"{place}: devices[{i}]: must give a host or a site; add one")
        if len(devices) + (entry.count or 1) > MAX_DEVICES:
            raise InvalidInput(f"{place}: devices[{i}]: must be at most {MAX_DEVICES} devices in all; give fewer")
        for device, host in entry.expanded():
            devices.append(device)
            declared = known.setdefault(host.id, host) if host else None
            if declared is not None and host is not None and declared.site != host.site:
                raise InvalidInput(
                    f"{place}: devices[{i}].site: host {host.id!r:.60} is at {declared.site!r:.60}, got"
                    f" {host.site!r:.60}; correct one of them"
                )
            if declared is host and host is not None:
                result.append(host)
    return tuple(devices), tuple(result)


LinkT = TypeVar("LinkT", SiteLink, DeviceLink)


def _directions(kind: type[LinkT], entry: Any, start: str, end: str) -> list[LinkT]:
    """The one or two directed links of an entry (already validated)."""
    fields = {name: getattr(entry, name) for name in kind.model_fields}
    links = [kind.model_construct(**fields)]
    if entry.symmetric and fields[start] != fields[end]:
        links.append(kind.model_construct(**(fields | {start: fields[end], end: fields[start]})))
    return links


@reader("cluster file", at="path")
def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """A cluster from a file.

    Raises:
        InvalidInput: no such file, too large, or not a valid cluster; one line that names the place.
    """
    content, name = read_text(path), Path(path).name
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise InvalidInput(
            f"{one_line(name)}: is XML such as GraphML, not a cluster file; turn it into one with 'hetplanner cluster"
            f" convert {one_line(name)} -o cluster.json'"
        )
    return cluster_from_json(content, name)


# -- writing --------------------------------------------------------------------------------------


def cluster_to_data(cluster: Cluster) -> dict[str, Any]:
    """The cluster file's content as plain data, `format` included; `cluster_from_json` reads it back equal."""
    data = cluster.model_dump(mode="json", by_alias=True, exclude_none=True)
    own = _own_hosts(cluster)
    if own:
        data["hosts"] = [host for host in data["hosts"] if host["id"] not in own]
        for device in data["devices"]:
            if device["host"] in own:
                device["site"] = own[device.pop("host")]
    for kind in ("site_links", "device_links"):
        data[kind] = _paired([{"from": link["from"], "to": link["to"]} | link for link in data[kind]])
    data["host_links"] = [{"host": link["host"]} | link for link in data["host_links"]]
    return {"format": f"hetplanner/cluster@{CLUSTER_VERSION}"} | {k: v for k, v in data.items() if v}


def _own_hosts(cluster: Cluster) -> dict[str, str]:
    """Site by host, of hosts that a reader declares again from `site`: named as their only device, nothing said.

    Empty if a reader would declare them in another order than the cluster's.
    """
    devices_on: dict[str, list[str]] = {}
    for device in cluster.devices:
        devices_on.setdefault(device.host, []).append(device.id)
    own = {
        h.id: h.site for h in cluster.hosts if devices_on.get(h.id) == [h.id] and h.nic_in is None and h.nic_out is None
    }
    kept = [h.id for h in cluster.hosts if h.id not in own]
    declared = [d.host for d in cluster.devices if d.host in own]
    return own if [*kept, *declared] == [h.id for h in cluster.hosts] else {}


def _paired(links: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Links with each pair of neighbours that differ in direction alone written as one."""
    result: list[dict[str, Any]] = []
    for link in links:
        turned = link | {"from": link["to"], "to": link["from"]}
        if link["from"] != link["to"] and result and result[-1] == turned:
            result[-1] = result[-1] | {"symmetric": True}
        else:
            result.append(link)
    return result


def cluster_to_json(cluster: Cluster) -> str:
    """The text of a cluster file: one field a line, and in lists one entry a line."""
    return json_by_lines(cluster_to_data(cluster))


def json_by_lines(data: Mapping[str, Any]) -> str:
    """JSON for people and diffs: one field a line, and in lists one entry a line."""
    fields = []
    for name, value in data.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            entries = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in value)
            text = f"[\n{entries}\n ]"
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes a cluster file. Raises InvalidInput if the path cannot be written."""
    write_text(path, cluster_to_json(cluster))
