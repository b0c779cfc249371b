"""The cluster: devices on hosts at sites, and one directed link for every ordered pair of devices.

A cluster is kept in its compact site form (what files hold and what a person edits); the
device × device matrices are derived from it. Shape legend: D devices, in file order.
"""

import difflib
import unicodedata
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hetplanner.cluster.parts import name_parts, parts_of
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput
from hetplanner.schema import Bytes, BytesPerSecond, FlopsPerSecond, Name, Noun, PositiveBytes, Seconds, Text

MAX_DEVICES = 4096

NO_LINK_S = 1e6
"""What searches take the latency between devices without a link to be: longer than any step, and finite."""

Source = Literal["measured", "specified", "assumed"]


class Site(Noun):
    """A place with hosts: drawn on the map, and charged for bytes that leave it.

    `egress_usd_per_gb` is what a GB to any other site costs (0: nothing, the link is one's own). Where it is None the
    price list of `provider` (as `aws`) says it by `region` (as `eu-central-1`), else it is unknown.
    """

    name: Name
    latitude: Annotated[float, Field(strict=True, ge=-90, le=90)]
    longitude: Annotated[float, Field(strict=True, ge=-180, le=180)]
    egress_usd_per_gb: Annotated[float, Field(strict=True, ge=0, le=1000)] | None = None
    provider: Name | None = None
    region: Name | None = None


class Host(Noun):
    """A machine at a site; its NIC is shared by its devices, each way on its own."""

    id: Name
    site: Name
    nic_out: BytesPerSecond | None = None
    nic_in: BytesPerSecond | None = None


class Device(Noun):
    """One accelerator (or CPU) that holds a rank. What is None comes from the GPU catalog by `kind`.

    `efficiency` is the share of `peak` that training reaches (measured or assumed).
    """

    id: Name
    kind: Name
    host: Name
    peak: dict[DType, FlopsPerSecond] | None = None
    memory: PositiveBytes | None = None
    memory_bandwidth: BytesPerSecond | None = None
    efficiency: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    reserve: Bytes | None = None
    price_usd_per_hour: Annotated[float, Field(strict=True, ge=0, le=10_000)] | None = None


class Published(Noun):
    """A source's literal numbers for a link, units unchecked; only the objective `dtfm` reads them."""

    bandwidth_gbps: Annotated[float, Field(strict=True, ge=1e-9, le=1e9)]
    delay_ms: Annotated[float, Field(strict=True, ge=0, le=1e9)]


class LinkValue(Noun):
    """What a link carries: one-way latency and bandwidth, and how that is known.

    `replaces` says, for a link that a person edited, what stood there before.
    """

    latency: Seconds
    bandwidth: BytesPerSecond
    source: Source = "assumed"
    when: Text | None = None
    published: Published | None = None
    replaces: Text | None = None


class SiteLink(LinkValue):
    """Between hosts of two sites, or (`from` = `to`) between hosts inside one site."""

    from_site: Annotated[Name, Field(alias="from")]
    to_site: Annotated[Name, Field(alias="to")]
    model_config = LinkValue.model_config | {"validate_by_name": True, "validate_by_alias": True}


class HostLink(LinkValue):
    """Between the devices inside one host (NVLink, PCIe)."""

    host: Name


class DeviceLink(LinkValue):
    """One directed pair of devices; overrides every other rule."""

    from_device: Annotated[Name, Field(alias="from")]
    to_device: Annotated[Name, Field(alias="to")]
    model_config = LinkValue.model_config | {"validate_by_name": True, "validate_by_alias": True}


