"""Clusters drawn from a seed, for benchmarks and comparisons: the same seed gives the same cluster everywhere.

* `r10`: V100 scattered over ten AWS regions, as a spot market would hand them out;
* `r10j`: the same, every pair of devices with luck of its own;
* `jit`: DT-FM's case 5 (8 devices in each of 8 regions) with such luck;
* `mixed_gpus`: hosts of unlike GPUs (T4, V100, A100) with NICs, over a few of the regions.

Between regions links carry what the authors of DT-FM measured (`aws_regions.json`); everything else is assumed or
drawn, and says so. Legend of array suffixes: D devices, in file order.

Source: Yuan et al., Decentralized Training of Foundation Models in Heterogeneous Environments, NeurIPS 2022.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.catalog import device_kind
from hetplanner.cluster.model import MAX_DEVICES, Cluster, Device, DeviceLink, Host, HostLink, Published, Site, SiteLink
from hetplanner.errors import InvalidInput

CASE_5_REGIONS = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")
JITTER = 0.3
"""Standard deviation of the logarithm of a pair's factors."""
MAX_JITTERED = 512
"""Most devices with a link for every pair: 512² = 262,144 of them. Beyond, put the factors on the matrices."""

INSIDE_REGION = (5.0, 2.0)
"""Delay in ms and Gbit/s between devices of one region: what DT-FM assumes."""
INSIDE_SITE = (0.5, 10.0)
"""The same between hosts of one site in `mixed_gpus`: assumed, a usual Ethernet of 10 Gbit/s."""
INSIDE_HOST_S = 10e-6
HOST_NIC_GBPS = {"T4": 10.0, "V100-16": 10.0, "A100-40": 50.0}
"""NIC of a host by what it holds, assumed: newer hosts have faster ones."""
OTHER_NIC_GBPS = 10.0


@dataclass(frozen=True)
class _Regions:
    """Ten AWS regions; (delay in ms, Gbit/s) of every ordered pair of two different ones."""

    source: str
    sites: tuple[Site, ...]
    measured: dict[tuple[str, str], tuple[float, float]]


def r10(seed: int, *, num_devices: int = 64) -> Cluster:
    """V100 drawn over ten regions, each uniformly: `default_rng(seed).integers(0, 10, num_devices)`.

    Raises:
        InvalidInput: fewer than one device, or more than a cluster holds.
    """
    regions = _regions()
    site_D, _ = _draw_sites(seed, num_devices)
    return _one_kind_cluster("r10", seed, [regions.sites[s].name for s in site_D])


def r10j(seed: int, *, num_devices: int = 64) -> Cluster:
    """As :func:`r10`, with :func:`jitter_factors_DD` on every pair (the same generator draws on).

    Raises:
        InvalidInput: fewer than one device, or more than `MAX_JITTERED`.
    """
    _check("num_devices", num_devices, MAX_JITTERED)
    regions = _regions()
    site_D, rng = _draw_sites(seed, num_devices)
    cluster = _one_kind_cluster("r10j", seed, [regions.sites[s].name for s in site_D])
    return _jittered(cluster, rng)


def jit(seed: int) -> Cluster:
    """DT-FM's case 5 with :func:`jitter_factors_DD` on every pair, drawn by `default_rng(seed)`."""
    cluster = _one_kind_cluster("jit", seed, [name for name in CASE_5_REGIONS for _ in range(8)])
    return _jittered(cluster, np.random.default_rng(seed))


