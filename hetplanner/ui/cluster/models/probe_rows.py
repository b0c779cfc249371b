"""What a probe has measured, beside what the cluster says: rows of tables, and sentences."""

from collections.abc import Callable
from dataclasses import dataclass

from hetplanner.cluster.catalog import DeviceSpec, resolve_device
from hetplanner.cluster.model import Cluster, Device
from hetplanner.errors import HetplannerError
from hetplanner.hosts.probe.record import ProbedDevice, Record
from hetplanner.hosts.probe.result import findings
from hetplanner.ui.shell.models.texts import counted
from hetplanner.units import short_bytes, short_flops_per_s, short_rate, short_seconds

MOST_LINKS, MOST_DEVICES, MOST_FINDINGS = 200, 64, 100
"""Rows that a page shows; the numbers of all go into the cluster."""
LINK_HEAD = (
    "From", "To", "Latency, one way", "In the cluster", "Spread", "One connection", "In the cluster", "Several at once",
)  # fmt: skip
LINK_NUMBERS = 6
DEVICE_HEAD = ("Device", "Called", "Matrix products", "In the cluster", "A block's share", "Memory", "In the cluster")
DEVICE_NUMBERS = 5
_DASH = "–"


@dataclass(frozen=True)
class ProbeRows:
    """Texts.

    Attributes:
        links: as `LINK_HEAD`, in the order of the cluster's hosts.
        devices: as `DEVICE_HEAD`.
        findings: sentences.
        more: what is left out, in words; '' if nothing is.
    """

    links: tuple[tuple[str, ...], ...]
    devices: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...]
    more: str


def probe_rows(cluster: Cluster, record: Record) -> ProbeRows:
    """The rows of a record.

    Args:
        cluster: what is beside them; the record is of its hosts.
        record: what was measured so far.
    """
    told = findings(cluster, record)
    devices = {device.id: device for device in cluster.devices}
    counts = {
        "link": len(record.links) - MOST_LINKS,
        "device": len(record.devices) - MOST_DEVICES,
        "finding": len(told) - MOST_FINDINGS,
    }
    left_out = [counted(count, f"more {noun}") for noun, count in counts.items() if count > 0]
    return ProbeRows(
        _link_rows(cluster, record),
        tuple(_device_row(devices[one.device], one) for one in record.devices[:MOST_DEVICES]),
        told[:MOST_FINDINGS],
        f"Not shown: {', '.join(left_out)}." if left_out else "",
    )


def measured_text(record: Record) -> str:
    """'12 links and 4 devices'."""
    parts = [("link", record.links), ("device", record.devices)]
    return " and ".join(counted(len(found), noun) for noun, found in parts if found) or "nothing yet"


def _link_rows(cluster: Cluster, record: Record) -> tuple[tuple[str, ...], ...]:
    order = {host.id: i for i, host in enumerate(cluster.hosts)}
    device_of: dict[str, str] = {}
    for device in cluster.devices:
        device_of.setdefault(device.host, device.id)
    links = sorted(record.links, key=lambda link: (order[link.from_host], order[link.to_host]))
    rows = []
    for link in links[:MOST_LINKS]:
        latency, bandwidth = _said_of_link(cluster, device_of.get(link.from_host), device_of.get(link.to_host))
        rows.append(
            (
                link.from_host,
                link.to_host,
                short_seconds(link.latency_s),
                latency,
                short_seconds(link.latency_spread_s),
                short_rate(link.bytes_per_s),
                bandwidth,
                short_rate(link.several_bytes_per_s),
            )
        )
    return tuple(rows)


def _said_of_link(cluster: Cluster, start: str | None, end: str | None) -> tuple[str, str]:
    """Latency and bandwidth as the cluster has them."""
    if start is None or end is None:
        return _DASH, _DASH
    try:
        link = cluster.link(start, end)
    except KeyError:
        return "no link", "no link"
    return short_seconds(link.latency), short_rate(link.bandwidth)


def _device_row(device: Device, found: ProbedDevice) -> tuple[str, ...]:
    def said(read: Callable[[DeviceSpec], str]) -> str:
        try:
            return read(resolve_device(device))
        except HetplannerError:  # the cluster leaves it open
            return _DASH

    return (
        found.device,
        found.name,
        ", ".join(f"{dtype} {short_flops_per_s(rate)}" for dtype, rate in found.flops_per_s.items()),
        said(lambda spec: ", ".join(short_flops_per_s(spec.flops_per_s(dtype)) for dtype in found.flops_per_s)),
        f"{found.efficiency:.0%}",
        short_bytes(found.memory_bytes),
        said(lambda spec: short_bytes(spec.memory_bytes)),
    )
