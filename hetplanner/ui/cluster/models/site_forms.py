"""What is selected on the map, and the forms about it: a whole site, its name, what its traffic costs."""

import math
from collections import Counter
from typing import Any

import param

from hetplanner.cluster import edits
from hetplanner.cluster.egress import EgressTable, price_text, source_text
from hetplanner.cluster.model import Cluster, Site
from hetplanner.cluster.places import nearest_place, place_named, places
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.schema import checked
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.shell.models.session import Session

MAX_SITE_DEVICES = 1024


class SiteForms(param.Parameterized):
    """Sites that are selected, and the forms about one. Every change goes through the editor.

    Attributes:
        selected: names of sites, in the order in which they were selected.
        site_errors: what was refused of the form for a site, by field.
    """

    selected: Any = param.Parameter(default=())
    site_errors: Any = param.Parameter(default={})

    def __init__(self, session: Session, editor: Editor, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.editor = editor

    def _select(self, names: tuple[str, ...]) -> None:
        """Selects the sites of these names that there are."""
        cluster = self.editor.cluster
        known = {s.name for s in cluster.sites} if cluster is not None else set()
        chosen = tuple(name for name in names if name in known)
        if chosen != self.selected:
            self.selected = chosen

    def rename_selected(self, name: str) -> None:
        """Another name for the selected site."""
        if len(self.selected) != 1:
            return
        self.site_errors = {}
        old = self.selected[0]
        try:
            self.editor.edit(lambda c: edits.rename_site(there(c), old, name), f"renamed {old} to {name}")
        except HetplannerError as error:
            self.site_errors = {"rename": str(error)[:300]}
            return
        self._select((name,))

    def price_selected(self, provider: str, region: str, price: str) -> None:
        """What traffic that leaves the selected site costs: by provider and region, or (in $/GB) as given here."""
        if len(self.selected) != 1:
            return
        self.site_errors = {}
        name = self.selected[0]
        try:
            stated = _usd(price)
            self.editor.edit(
                lambda c: edits.price_site(there(c), name, provider[:120] or None, region[:120] or None, stated),
                f"priced the traffic of {name}",
            )
        except HetplannerError as error:
            field = next((f for f in ("provider", "region") if f in str(error)), "egress")
            self.site_errors = {field: str(error)[:300]}

    def add_site(self, place: str, kind: str, count: float, per_host: float) -> bool:
        """A whole site ("8 × A100 in Frankfurt"), or more devices at a site that is there; False if refused.

        Args:
            place: a site of the cluster, a city or cloud region of the list, or "latitude, longitude".
            kind: of the GPU catalog.
            count: devices.
            per_host: devices of a host.
        """
        try:
            site = self._site_at(place.strip()[:120])
        except HetplannerError as error:
            return self._refuse_site("place", str(error))
        wanted: dict[str, int] = {}
        for name, number, most in (("count", count, MAX_SITE_DEVICES), ("per_host", per_host, MAX_SITE_DEVICES)):
            if not math.isfinite(number) or number != int(number) or not 1 <= number <= most:
                return self._refuse_site(name, f"must be a whole number from 1 to {most}, got {number:g}")
            wanted[name] = int(number)
        words = f"added {wanted['count']} × {kind} in {site.name}"
        try:
            self.editor.edit(
                lambda c: edits.add_devices(c, kind, wanted["count"], site, per_host=wanted["per_host"]), words
            )
        except HetplannerError as error:
            return self._refuse_site("kind" if str(error).startswith("kind") else "count", str(error))
        self.site_errors = {}
        self._select((site.name,))
        return True

    def _site_at(self, text: str) -> Site:
        cluster = self.editor.cluster
        if not text:
            raise InvalidInput("place: give a city, a site of this cluster, or 'latitude, longitude'")
        for site in cluster.sites if cluster is not None else ():
            if site.name.casefold() == text.casefold():
                return site
        place = place_named(text)
        return new_site(cluster, place.name, place.longitude, place.latitude)

    def _refuse_site(self, field: str, text: str) -> bool:
        self.site_errors = {field: text.removeprefix(f"{field}: ")[:300]}
        return False

    # -- what the page says -----------------------------------------------------------------------

    @property
    def place_choices(self) -> list[str]:
        """What the form offers as places: the cluster's sites, then the list."""
        cluster = self.editor.cluster
        own = [site.name for site in cluster.sites] if cluster is not None else []
        return list(dict.fromkeys([*own, *(place.name for place in places())]))

    @property
    def about_selected(self) -> str:
        """The selected sites in words: what stands there, and how much of it plans may use."""
        cluster = self.editor.cluster
        sites = [site for site in cluster.sites if site.name in self.selected] if cluster is not None else []
        if cluster is None or not sites:
            return ""
        ids = edits.devices_at(cluster, self.selected)
        kinds = Counter(cluster.devices[cluster.device_index(d)].kind for d in ids)
        hosts = len({cluster.host_of(d).id for d in ids})
        parts = [", ".join(f"{n} × {kind}" for kind, n in kinds.most_common()) or "no devices"]
        parts.append(f"on {hosts} host{'' if hosts == 1 else 's'}")
        if len(sites) == 1:
            parts.append(f"at {sites[0].latitude:.2f}°, {sites[0].longitude:.2f}°")
        left_out = len(set(ids) & set(self.editor.excluded))
        return " ".join(parts) + (f"; {left_out} excluded" if left_out else "")

    @property
    def egress_fields(self) -> dict[str, str]:
        """Provider, region and stated price of the selected site, '' where it has none, and `about` it in words."""
        cluster = self.editor.cluster
        if cluster is None or len(self.selected) != 1:
            return {}
        names = [site.name for site in cluster.sites]
        row = names.index(self.selected[0])
        site, prices = cluster.sites[row], [price for price, _ in EgressTable.of(cluster).prices_from(row)]
        source = source_text(prices)
        stated = "" if site.egress_usd_per_gb is None else f"{site.egress_usd_per_gb:g}"
        about = f"Traffic to other sites: {price_text(prices)}" + (f" ({source})." if source else ".")
        return {
            "provider": site.provider or "",
            "region": site.region or "",
            "egress": stated,
            "about": about if prices else "Traffic costs nothing while there is no other site.",
        }


def there(cluster: Cluster | None) -> Cluster:
    """The cluster. Raises InvalidInput without one."""
    if cluster is None:
        raise InvalidInput("cluster: it is empty by now; add a site first")
    return cluster


def new_site(cluster: Cluster | None, name: str, longitude: float, latitude: float) -> Site:
    """A site at a point; without a name it is called as the nearest place of the list, if one is near."""
    near = nearest_place(latitude, longitude)
    title = name or (
        near.name if near else f"{abs(latitude):.0f}°{'NS'[latitude < 0]} {abs(longitude):.0f}°{'EW'[longitude < 0]}"
    )
    fields = {"name": edits.free_site_name(cluster, title), "latitude": latitude, "longitude": longitude}
    return checked(Site, fields, "site")


def _usd(text: str) -> float | None:
    """Dollars a GB as a person typed them; None for nothing."""
    text = text.strip().removeprefix("$").removesuffix("$/GB").strip()[:40]
    if not text:
        return None
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InvalidInput(f"must be dollars a GB, such as 0.02, or blank; got {text!r:.40}") from None
