"""Edits of a cluster's devices, hosts and sites: a new cluster for every edit, the old one stays as it was.

None is the empty cluster: the first site or device makes one, and without its last device there is none again.
A new site is linked with every other by the formula of distance (`link_edits.distance_link`, assumed); links that
still are what the formula gave follow their site when it moves, all others stay.
"""

from collections.abc import Collection, Iterable

from hetplanner.cluster.catalog import DeviceKind, device_kind, find_kind
from hetplanner.cluster.distance import distance_link
from hetplanner.cluster.model import MAX_DEVICES, Cluster, Device, DeviceLink, Host, HostLink, Site, SiteLink
from hetplanner.errors import InvalidInput
from hetplanner.schema import checked

DRAWN = "drawn"
INSIDE_HOST_S = 10e-6
"""Latency between the devices of one host, assumed."""


def add_devices(cluster: Cluster | None, kind: str, count: int, site: Site, *, per_host: int = 1) -> Cluster:
    """`count` devices of a kind at a site, on new hosts.

    Args:
        cluster: what to edit, or None to begin one.
        kind: a name in the GPU catalog, or an alias.
        count: at least 1.
        site: one of the cluster's (by its name), or a new one.
        per_host: devices of a host; the last host may have fewer.

    Raises:
        InvalidInput: an unknown kind, or a number out of range.
    """
    known = device_kind(kind)
    room = MAX_DEVICES - (len(cluster.devices) if cluster is not None else 0)
    if not 1 <= count <= room:
        raise InvalidInput(
            f"count: must be from 1 to {room} (a cluster has at most {MAX_DEVICES} devices), got {count}"
        )
    if not 1 <= per_host <= MAX_DEVICES:
        raise InvalidInput(f"devices per host: must be from 1 to {MAX_DEVICES}, got {per_host}")
    hosts, devices, inside = _new_hosts(known, count, site, per_host, _ids(cluster))
    if cluster is None:
        fields = {"name": DRAWN, "sites": (site,), "site_links": (distance_link(site, site),)}
        return checked(Cluster, fields | {"hosts": hosts, "devices": devices, "host_links": inside}, DRAWN)
    is_new = all(s.name != site.name for s in cluster.sites)
    return cluster.replace(
        sites=(*cluster.sites, site) if is_new else cluster.sites,
        hosts=(*cluster.hosts, *hosts),
        devices=(*cluster.devices, *devices),
        site_links=(*cluster.site_links, *_missing_links(cluster, site, is_new=is_new)),
        host_links=(*cluster.host_links, *inside),
    )


def fill_hosts(cluster: Cluster | None, kind: str, count: int, site: Site, *, per_host: int) -> Cluster:
    """As `add_devices`, but the site's newest host is filled up first, if all it has is of that kind."""
    host = _newest_host(cluster, device_kind(kind).name, site)
    room = per_host - len(host[1]) if host is not None else 0
    if cluster is None or host is None or room < 1 or len(cluster.devices) + count > MAX_DEVICES:
        return add_devices(cluster, kind, count, site, per_host=per_host)
    fitting = min(room, count)
    names = _free_names(site.name, fitting, _ids(cluster))
    fuller = cluster.replace(
        devices=(*cluster.devices, *(Device(id=name, kind=host[1][0].kind, host=host[0]) for name in names)),
        host_links=cluster.host_links
        if any(link.host == host[0] for link in cluster.host_links)
        else (*cluster.host_links, _inside(device_kind(kind), host[0])),
    )
    rest = count - fitting
    return add_devices(fuller, kind, rest, site, per_host=per_host) if rest else fuller


def _newest_host(cluster: Cluster | None, kind: str, site: Site) -> tuple[str, list[Device]] | None:
    """The newest host of a site with its devices, if all of these are of the kind (as the catalog calls it)."""
    hosts = [h.id for h in cluster.hosts if h.site == site.name] if cluster is not None else []
    if cluster is None or not hosts:
        return None
    devices = [d for d in cluster.devices if d.host == hosts[-1]]
    found = [find_kind(d.kind) for d in devices]
    same = bool(found) and all(one is not None and one.name == kind for one in found)
    return (hosts[-1], devices) if same else None


