"""Edits of a cluster's links: a new cluster for every edit, the old one stays as it was.

Every changed link says how its numbers are known now: `specified` (a person gave them), `assumed` (a formula did), or
as their table is known; and keeps in `replaces` what stood there before the first edit. Links that an edit does not
name stay as they are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from hetplanner.cluster.distance import DEFAULT_FORMULA, DistanceFormula, distance_link
from hetplanner.cluster.model import Cluster, DeviceLink, HostLink, LinkValue, SiteLink, Source
from hetplanner.errors import InvalidInput
from hetplanner.schema import checked
from hetplanner.units import short_rate, short_seconds

Per = Literal["site", "host", "device"]
EditSource = Literal["specified", "assumed"]
Pair = tuple[str, str]
Numbers = tuple[float | None, float | None]
"""One-way latency in seconds and bandwidth in bytes per second; None keeps what is in force."""


class LinkEnds(NamedTuple):
    """What a link joins: two sites (or one with itself), two devices, or the devices of one host (named twice)."""

    per: Per
    start: str
    end: str

    @property
    def turned(self) -> "LinkEnds":
        """The other direction."""
        return LinkEnds(self.per, self.end, self.start)

    @property
    def text(self) -> str:
        """'Oregon → Ohio', 'inside Oregon', 'inside host box'."""
        if self.start == self.end:
            return f"inside {'host ' if self.per == 'host' else ''}{self.start}"
        return f"{self.start} → {self.end}"


@dataclass(frozen=True)
class _Kind:
    """One of the three lists of links a cluster has."""

    field: str
    model: type[LinkValue]
    ends: tuple[str, str]

    def pair_of(self, link: LinkValue) -> Pair:
        return getattr(link, self.ends[0]), getattr(link, self.ends[1])


_KINDS: dict[Per, _Kind] = {
    "site": _Kind("site_links", SiteLink, ("from_site", "to_site")),
    "host": _Kind("host_links", HostLink, ("host", "host")),
    "device": _Kind("device_links", DeviceLink, ("from_device", "to_device")),
}


def ends_of(link: LinkValue) -> LinkEnds:
    """What an entry of a cluster joins."""
    per = next(per for per, kind in _KINDS.items() if isinstance(link, kind.model))
    return LinkEnds(per, *_KINDS[per].pair_of(link))


def own_link(cluster: Cluster, ends: LinkEnds) -> LinkValue | None:
    """The entry for exactly these ends (the later of two wins), None if there is none."""
    kind = _KINDS[ends.per]
    links = reversed(getattr(cluster, kind.field))
    return next((link for link in links if kind.pair_of(link) == (ends.start, ends.end)), None)


def link_in_force(cluster: Cluster, ends: LinkEnds) -> LinkValue | None:
    """What holds between these ends: for devices also the link of their host or sites; None without a link.

    Raises:
        InvalidInput: unknown ends.
    """
    _check_ends(cluster, ends)
    return _pair_link(cluster, (ends.start, ends.end)) if ends.per == "device" else own_link(cluster, ends)


def _pair_link(cluster: Cluster, pair: Pair) -> LinkValue | None:
    index = cluster.link_index_DD[cluster.device_index(pair[0]), cluster.device_index(pair[1])]
    return cluster.links[index] if index >= 0 else None


def set_link(
    cluster: Cluster,
    ends: LinkEnds,
    *,
    latency_s: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    source: EditSource = "specified",
    when: str | None = None,
    symmetric: bool = True,
) -> Cluster:
    """A link with new numbers; the same cluster if that changes nothing.

    Args:
        cluster: what to edit.
        ends: the link; it is made if there is none.
        latency_s: one way; None keeps what is in force.
        bandwidth_bytes_per_s: likewise.
        source: how the numbers are known.
        when: words beside the source.
        symmetric: both directions.

    Raises:
        InvalidInput: unknown ends, numbers out of range, or a new link without both numbers.
    """
    ways = (ends, ends.turned) if symmetric else (ends,)
    numbers = {(way.start, way.end): (latency_s, bandwidth_bytes_per_s) for way in ways}
    return set_links(cluster, ends.per, numbers, source=source, when=when)


def set_links(
    cluster: Cluster,
    per: Per,
    numbers: Mapping[Pair, Numbers | None],
    *,
    source: Source = "specified",
    when: str | None = None,
) -> Cluster:
    """Many links at once; the same cluster if nothing changes.

    Args:
        cluster: what to edit.
        per: what the pairs name; each is one direction.
        numbers: latency and bandwidth as `set_link` takes them; None removes the entry, if there is one.
        source, when: how the numbers are known.

    Raises:
        InvalidInput: numbers out of range, a new link without both numbers, or devices would be cut off.
    """
    _check_pairs(cluster, per, numbers)
    kind = _KINDS[per]
    own = {pair: link for link in getattr(cluster, kind.field) if (pair := kind.pair_of(link)) in numbers}
    new: dict[Pair, LinkValue | None] = {}
    for pair, values in numbers.items():
        if values is None:
            new |= {pair: None} if pair in own else {}
            continue
        held = _pair_link(cluster, pair) if per == "device" else own.get(pair)
        link = _changed(LinkEnds(per, *pair), held, values, source, when)
        if not _says(own.get(pair), link):
            new[pair] = link
    return _with_links(cluster, per, new)


def _changed(ends: LinkEnds, held: LinkValue | None, values: Numbers, source: Source, when: str | None) -> LinkValue:
    fields: dict[str, Any] = {}
    for name, number in zip(("latency", "bandwidth"), values, strict=True):
        fields[name] = getattr(held, name, None) if number is None else number
        if fields[name] is None:
            raise InvalidInput(f"{ends.text}: {name}: there is no link yet; give both bandwidth and latency")
    kind = _KINDS[ends.per]
    if source == "measured" and None in values and held is not None:
        source = held.source  # one measured number does not make the other one measured
    fields |= {"source": source, "when": when, "replaces": words_before(held)}
    fields |= dict(zip(kind.ends, (ends.start, ends.end), strict=True))
    return checked(kind.model, fields, ends.text)


def _says(own: LinkValue | None, link: LinkValue) -> bool:
    """Whether an entry says the same already; what was measured stays so."""
    if own is None or (own.latency, own.bandwidth) != (link.latency, link.bandwidth):
        return False
    return own.source in (link.source, "measured")


def words_before(old: LinkValue | None) -> str | None:
    """What an edit of `old` writes into `replaces`: the first state, however often a link is edited."""
    if old is None:
        return None
    return old.replaces or f"{known_text(old)}: {short_rate(old.bandwidth)}, {short_seconds(old.latency)}"


def known_text(link: LinkValue) -> str:
    """'measured, published 2022': how a link's numbers are known."""
    return f"{link.source}, {link.when}" if link.when else link.source


