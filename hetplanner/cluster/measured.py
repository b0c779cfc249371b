"""What links and NICs between hosts were measured to carry, and the cluster with these numbers in it.

A run's first rank writes the measurements to `links.json` (`hetplanner/links@1`, SI units) before the first step.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.cluster.link_edits import Pair, set_links
from hetplanner.cluster.model import Cluster, Host
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text, write_text
from hetplanner.units import short_rate, short_seconds

LINKS_FILE, MEASURED_CLUSTER_FILE = "links.json", "cluster-measured.json"
"""In a run's folder: what its ranks measured, and the cluster file with these numbers in it."""
LINKS_VERSION = 1
MAX_LINKS_BYTES = 2**24
WORTH_SAYING = 0.1
"""A cluster file whose bandwidth is off by less is taken for right."""
WORTH_SAYING_S = 0.5e-3
"""Likewise a latency, or by less than `WORTH_SAYING` of it."""

Positive = Annotated[float, Field(strict=True, gt=0, le=1e15)]


class MeasuredLink(Noun):
    """From one host to another: one-way latency in seconds, bandwidth of one connection in bytes per second."""

    from_host: Name
    to_host: Name
    latency_s: Annotated[float, Field(strict=True, ge=0, le=1e6)]
    bandwidth_bytes_per_s: Positive


class MeasuredNic(Noun):
    """What all of a host's connections carried together, in bytes per second.

    Attributes:
        out_bytes_per_s, in_bytes_per_s: None where no more than one rank of another host was spoken to.
        out_is_shared, in_is_shared: together they carried clearly less than one by one.
    """

    host: Name
    out_bytes_per_s: Positive | None = None
    in_bytes_per_s: Positive | None = None
    out_is_shared: bool = False
    in_is_shared: bool = False


class Measured(Noun):
    """All measurements of a run. `measured_unix_s`: when."""

    links: tuple[MeasuredLink, ...]
    nics: tuple[MeasuredNic, ...] = ()
    measured_unix_s: Annotated[float, Field(strict=True, ge=0, le=1e11)] = 0.0


def corrected(cluster: Cluster, measured: Measured, devices: Iterable[str], when: str | None = None) -> Cluster:
    """The cluster with what was measured between hosts in place of what its file says.

    Args:
        cluster: whose hosts were measured.
        measured: hosts that it does not have are passed over.
        devices: ids of the devices whose links get the numbers of their hosts.
        when: words beside the source.
    """
    of_host: dict[str, list[str]] = {}
    for device in devices:
        of_host.setdefault(cluster.host_of(device).id, []).append(device)
    numbers: dict[Pair, tuple[float | None, float | None] | None] = {}
    for link in measured.links:
        for start in of_host.get(link.from_host, ()):
            for end in of_host.get(link.to_host, ()):
                numbers[start, end] = (link.latency_s, link.bandwidth_bytes_per_s)
    return set_links(with_nics(cluster, measured), "device", numbers, source="measured", when=when)


def with_nics(cluster: Cluster, measured: Measured) -> Cluster:
    """The cluster with the measured limits of its hosts' network cards."""
    fastest_out, fastest_in = _fastest(measured)
    nics = {nic.host: nic for nic in measured.nics}
    hosts = tuple(
        _with_nic(host, nics.get(host.id), fastest_out.get(host.id), fastest_in.get(host.id)) for host in cluster.hosts
    )
    return cluster.replace(hosts=hosts)


def _fastest(measured: Measured) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes per second that a single connection was seen to carry out of and into each host."""
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for link in measured.links:
        out[link.from_host] = max(out.get(link.from_host, 0.0), link.bandwidth_bytes_per_s)
        into[link.to_host] = max(into.get(link.to_host, 0.0), link.bandwidth_bytes_per_s)
    return out, into


def _with_nic(host: Host, nic: MeasuredNic | None, fastest_out: float | None, fastest_in: float | None) -> Host:
    nic = nic or MeasuredNic(host=host.id)
    out = _nic_rate(host.nic_out, nic.out_bytes_per_s, nic.out_is_shared, fastest_out)
    into = _nic_rate(host.nic_in, nic.in_bytes_per_s, nic.in_is_shared, fastest_in)
    return host if (out, into) == (host.nic_out, host.nic_in) else host.replace(nic_out=out, nic_in=into)


def _nic_rate(said: float | None, together: float | None, is_shared: bool, fastest: float | None) -> float | None:
    """A NIC's bytes per second: as measured where connections share it, else at least what they carried."""
    if is_shared and together is not None:
        return together
    carried = max(together or 0.0, fastest or 0.0)
    return carried if said is not None and said < carried else said


def differences(cluster: Cluster, measured: Measured) -> tuple[str, ...]:
    """A sentence for every link and NIC of which the cluster says something clearly else, the greatest error first."""
    device_of: dict[str, str] = {}
    for device in cluster.devices:
        device_of.setdefault(device.host, device.id)
    hosts = {host.id: host for host in cluster.hosts}
    found: list[tuple[float, str]] = []
    for link in measured.links:
        start, end = device_of.get(link.from_host), device_of.get(link.to_host)
        if start is None or end is None:
            continue
        try:
            said = cluster.link(start, end)
        except KeyError:
            continue
        way = f"{link.from_host} → {link.to_host}"
        bandwidth = partial(_difference, f"{way}: bandwidth", found=link.bandwidth_bytes_per_s, form=short_rate)
        cards = (hosts[link.from_host].nic_out, hosts[link.to_host].nic_in)
        if bandwidth(said.bandwidth):
            found += bandwidth(min(limit for limit in (said.bandwidth, *cards) if limit is not None))
        if abs(said.latency - link.latency_s) > WORTH_SAYING_S:
            found += _difference(f"{way}: latency", said.latency, link.latency_s, short_seconds)
    for nic in measured.nics:
        host = hosts.get(nic.host)
        if host is None:
            continue
        for word, said_rate, rate, is_shared in (
            ("out", host.nic_out, nic.out_bytes_per_s, nic.out_is_shared),
            ("in", host.nic_in, nic.in_bytes_per_s, nic.in_is_shared),
        ):
            if is_shared and rate is not None:
                found += _difference(f"{nic.host}: NIC {word}", said_rate, rate, short_rate)
    return tuple(text for _, text in sorted(found, key=lambda row: -row[0]))


def _difference(what: str, said: float | None, found: float, form: Callable[[float], str]) -> list[tuple[float, str]]:
    if said is None:
        return [(float("inf"), f"{what} is {form(found)}, the cluster file states no limit")]
    factor = max(said, 1e-12) / max(found, 1e-12)
    error = max(factor, 1.0 / factor) - 1.0
    return [(error, f"{what} is {form(found)}, the cluster file says {form(said)}")] if error > WORTH_SAYING else []


def save_measured(measured: Measured, path: Path) -> None:
    """Writes `links.json`. Raises InvalidInput: it cannot be written."""
    fields = {"format": f"hetplanner/links@{LINKS_VERSION}"} | measured.model_dump(mode="json")
    write_text(path, json.dumps(fields, indent=1) + "\n")


@reader("measured links", at="path")
def load_measured(path: Path) -> Measured:
    """Reads `links.json`. Raises InvalidInput."""
    return checked_json(Measured, read_text(path, MAX_LINKS_BYTES), "links", LINKS_VERSION, path.name)