class TransferCost(Noun):
    """What messages cost beside their links, steps beside their plans and operators beside their arithmetic: measured.

    Attributes:
        message: seconds of a rank to hand a message over, and again of the rank that takes it.
        overlap: share of a message's wire time for which the sender goes on computing.
        step: seconds that every rank takes at the end of a step whatever it holds, such as for an optimizer on the
            processor, for data or for finding each other.
        launch: seconds to launch an operator of the model in a forward, and twice in a backward. A processor needs them
            beside the arithmetic; a GPU computes meanwhile, so the longer counts.
    """

    message: Seconds = 0.0
    overlap: Annotated[float, Field(strict=True, ge=0, le=1)] = 1.0
    step: Annotated[Seconds, Field(exclude_if=lambda value: not value)] = 0.0
    launch: Annotated[Seconds, Field(exclude_if=lambda value: not value)] = 0.0


class Cluster(Noun):
    """Devices, hosts, sites and links. The later of two rules for the same pair wins (file order).

    Rules for a pair of devices, strongest first: `device_links`, `host_links` (same host),
    `site_links`. Every ordered pair inside a site must be covered. Devices of two sites that no rule covers have no
    link: plans do not let them talk. A link needs one back, and every device must be reached from every other, over
    others if need be.
    """

    name: Name
    description: Text = ""
    provenance: Text = ""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]
    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    site_links: tuple[SiteLink, ...] = ()
    host_links: tuple[HostLink, ...] = ()
    device_links: tuple[DeviceLink, ...] = ()
    transfer: TransferCost | None = None

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        sites = _unique([s.name for s in self.sites], "sites", "name")
        hosts = _unique([h.id for h in self.hosts], "hosts", "id")
        devices = _unique([d.id for d in self.devices], "devices", "id")
        _known([h.site for h in self.hosts], sites, "hosts", "site")
        _known([d.host for d in self.devices], hosts, "devices", "host")
        _known([x for k in self.site_links for x in (k.from_site, k.to_site)], sites, "site_links", "from/to", 2)
        _known([k.host for k in self.host_links], hosts, "host_links", "host")
        _known(
            [x for k in self.device_links for x in (k.from_device, k.to_device)],
            devices,
            "device_links",
            "from/to",
            2,
        )
        self._refuse_disconnected()
        return self

    def _refuse_disconnected(self) -> None:
        if not self.has_gaps:
            return
        index_DD = self.link_index_DD
        here = np.argwhere((index_DD == -1) & (self.site_index_D[:, None] == self.site_index_D[None, :]))
        for a, b in here[:1]:
            one, two = self.device_ids[a], self.device_ids[b]
            raise ValueError(
                f"no link from device {one!r:.60} to {two!r:.60} ({len(here)} pairs inside sites are unconnected);"
                f" {self._remedy(a, b)}"
            )
        for a, b in np.argwhere((index_DD >= 0) & (index_DD.T == -1))[:1]:
            one, two = self.devices[a], self.devices[b]
            raise ValueError(
                f"no link from device {two.id!r:.60} to {one.id!r:.60}, only one the other way; {self._remedy(b, a)}"
            )
        parts = parts_of(self.joined_DD)
        if len(parts) > 1:
            names = name_parts(parts, [self.site_of(d).name for d in self.device_ids], self.device_ids)
            raise ValueError(
                f"disconnected: the devices fall into {len(parts)} parts without a link between them: {names};"
                f" {self._remedy(parts[0][0], parts[1][0])}"
            )

    def _remedy(self, start: int, end: int) -> str:
        one, two = self.devices[start], self.devices[end]
        sites = self.site_of(one.id).name, self.site_of(two.id).name
        ways = ", symmetric," if sites[0] != sites[1] else ""
        remedy = f"add a site_links entry{ways} from {sites[0]!r:.60} to {sites[1]!r:.60}"
        if one.host == two.host:
            remedy += f" or a host_links entry for host {one.host!r:.60}"
        return remedy

    # -- look-ups ---------------------------------------------------------------------------------

    @cached_property
    def device_ids(self) -> tuple[str, ...]:
        """Ids in file order, which is the order of every D axis."""
        return tuple(d.id for d in self.devices)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {d.id: i for i, d in enumerate(self.devices)}

    def device_index(self, device_id: str) -> int:
        """Row of a device in the matrices. Raises KeyError."""
        return self._index[device_id]

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {h.id: h for h in self.hosts}

    @cached_property
    def _sites(self) -> dict[str, Site]:
        return {s.name: s for s in self.sites}

    def host_of(self, device_id: str) -> Host:
        """The host of a device."""
        return self._hosts[self.devices[self._index[device_id]].host]

    def site_of(self, device_id: str) -> Site:
        """The site of a device."""
        return self._sites[self.host_of(device_id).site]

    @cached_property
    def site_index_D(self) -> np.ndarray:
        """Row of each device's site in `sites`."""
        order = {s.name: i for i, s in enumerate(self.sites)}
        return np.array([order[self.host_of(d.id).site] for d in self.devices], dtype=np.int64)

    @cached_property
    def host_index_D(self) -> np.ndarray:
        """Row of each device's host in `hosts`."""
        order = {h.id: i for i, h in enumerate(self.hosts)}
        return np.array([order[d.host] for d in self.devices], dtype=np.int64)

    # -- links ------------------------------------------------------------------------------------

    @cached_property
    def links(self) -> tuple[LinkValue, ...]:
        """All rules: site links, host links, device links; `link_index_DD` points into this."""
        return (*self.site_links, *self.host_links, *self.device_links)

    @cached_property
    def link_index_DD(self) -> np.ndarray:
        """The rule in force from row device to column device; -1 where there is none, -2 on the diagonal."""
        site_rank = {s.name: i for i, s in enumerate(self.sites)}
        rule_SS = np.full((len(self.sites), len(self.sites)), -1, dtype=np.int32)
        for k, site_link in enumerate(self.site_links):
            rule_SS[site_rank[site_link.from_site], site_rank[site_link.to_site]] = k
        rule_DD = rule_SS[np.ix_(self.site_index_D, self.site_index_D)]
        host_rank = {h.id: i for i, h in enumerate(self.hosts)}
        for k, host_link in enumerate(self.host_links, start=len(self.site_links)):
            members = np.flatnonzero(self.host_index_D == host_rank[host_link.host])
            rule_DD[np.ix_(members, members)] = k
        for k, link in enumerate(self.device_links, start=len(self.site_links) + len(self.host_links)):
            rule_DD[self._index[link.from_device], self._index[link.to_device]] = k
        np.fill_diagonal(rule_DD, -2)
        rule_DD.flags.writeable = False
        return rule_DD

    def link(self, from_device: str, to_device: str) -> LinkValue:
        """The rule in force between two devices. Raises KeyError for one and the same, an unknown one or no link."""
        index = int(self.link_index_DD[self._index[from_device], self._index[to_device]])
        if index < 0:
            raise KeyError(f"{from_device} has no link to {to_device}")
        return self.links[index]

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are pairs of devices without a link."""
        return bool((self.link_index_DD == -1).any())

    @cached_property
    def joined_DD(self) -> np.ndarray:
        """Whether two devices have a link (a device has one to itself)."""
        joined_DD = self.link_index_DD != -1
        return joined_DD & joined_DD.T

    def site_gaps(self) -> tuple[tuple[str, str, int], ...]:
        """Pairs of sites (or one site twice) between whose devices links are missing, and for how many pairs."""
        counts: dict[tuple[str, str], int] = {}
        for a, b in np.argwhere(np.triu(~self.joined_DD, 1)).tolist() if self.has_gaps else ():
            ends = sorted((int(self.site_index_D[a]), int(self.site_index_D[b])))
            pair = (self.sites[ends[0]].name, self.sites[ends[1]].name)
            counts[pair] = counts.get(pair, 0) + 1
        return tuple((a, b, count) for (a, b), count in counts.items())

    def _per_pair(self, values: Sequence[float], diagonal: float, missing: float) -> np.ndarray:
        table = np.array([*values, diagonal, missing], dtype=np.float64)  # [-2] and [-1]
        matrix_DD = table[self.link_index_DD]
        matrix_DD.flags.writeable = False
        return matrix_DD

    @cached_property
    def latency_s_DD(self) -> np.ndarray:
        """One-way latency, row to column; 0 on the diagonal, infinite where there is no link."""
        return self._per_pair([k.latency for k in self.links], 0.0, np.inf)

    @cached_property
    def bandwidth_bytes_per_s_DD(self) -> np.ndarray:
        """Bandwidth, row to column; infinite on the diagonal, 0 where there is no link."""
        return self._per_pair([k.bandwidth for k in self.links], np.inf, 0.0)

    @cached_property
    def published_delay_ms_DD(self) -> np.ndarray:
        """The source's literal delay where a link has one, else the latency in ms; `NO_LINK_S` without a link."""
        delays = [k.published.delay_ms if k.published else k.latency * 1e3 for k in self.links]
        return self._per_pair(delays, 0.0, NO_LINK_S * 1e3)

    @cached_property
    def published_bandwidth_gbps_DD(self) -> np.ndarray:
        """The source's literal bandwidth where a link has one, else Gbit/s; 1 without a link (the delay says it)."""
        rates = [k.published.bandwidth_gbps if k.published else k.bandwidth * 8 / 1e9 for k in self.links]
        return self._per_pair(rates, np.inf, 1.0)

    def subset(self, device_ids: Sequence[str]) -> "Cluster":
        """The cluster of these devices alone, in the given order, with their hosts, sites and links.

        Raises:
            InvalidInput: an unknown device, one given twice, or none at all.
        """
        _refuse_unknown(device_ids, self._index, "devices", self.name)
        chosen = [self.devices[self._index[d]] for d in device_ids]
        hosts = {d.host for d in chosen}
        sites = {self._hosts[h].site for h in hosts}
        return self.replace(
            devices=tuple(chosen),
            hosts=tuple(h for h in self.hosts if h.id in hosts),
            sites=tuple(s for s in self.sites if s.name in sites),
            site_links=tuple(k for k in self.site_links if {k.from_site, k.to_site} <= sites),
            host_links=tuple(k for k in self.host_links if k.host in hosts),
            device_links=tuple(k for k in self.device_links if {k.from_device, k.to_device} <= set(device_ids)),
        )