def remove_link(cluster: Cluster, ends: LinkEnds, *, symmetric: bool = True) -> Cluster:
    """Without the entry for these ends: for devices and hosts their sites' link holds again.

    Raises:
        InvalidInput: there is no such entry, or devices would be cut off.
    """
    _check_ends(cluster, ends)
    if own_link(cluster, ends) is None:
        raise InvalidInput(f"{ends.text}: has no link of its own to remove")
    ways = {(ends.start, ends.end)} | ({(ends.end, ends.start)} if symmetric else set())
    return _with_links(cluster, ends.per, dict.fromkeys(ways))


def overridden_DD(cluster: Cluster) -> np.ndarray:
    """Which pairs of devices have a link of their own, which stands above that of their sites or host."""
    first = len(cluster.site_links) + len(cluster.host_links)
    own_DD: np.ndarray = cluster.link_index_DD >= first
    return own_DD


def overrides_between(cluster: Cluster, start: str, end: str) -> tuple[DeviceLink, ...]:
    """Links of single pairs of devices that stand above the link between two sites, either way."""
    names = [site.name for site in cluster.sites]
    ends_D = [np.array([known == name for known in names])[cluster.site_index_D] for name in (start, end)]
    between_DD = overridden_DD(cluster) & (np.outer(*ends_D) | np.outer(*ends_D[::-1]))
    first = len(cluster.links) - len(cluster.device_links)
    return tuple(cluster.device_links[k - first] for k in cluster.link_index_DD[between_DD])


def remove_overrides(cluster: Cluster, start: str, end: str) -> Cluster:
    """Without the links of single pairs of devices between two sites, so that the sites' link holds for all.

    Raises:
        InvalidInput: devices would be cut off.
    """
    gone = {(k.from_device, k.to_device) for k in overrides_between(cluster, start, end)}
    return _with_links(cluster, "device", dict.fromkeys(gone))


# -- from distance --------------------------------------------------------------------------------

Scope = Literal["missing", "assumed", "all"]