def mixed_gpus(
    seed: int,
    *,
    num_devices: int = 16,
    num_sites: int = 4,
    gpus_per_host: int = 2,
    kinds: Sequence[str] = ("T4", "V100-16", "A100-40"),
) -> Cluster:
    """Hosts of unlike GPUs over a few regions, in a file order that says nothing.

    Regions are drawn without repeats. Every host has GPUs of one kind and a NIC, shared by its devices; its kind and
    its site are drawn, but none of the kinds and sites is left out while there are hosts enough.

    Args:
        seed: of all draws.
        num_devices: in all; the last host may hold fewer than the others.
        num_sites: of the ten regions.
        gpus_per_host: at most.
        kinds: names in the GPU catalog.

    Raises:
        InvalidInput: for an unknown kind, or a number out of range.
    """
    _check("num_devices", num_devices, MAX_DEVICES)
    _check("num_sites", num_sites, len(_regions().sites))
    _check("gpus_per_host", gpus_per_host, MAX_DEVICES)
    names = [device_kind(name).name for name in kinds]
    _check("kinds", len(names), MAX_DEVICES)
    rng = np.random.default_rng(seed)
    sites = [_regions().sites[i] for i in sorted(rng.choice(len(_regions().sites), num_sites, replace=False))]
    num_hosts = -(-num_devices // gpus_per_host)
    kind_H = [names[i] for i in _spread(num_hosts, len(names), rng)]
    site_H = [sites[i] for i in _spread(num_hosts, len(sites), rng)]
    used = [site for site in sites if site in site_H]
    hosts = [_host(f"host-{h}", site, kind) for h, (site, kind) in enumerate(zip(site_H, kind_H, strict=True))]
    devices = [
        Device(id=f"gpu-{d}", kind=kind_H[d // gpus_per_host], host=f"host-{d // gpus_per_host}")
        for d in range(num_devices)
    ]
    return Cluster(
        name=f"mixed-gpus-{seed}",
        description=f"{num_devices} unlike GPUs on {num_hosts} hosts at {len(used)} sites",
        provenance=f"generated, mixed_gpus, seed {seed}: sites, hosts and kinds are drawn; inside sites and hosts links"
        f" and NICs are assumed. Between sites: {_regions().source}",
        sites=tuple(used),
        hosts=tuple(hosts),
        devices=tuple(devices),
        site_links=_site_links(used, INSIDE_SITE, published=False),
        host_links=tuple(_host_link(host, kind) for host, kind in zip(hosts, kind_H, strict=True)),
    )


GENERATORS: dict[str, Callable[[int], Cluster]] = {"r10": r10, "r10j": r10j, "jit": jit, "mixed-gpus": mixed_gpus}


def generate_cluster(name: str, seed: int) -> Cluster:
    """A cluster by the name of its generator. Raises InvalidInput for an unknown one, or a seed below 0."""
    if name not in GENERATORS:
        raise InvalidInput(f"generator: must be one of {', '.join(GENERATORS)}, got {name!r:.60}")
    if seed < 0:
        raise InvalidInput(f"seed: must be at least 0, got {seed}")
    return GENERATORS[name](seed)


def jitter_factors_DD(num_devices: int, rng: np.random.Generator, sigma: float = JITTER) -> FloatArray:
    """Symmetric lognormal(sigma) factors, one for every pair of devices; 1 on the diagonal."""
    upper_DD = np.triu(np.exp(rng.normal(0, sigma, (num_devices, num_devices))), 1)
    return upper_DD + upper_DD.T + np.eye(num_devices)


def _jittered(cluster: Cluster, rng: np.random.Generator) -> Cluster:
    """Every pair times its own factors; bandwidth's are drawn first, then delay's."""
    count = len(cluster.devices)
    gbps_DD = cluster.published_bandwidth_gbps_DD * jitter_factors_DD(count, rng)
    delay_ms_DD = cluster.published_delay_ms_DD * jitter_factors_DD(count, rng)
    ids = cluster.device_ids
    links = tuple(
        DeviceLink(
            from_device=ids[a],
            to_device=ids[b],
            **_link_value(float(delay_ms_DD[a, b]), float(gbps_DD[a, b]), published=True),
            source="assumed",
        )
        for a in range(count)
        for b in range(count)
        if a != b
    )
    words = f". On every pair of devices: lognormal({JITTER}) factors, drawn too"
    return cluster.replace(device_links=links, provenance=cluster.provenance + words)


def _one_kind_cluster(generator: str, seed: int, site_names: Sequence[str]) -> Cluster:
    """One V100 with a host of its own for every name, in this order, and links as DT-FM has them."""
    regions = _regions()
    used = [site for site in regions.sites if site.name in set(site_names)]
    seen = dict.fromkeys(site_names, 0)
    hosts, devices = [], []
    for name in site_names:
        device_id = f"{name.lower()}-{seen[name]}"
        seen[name] += 1
        hosts.append(Host(id=device_id, site=name))
        devices.append(Device(id=device_id, kind="V100-16", host=device_id))
    counts = ", ".join(f"{site.name} {seen[site.name]}" for site in used)
    return Cluster(
        name=f"{generator}-{seed}",
        description=f"{len(devices)} V100 over {len(used)} AWS regions: {counts}",
        provenance=f"generated, {generator}, seed {seed}: 5 ms and 2 Gbit/s inside a region are assumed. Between"
        f" regions: {regions.source}",
        sites=tuple(used),
        hosts=tuple(hosts),
        devices=tuple(devices),
        site_links=_site_links(used, INSIDE_REGION, published=True),
    )


def _draw_sites(seed: int, num_devices: int) -> tuple[IntArray, np.random.Generator]:
    _check("num_devices", num_devices, MAX_DEVICES)
    rng = np.random.default_rng(seed)
    return rng.integers(0, len(_regions().sites), num_devices), rng


def _spread(count: int, choices: int, rng: np.random.Generator) -> IntArray:
    """`count` draws of `choices`, every choice at least once if there are draws enough, in random order."""
    drawn = np.concatenate([rng.permutation(choices)[:count], rng.integers(0, choices, max(0, count - choices))])
    return rng.permutation(drawn)


def _site_links(sites: Sequence[Site], inside: tuple[float, float], *, published: bool) -> tuple[SiteLink, ...]:
    measured = _regions().measured
    return tuple(
        SiteLink(
            from_site=a.name,
            to_site=b.name,
            **_link_value(*(inside if a is b else measured[a.name, b.name]), published=published or a is not b),
            source="assumed" if a is b else "measured",
            when=None if a is b else "published 2022",
        )
        for a in sites
        for b in sites
    )


def _link_value(delay_ms: float, gbps: float, *, published: bool) -> dict[str, Any]:
    """One way as DT-FM uses its delays; `published` keeps the literal numbers for the objective `dtfm`."""
    literal = Published(delay_ms=delay_ms, bandwidth_gbps=gbps) if published else None
    return {"latency": delay_ms * 1e-3, "bandwidth": gbps * 1e9 / 8, "published": literal}


def _host(host_id: str, site: Site, kind: str) -> Host:
    nic = HOST_NIC_GBPS.get(kind, OTHER_NIC_GBPS) * 1e9 / 8
    return Host(id=host_id, site=site.name, nic_out=nic, nic_in=nic)


def _host_link(host: Host, kind: str) -> HostLink:
    rate = device_kind(kind).link_bytes_per_s
    return HostLink(host=host.id, latency=INSIDE_HOST_S, bandwidth=rate, source="specified")


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidInput(f"{name}: must be from 1 to {most}, got {value}")


@cache
def _regions() -> _Regions:
    data = json.loads((files("hetplanner.cluster") / "aws_regions.json").read_text(encoding="utf-8"))
    sites = tuple(
        Site(name=name, latitude=lat, longitude=long, provider="aws", region=region)
        for name, lat, long, region in data["regions"]
    )
    pairs = {(a, b): (delay, gbps) for a, b, delay, gbps in data["delay_ms_and_gbps"]}
    return _Regions(data["source"], sites, pairs | {(b, a): value for (a, b), value in pairs.items()})