def _unique(values: list[str], where: str, field: str) -> set[str]:
    seen: dict[str, str] = {}
    for i, value in enumerate(values):
        # Full-width digits, ligatures and the like are other characters that readers cannot tell apart on a page.
        shown = value if value.isascii() else unicodedata.normalize("NFKC", value)
        other = seen.setdefault(shown, value)
        if other != value:
            raise ValueError(
                f"{where}[{i}].{field}: {value!r:.60} ({value!a:.80}) looks like {other!r:.60}; rename one"
            )
        if len(seen) == i:
            raise ValueError(f"{where}[{i}].{field}: must be unique, {value!r:.60} is already taken; rename one")
    return set(values)


def _known(values: list[str], known: set[str], where: str, field: str, per_item: int = 1) -> None:
    for i, value in enumerate(values):
        if value not in known:
            part = field.split("/")[i % per_item]
            raise ValueError(
                f"{where}[{i // per_item}].{part}: unknown name {value!r:.60}; {nearest_names(value, known)}"
            )


def nearest_names(name: str, known: Collection[str]) -> str:
    """'known are a-1, a-2, …': those most like a name that is not known, or the first."""
    near = difflib.get_close_matches(name, known, n=3) or sorted(known)[:5]
    return f"known are {', '.join(near)}" + (", …" if len(near) < len(known) else "")


def _refuse_unknown(names: Sequence[str], known: Collection[str], where: str, place: str) -> None:
    for i, name in enumerate(names):
        if name not in known:
            raise InvalidInput(f"{place}: {where}[{i}]: unknown name {name!r:.60}; {nearest_names(name, known)}")