def fill_from_distance(
    cluster: Cluster, formula: DistanceFormula = DEFAULT_FORMULA, *, scope: Scope = "missing"
) -> Cluster:
    """Links between sites by the formula; the same cluster if nothing changes. Links inside a site stay.

    Args:
        cluster: what to edit.
        formula: with its constants.
        scope: pairs of sites without a link alone, also those whose link is assumed, or all.

    Raises:
        InvalidInput: the formula gives a number out of range.
    """
    rules = {(k.from_site, k.to_site): k for k in cluster.site_links}
    new: dict[Pair, LinkValue | None] = {}
    for start in cluster.sites:
        for end in cluster.sites:
            old = rules.get((start.name, end.name))
            if old is not None and (start is end or not _is_refilled(old, scope)):
                continue
            link = distance_link(start, end, formula)
            if old is None or (old.latency, old.bandwidth, old.when) != (link.latency, link.bandwidth, link.when):
                new[start.name, end.name] = link.replace(replaces=words_before(old))
    return _with_links(cluster, "site", new)


def _is_refilled(old: LinkValue, scope: Scope) -> bool:
    return scope == "all" or (scope == "assumed" and old.source == "assumed")


# -- the same both ways ---------------------------------------------------------------------------


def make_symmetric(cluster: Cluster) -> Cluster:
    """Both directions of every link alike, with the lower bandwidth and the higher latency of the two.

    The direction that changes becomes `assumed`. The same cluster if all are alike already.
    """
    sites = {(k.from_site, k.to_site) for k in cluster.site_links}
    result = _with_links(cluster, "site", _equalised(cluster, cluster, "site", sites))
    # Pairs with a link of their own are compared with what held the other way, which may have been the sites' link.
    single = {(k.from_device, k.to_device) for k in cluster.device_links}
    return _with_links(result, "device", _equalised(cluster, result, "device", single))


def _equalised(before: Cluster, now: Cluster, per: Per, pairs: set[Pair]) -> dict[Pair, LinkValue | None]:
    """Entries that make both directions of these pairs as the slower one was, where they are not so now."""
    kind = _KINDS[per]
    was, held = _holder(before, per), _holder(now, per)
    new: dict[Pair, LinkValue | None] = {}
    for pair in sorted(pairs | {(end, start) for start, end in pairs}):
        there, back, link = was(pair), was(pair[::-1]), held(pair)
        if there is None or back is None or link is None:
            continue
        slower = {"latency": max(there.latency, back.latency), "bandwidth": min(there.bandwidth, back.bandwidth)}
        if slower != {"latency": link.latency, "bandwidth": link.bandwidth}:
            fields = slower | {"source": "assumed", "when": _ALIKE, "replaces": words_before(link)}
            new[pair] = checked(kind.model, fields | dict(zip(kind.ends, pair, strict=True)), "symmetric")
    return new


def _holder(cluster: Cluster, per: Per) -> Callable[[Any], LinkValue | None]:
    """What holds between two ends, for many questions."""
    if per == "site":
        return {(k.from_site, k.to_site): k for k in cluster.site_links}.get
    return lambda pair: _pair_link(cluster, pair)


_ALIKE = "as the slower of both directions"


# -- the lists ------------------------------------------------------------------------------------


def _with_links(cluster: Cluster, per: Per, new: Mapping[Pair, LinkValue | None]) -> Cluster:
    """The cluster with these entries in place of those of the same ends (None: without); new ones at the end."""
    if not new:
        return cluster
    kind = _KINDS[per]
    links: tuple[LinkValue, ...] = getattr(cluster, kind.field)
    last = {pair: i for i, pair in enumerate(map(kind.pair_of, links)) if pair in new}
    kept: list[LinkValue | None] = []
    for i, link in enumerate(links):
        pair = kind.pair_of(link)
        if pair not in new:
            kept.append(link)
        elif last[pair] == i:
            kept.append(new[pair])
    kept += [link for pair, link in new.items() if pair not in last]
    return cluster.replace(**{kind.field: tuple(link for link in kept if link is not None)})


def _check_ends(cluster: Cluster, ends: LinkEnds) -> None:
    _check_pairs(cluster, ends.per, [(ends.start, ends.end)])


def _check_pairs(cluster: Cluster, per: Per, pairs: Iterable[Pair]) -> None:
    known: dict[Per, Iterable[str]] = {
        "site": (site.name for site in cluster.sites),
        "host": (host.id for host in cluster.hosts),
        "device": cluster.device_ids,
    }
    names = set(known[per])
    for start, end in pairs:
        for name in (start, end):
            if name not in names:
                raise InvalidInput(f"link: there is no {per} {name!r:.60} in {cluster.name}; choose one of its own")
        if per == "device" and start == end:
            raise InvalidInput(f"link: a device has no link to itself, got {start!r:.60} twice; choose two")
        if per == "host" and start != end:
            raise InvalidInput(
                f"link: a host's link is between its own devices, got {start!r:.60} and {end!r:.60}; name one"
            )
