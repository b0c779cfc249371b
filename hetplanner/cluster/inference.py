"""Device × device matrices as few links: what most pairs of two sites share becomes a site link.

Shape legend: D devices.
"""

from collections.abc import Iterator

import numpy as np

from hetplanner.cluster.formats.device_table import Inventory
from hetplanner.cluster.model import DeviceLink, HostLink, LinkValue, SiteLink, Source


def infer_links(
    inventory: Inventory,
    *,
    latency_s_DD: np.ndarray,
    bandwidth_bytes_per_s_DD: np.ndarray,
    source: Source,
    when: str | None,
) -> dict[str, list[LinkValue]]:
    """Site, host and device links that together say exactly what the matrices say.

    Args:
        inventory: devices in the order of the rows, with their hosts and sites.
        latency_s_DD: row from, column to; the diagonal is not read.
        bandwidth_bytes_per_s_DD: likewise.
        source, when: how the numbers are known.
    """
    # One complex number a pair, so that equal pairs of (latency, bandwidth) can be counted in one go.
    value_DD = np.empty(latency_s_DD.shape, dtype=np.complex128)
    value_DD.real, value_DD.imag = latency_s_DD, bandwidth_bytes_per_s_DD
    rule_DD = np.full_like(value_DD, np.nan)
    known = {"source": source, "when": when}
    links: dict[str, list[LinkValue]] = {"site_links": [], "host_links": [], "device_links": []}
    for (start, end), block in _site_blocks(inventory):
        rule_DD[block] = common = _most_common(value_DD[block])
        links["site_links"].append(SiteLink(from_site=start, to_site=end, **_value(common), **known))
    for host, block in _host_blocks(inventory):
        rule_DD[block] = common = _most_common(value_DD[block])
        links["host_links"].append(HostLink(host=host, **_value(common), **known))
    ids = [device.id for device in inventory.devices]
    for a, b in np.argwhere((rule_DD != value_DD) & ~np.eye(len(ids), dtype=bool)):
        link = DeviceLink(from_device=ids[a], to_device=ids[b], **_value(value_DD[a, b]), **known)
        links["device_links"].append(link)
    return links


def _value(pair: complex) -> dict[str, float]:
    return {"latency": float(pair.real), "bandwidth": float(pair.imag)}


def _most_common(values: np.ndarray) -> complex:
    distinct, counts = np.unique(values, return_counts=True)
    return complex(distinct[counts.argmax()])


Block = tuple[np.ndarray, np.ndarray]


def _site_blocks(inventory: Inventory) -> Iterator[tuple[tuple[str, str], Block]]:
    """Rows and columns of the pairs of devices of two sites (or one), on different hosts."""
    site_by_host = {host.id: host.site for host in inventory.hosts}
    host_D = np.array([device.host for device in inventory.devices])
    site_D = np.array([site_by_host[host] for host in host_D])
    used = [site.name for site in inventory.sites if site.name in set(site_D)]
    for start in used:
        for end in used:
            rows, columns = np.flatnonzero(site_D == start), np.flatnonzero(site_D == end)
            apart = host_D[rows][:, None] != host_D[columns][None, :]
            a, b = np.nonzero(apart)
            if len(a):
                yield (start, end), (rows[a], columns[b])


def _host_blocks(inventory: Inventory) -> Iterator[tuple[str, Block]]:
    """Rows and columns of the pairs of different devices on one host."""
    host_D = np.array([device.host for device in inventory.devices])
    for host in inventory.hosts:
        members = np.flatnonzero(host_D == host.id)
        a, b = np.nonzero(~np.eye(len(members), dtype=bool))
        if len(a):
            yield host.id, (members[a], members[b])
