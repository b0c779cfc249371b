"""What a probe found, as numbers of a cluster, and in sentences."""

from collections.abc import Mapping
from statistics import median

from hetplanner.cluster.link_edits import Pair, set_links
from hetplanner.cluster.measured import Measured, MeasuredLink, MeasuredNic, differences, with_nics
from hetplanner.cluster.model import Cluster, Device
from hetplanner.hosts.probe.record import ProbedDevice, ProbedLink, ProbedTogether, Record
from hetplanner.units import short_flops_per_s, short_rate

SHARED = 0.85
"""Connections that carry less than this share of their sum one by one are limited together."""
SEVERAL = 1.2
"""Several connections that carry so much more than one: one cannot fill the path."""
ALIKE, ALIKE_S = 0.05, 0.5e-3
"""Links between the hosts of two sites that differ by less have one entry for all: a share of it, and seconds."""


def probed_cluster(cluster: Cluster, record: Record, when: str) -> Cluster:
    """The cluster with what was measured in place of what its file says.

    Hosts of two sites between which all links are alike get the numbers of a link between the sites, their median; the
    others have entries of their own. Pairs of hosts that were not measured have what their sites have.

    Args:
        cluster: its hosts and devices are the record's.
        when: words beside the source of every number.
    """
    measured = {one.device: one for one in record.devices}
    devices = tuple(_measured_device(device, measured.get(device.id)) for device in cluster.devices)
    found = cluster.replace(devices=devices, provenance=_provenance(cluster, when))
    found = with_nics(found, as_measured(record))
    return _with_links(found, record, when)


def _provenance(cluster: Cluster, when: str) -> str:
    told = f"Measured by `hetplanner cluster probe`, {when}."
    return f"{cluster.provenance.rstrip()} {told}".strip() if told not in cluster.provenance else cluster.provenance


def _measured_device(device: Device, found: ProbedDevice | None) -> Device:
    if found is None:
        return device
    return device.replace(
        peak=dict(found.flops_per_s),
        efficiency=found.efficiency,
        memory=found.memory_bytes,
        memory_bandwidth=found.memory_bandwidth_bytes_per_s,
    )


def as_measured(record: Record) -> Measured:
    """The record's links and network cards in the form of those that ranks measure."""
    ways: dict[str, dict[str, ProbedTogether]] = {}
    for one in record.together:
        if one.host is not None:
            ways.setdefault(one.host, {})[one.way] = one
    return Measured(
        links=tuple(
            MeasuredLink(
                from_host=link.from_host,
                to_host=link.to_host,
                latency_s=link.latency_s,
                bandwidth_bytes_per_s=link.bytes_per_s,
            )
            for link in record.links
        ),
        nics=tuple(_nic(host, found) for host, found in ways.items()),
        measured_unix_s=record.begun_unix_s,
    )


def _nic(host: str, ways: Mapping[str, ProbedTogether]) -> MeasuredNic:
    out, into = ways.get("out"), ways.get("in")
    return MeasuredNic(
        host=host,
        out_bytes_per_s=out and out.together_bytes_per_s,
        in_bytes_per_s=into and into.together_bytes_per_s,
        out_is_shared=out is not None and is_shared(out),
        in_is_shared=into is not None and is_shared(into),
    )


def is_shared(one: ProbedTogether) -> bool:
    """Whether connections at once carry clearly less than one by one."""
    return one.together_bytes_per_s < SHARED * one.one_by_one_bytes_per_s


def _with_links(cluster: Cluster, record: Record, when: str) -> Cluster:
    site_of = {host.id: host.site for host in cluster.hosts}
    devices_of: dict[str, list[str]] = {}
    for device in cluster.devices:
        devices_of.setdefault(device.host, []).append(device.id)
    by_sites: dict[Pair, list[ProbedLink]] = {}
    for link in record.links:
        by_sites.setdefault((site_of[link.from_host], site_of[link.to_host]), []).append(link)
    of_sites = {
        pair: (median(link.latency_s for link in links), median(link.bytes_per_s for link in links))
        for pair, links in by_sites.items()
    }
    of_devices: dict[Pair, tuple[float | None, float | None] | None] = {}
    for pair, links in by_sites.items():
        for link in links:
            values = None if _is_alike(link, *of_sites[pair]) else (link.latency_s, link.bytes_per_s)
            for start in devices_of.get(link.from_host, ()):
                for end in devices_of.get(link.to_host, ()):
                    of_devices[start, end] = values
    found = set_links(cluster, "site", dict(of_sites), source="measured", when=when)
    return set_links(found, "device", of_devices, source="measured", when=when)


def _is_alike(link: ProbedLink, latency_s: float, bytes_per_s: float) -> bool:
    is_as_late = abs(link.latency_s - latency_s) <= max(ALIKE_S, ALIKE * latency_s)
    return is_as_late and abs(link.bytes_per_s - bytes_per_s) <= ALIKE * bytes_per_s


# -- in sentences ---------------------------------------------------------------------------------


def findings(cluster: Cluster, record: Record) -> tuple[str, ...]:
    """What is worth knowing: shared cards and ways out, paths that one connection does not fill, a wrong file.

    Args:
        cluster: as its file was.
    """
    told = [_shared_words(one) for one in record.together if is_shared(one)]
    told += [_several_words(link) for link in record.links if link.several_bytes_per_s > SEVERAL * link.bytes_per_s]
    return (*told, *differences(cluster, as_measured(record)))


def _shared_words(one: ProbedTogether) -> str:
    numbers = (
        f"{one.connections} connections at once carry {short_rate(one.together_bytes_per_s)}, one by one"
        f" {short_rate(one.one_by_one_bytes_per_s)} in all"
    )
    if one.host is not None:
        return f"{one.host}: {numbers}: they share its network card ({one.way})"
    return (
        f"site {one.site}: {numbers}: its hosts share the way {one.way}. A cluster file has no limit of a site; where"
        " its hosts send to other sites at the same time, a step takes longer than planned"
    )


def _several_words(link: ProbedLink) -> str:
    return (
        f"{link.from_host} → {link.to_host}: one connection carries {short_rate(link.bytes_per_s)}, {link.streams} at"
        f" once {short_rate(link.several_bytes_per_s)}; train with `--connections {link.streams}`"
    )


def device_words(one: ProbedDevice) -> str:
    """A device's numbers in a line."""
    rates = ", ".join(f"{name} {short_flops_per_s(rate)}" for name, rate in one.flops_per_s.items())
    return f"{one.device} ({one.name}): {rates}, a transformer's block {one.efficiency:.0%} of it"