def _new_hosts(
    kind: DeviceKind, count: int, site: Site, per_host: int, taken: set[str]
) -> tuple[tuple[Host, ...], tuple[Device, ...], tuple[HostLink, ...]]:
    """Hosts at the site, `count` devices on them, and the links inside hosts of several."""
    names = _free_names(site.name, count, taken)
    host_names = names
    if per_host > 1:
        host_names = _free_names(f"{site.name}-host", -(-count // per_host), taken | set(names))
    return (
        tuple(Host(id=name, site=site.name) for name in host_names),
        tuple(Device(id=name, kind=kind.name, host=host_names[i // per_host]) for i, name in enumerate(names)),
        tuple(_inside(kind, name) for i, name in enumerate(host_names) if min(per_host, count - i * per_host) > 1),
    )


def _inside(kind: DeviceKind, host: str) -> HostLink:
    return HostLink(host=host, latency=INSIDE_HOST_S, bandwidth=kind.link_bytes_per_s, source="specified")


def _missing_links(cluster: Cluster, site: Site, *, is_new: bool) -> list[SiteLink]:
    """Inside the site, and both ways to every other if it is new."""
    links = []
    if not any(k.from_site == k.to_site == site.name for k in cluster.site_links):
        links.append(distance_link(site, site))
    for other in cluster.sites if is_new else ():
        links += [distance_link(site, other), distance_link(other, site)]
    return links


def _ids(cluster: Cluster | None) -> set[str]:
    """Names of hosts and devices: a host is often called as its device."""
    return {h.id for h in cluster.hosts} | set(cluster.device_ids) if cluster is not None else set()


def _free_names(stem: str, count: int, taken: Collection[str]) -> list[str]:
    """'frankfurt-0', 'frankfurt-1' …: the first numbers that are free."""
    stem = "-".join(stem.lower().split())[:100]
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"{stem}-{number}"
        if name not in taken:
            names.append(name)
        number += 1
    return names


def free_site_name(cluster: Cluster | None, name: str) -> str:
    """The name, or with the first number that makes it another one's than the cluster's: 'Frankfurt 2'."""
    taken = {s.name for s in cluster.sites} if cluster is not None else set()
    number, free = 2, name
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free


def move_site(cluster: Cluster, name: str, latitude: float, longitude: float) -> Cluster:
    """A site at another place (degrees); links that the formula of distance gave follow.

    Raises:
        InvalidInput: an unknown site, or degrees out of range.
    """
    old = site_named(cluster, name)
    new = old.replace(latitude=float(latitude), longitude=float(longitude))
    if new == old:
        return cluster
    before = {s.name: s for s in cluster.sites}
    after = before | {name: new}
    links = tuple(_following(link, before, after) if _touches(link, name) else link for link in cluster.site_links)
    return cluster.replace(sites=tuple(after.values()), site_links=links)


def _touches(link: SiteLink, name: str) -> bool:
    return link.from_site != link.to_site and name in (link.from_site, link.to_site)


def _following(link: SiteLink, before: dict[str, Site], after: dict[str, Site]) -> SiteLink:
    """The link of the new distance, if it was that of the old."""
    ends = link.from_site, link.to_site
    old = distance_link(before[ends[0]], before[ends[1]])
    same = (link.latency, link.bandwidth, link.source, link.when) == (old.latency, old.bandwidth, old.source, old.when)
    return distance_link(after[ends[0]], after[ends[1]]) if same else link


def rename_site(cluster: Cluster, name: str, new_name: str) -> Cluster:
    """A site under another name.

    Raises:
        InvalidInput: an unknown site, a name that is taken or not allowed.
    """
    new = site_named(cluster, name).replace(name=new_name)

    def named(link: SiteLink) -> SiteLink:
        if name not in (link.from_site, link.to_site):
            return link
        ends = (new_name if end == name else end for end in (link.from_site, link.to_site))
        return link.model_copy(update=dict(zip(("from_site", "to_site"), ends, strict=True)))

    return cluster.replace(
        sites=tuple(new if s.name == name else s for s in cluster.sites),
        hosts=tuple(h.model_copy(update={"site": new_name}) if h.site == name else h for h in cluster.hosts),
        site_links=tuple(map(named, cluster.site_links)),
    )


def price_site(
    cluster: Cluster, name: str, provider: str | None, region: str | None, egress_usd_per_gb: float | None
) -> Cluster:
    """A site with another provider and region, and with its own price of traffic or (None) the provider's.

    Raises:
        InvalidInput: an unknown site, a name that is not allowed, or a price out of range.
    """
    old = site_named(cluster, name)
    new = old.replace(provider=provider, region=region, egress_usd_per_gb=egress_usd_per_gb)
    if new == old:
        return cluster
    return cluster.replace(sites=tuple(new if s.name == name else s for s in cluster.sites))


def copy_site(cluster: Cluster, name: str, new: Site) -> Cluster:
    """A second site with the same hosts, devices and links inside; to the others it is linked by distance.

    Raises:
        InvalidInput: an unknown site, a new one whose name is taken, or too many devices.
    """
    site_named(cluster, name)
    hosts = [h for h in cluster.hosts if h.site == name]
    inside = {h.id for h in hosts}
    devices = [d for d in cluster.devices if d.host in inside]
    if len(cluster.devices) + len(devices) > MAX_DEVICES:
        raise InvalidInput(f"copy of {name!r:.60}: a cluster has at most {MAX_DEVICES} devices; copy a smaller site")
    taken = _ids(cluster)
    device_id = dict(zip((d.id for d in devices), _free_names(new.name, len(devices), taken), strict=True))
    others = [h.id for h in hosts if h.id not in device_id]  # a host that is called as its device stays so
    host_id = device_id | dict(
        zip(others, _free_names(f"{new.name}-host", len(others), taken | set(device_id.values())), strict=True)
    )
    own = next((k for k in reversed(cluster.site_links) if k.from_site == k.to_site == name), None)
    links = [distance_link(a, b) for other in cluster.sites for a, b in ((new, other), (other, new))]
    if own is not None:
        links.append(own.model_copy(update={"from_site": new.name, "to_site": new.name}))
    return cluster.replace(
        sites=(*cluster.sites, new),
        hosts=(*cluster.hosts, *(h.model_copy(update={"id": host_id[h.id], "site": new.name}) for h in hosts)),
        devices=(
            *cluster.devices,
            *(d.model_copy(update={"id": device_id[d.id], "host": host_id[d.host]}) for d in devices),
        ),
        site_links=(*cluster.site_links, *links),
        host_links=(
            *cluster.host_links,
            *(k.model_copy(update={"host": host_id[k.host]}) for k in cluster.host_links if k.host in inside),
        ),
        device_links=(*cluster.device_links, *_copied(cluster.device_links, device_id)),
    )


def _copied(links: Iterable[DeviceLink], new_id: dict[str, str]) -> list[DeviceLink]:
    """Links between two copied devices, for the copies."""
    return [
        k.model_copy(update={"from_device": new_id[k.from_device], "to_device": new_id[k.to_device]})
        for k in links
        if k.from_device in new_id and k.to_device in new_id
    ]


def delete_devices(cluster: Cluster, device_ids: Iterable[str]) -> Cluster | None:
    """Without these devices, and without hosts and sites that they leave empty; None without the last one.

    Raises:
        InvalidInput: an unknown device, or the others would be cut off from each other.
    """
    gone = set(device_ids)
    unknown = gone - set(cluster.device_ids)
    if unknown:
        raise InvalidInput(f"delete: there is no device {min(unknown)!r:.60} in {cluster.name}; it may be gone already")
    left = [d for d in cluster.device_ids if d not in gone]
    return cluster.subset(left) if left else None


def delete_sites(cluster: Cluster, names: Iterable[str]) -> Cluster | None:
    """Without these sites and all that stands there; None without the last one. Raises as `delete_devices`."""
    gone = {site_named(cluster, name).name for name in names}
    hosts = {h.id for h in cluster.hosts if h.site in gone}
    devices = [d.id for d in cluster.devices if d.host in hosts]
    rest = delete_devices(cluster, devices) if devices else cluster
    if rest is None or not any(s.name in gone for s in rest.sites):
        return rest
    return rest.replace(  # sites that had no device
        sites=tuple(s for s in rest.sites if s.name not in gone),
        hosts=tuple(h for h in rest.hosts if h.site not in gone),
        site_links=tuple(k for k in rest.site_links if not {k.from_site, k.to_site} & gone),
        host_links=tuple(k for k in rest.host_links if k.host not in hosts),
    )


def devices_at(cluster: Cluster, names: Collection[str]) -> tuple[str, ...]:
    """Ids of the devices at these sites, in the order of the cluster."""
    wanted = [s.name in names for s in cluster.sites]
    return tuple(d for d, s in zip(cluster.device_ids, cluster.site_index_D.tolist(), strict=True) if wanted[s])


def site_named(cluster: Cluster, name: str) -> Site:
    """A site by its name. Raises InvalidInput."""
    for site in cluster.sites:
        if site.name == name:
            return site
    raise InvalidInput(f"site: there is no {name!r:.60} in {cluster.name}; it may be gone already")
