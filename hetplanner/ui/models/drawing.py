"""Drawing on the map: what a click, a drag or a key does, what is selected, and the form for a whole site."""

import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import param

from hetplanner.cluster import edits
from hetplanner.cluster.catalog import kind_names
from hetplanner.cluster.egress import EgressTable, price_text, source_text
from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster, Site
from hetplanner.cluster.places import nearest_place, place_named, places
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plots.coastline import MAX_LATITUDE, degrees, mercator
from hetplanner.plots.data.gestures import Gesture
from hetplanner.schema import checked
from hetplanner.ui.models.editor import Editor
from hetplanner.ui.models.links import LinksModel
from hetplanner.ui.models.session import Session

DEFAULT_KIND = "A100-80"
MAX_SITE_DEVICES = 1024
COPY_EAST_DEG = 6.0
"""How far east of a site its copy stands, until it is dragged elsewhere."""


class DrawingModel(param.Parameterized):
    """What the map's controls hold. Every change goes through the editor, so that Undo takes it back.

    Attributes:
        adding: whether a tap adds a device of `kind` (else it selects).
        selected: names of at most two sites; two of them are about their link.
        site_errors: what was refused of the form for a site, by field.
    """

    adding = param.Boolean(default=False)
    kind: Any = param.Selector(default=DEFAULT_KIND, objects=list(kind_names()))
    selected: Any = param.Parameter(default=())
    site_errors: Any = param.Parameter(default={})

    def __init__(self, session: Session, editor: Editor, links: LinksModel, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.editor = editor
        self.links = links
        editor.param.watch(self._cluster_changed, "cluster")
        self.param.watch(self._selection_changed, "selected")

    def _cluster_changed(self, *_: Any) -> None:
        self._select(self.selected)

    def _select(self, names: tuple[str, ...]) -> None:
        """Selects the sites of these names that there are."""
        cluster = self.editor.cluster
        known = {s.name for s in cluster.sites} if cluster is not None else set()
        chosen = tuple(name for name in names if name in known)
        if chosen != self.selected:
            self.selected = chosen

    def _selection_changed(self, *_: Any) -> None:
        if len(self.selected) == 2:
            self.links.choose(LinkEnds("site", *self.selected))

    # -- gestures ---------------------------------------------------------------------------------

    def act(self, gesture: Gesture) -> None:
        """Does what a gesture means; a site or device that is gone by now is said so."""
        with self.session.reporting():
            if gesture.kind == "key":
                self._key(gesture.site)
            elif gesture.kind == "drag":
                self._drag(gesture)
            elif gesture.device:
                self.toggle([gesture.device])
            else:
                self._tap(gesture)

    def _key(self, meaning: str) -> None:
        verbs: dict[str, Callable[[], None]] = {
            "undo": self.editor.undo,
            "redo": self.editor.redo,
            "delete": self.delete_selected,
            "escape": self.release,
        }
        if meaning in verbs:
            verbs[meaning]()

    def _tap(self, gesture: Gesture) -> None:
        if gesture.shift:
            if gesture.site:
                self._select_too(gesture.site)
        elif self.adding:
            self._add_at(gesture)
        else:
            self._select((gesture.site,) if gesture.site and (gesture.site,) != self.selected else ())

    def _select_too(self, name: str) -> None:
        """A second site for a link; one that is selected already is released."""
        if name in self.selected:
            self._select(tuple(n for n in self.selected if n != name))
        else:
            self._select((*self.selected[-1:], name))

    def release(self) -> None:
        """Nothing selected, and taps select again."""
        self._select(())
        self.adding = False

    def _add_at(self, gesture: Gesture) -> None:
        kind = self.kind
        # The page may not show yet what the click before this one has added.
        name = gesture.site or self._site_near(gesture)
        if name:
            self.editor.edit(lambda c: edits.add_devices(c, kind, 1, _known(c, name)), f"added 1 × {kind} at {name}")
        else:
            site = _new_site(self.editor.cluster, "", *_point(gesture))
            name = site.name
            self.editor.edit(lambda c: edits.add_devices(c, kind, 1, _fresh(c, site)), f"added {name} with 1 × {kind}")
        self._select((name,))

    def _site_near(self, gesture: Gesture) -> str:
        cluster = self.editor.cluster
        if cluster is None:
            return ""
        x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
        away_S = np.hypot(x_S - gesture.x, y_S - gesture.y)
        nearest = int(away_S.argmin())
        return cluster.sites[nearest].name if away_S[nearest] <= gesture.reach else ""

    def _drag(self, gesture: Gesture) -> None:
        name = gesture.site
        longitude, latitude = _point(gesture)
        self.editor.edit(
            lambda c: edits.move_site(_there(c), name, round(latitude, 4), round(longitude, 4)), f"moved {name}"
        )

    # -- verbs on what is selected ----------------------------------------------------------------

    def delete_selected(self) -> None:
        """Deletes the selected sites with all that stands there."""
        names = self.selected
        if names:
            with self.session.reporting():
                self.editor.edit(lambda c: edits.delete_sites(_there(c), names), f"deleted {' and '.join(names)}")

    def copy_selected(self) -> None:
        """A copy of the selected site beside it, selected in its place."""
        if len(self.selected) != 1:
            self.session.notify("info", "Select one site to copy it.")
            return
        with self.session.reporting():
            old = edits.site_named(_there(self.editor.cluster), self.selected[0])
            east = (old.longitude + COPY_EAST_DEG + 180) % 360 - 180
            twin = old.replace(name=edits.free_site_name(self.editor.cluster, f"{old.name[:100]} copy"), longitude=east)
            self.editor.edit(lambda c: edits.copy_site(_there(c), old.name, _fresh(c, twin)), f"copied {old.name}")
            self._select((twin.name,))

    def rename_selected(self, name: str) -> None:
        """Another name for the selected site."""
        if len(self.selected) != 1:
            return
        self.site_errors = {}
        old = self.selected[0]
        try:
            self.editor.edit(lambda c: edits.rename_site(_there(c), old, name), f"renamed {old} to {name}")
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
                lambda c: edits.price_site(_there(c), name, provider[:120] or None, region[:120] or None, stated),
                f"priced the traffic of {name}",
            )
        except HetplannerError as error:
            field = next((f for f in ("provider", "region") if f in str(error)), "egress")
            self.site_errors = {field: str(error)[:300]}

    def use_selected(self, used: bool) -> None:
        """Includes or excludes all devices of the selected sites."""
        cluster = self.editor.cluster
        if cluster is not None and self.selected:
            self.use(edits.devices_at(cluster, self.selected), used, " and ".join(self.selected))

    def set_link(self, bandwidth: str, latency: str) -> bool:
        """The link between the two selected sites, as a person typed it; False if refused (`links.errors`)."""
        ends = LinkEnds("site", *self.selected)
        if self.links.selected != ends:
            self.links.choose(ends)
        self.links.param.update(bandwidth=bandwidth[:60], latency=latency[:60])
        return self.links.submit()

    # -- devices ----------------------------------------------------------------------------------

    def toggle(self, device_ids: Collection[str]) -> None:
        """Excludes devices that plans may use, and includes them if all are excluded already."""
        excluded = set(self.editor.excluded)
        self.use(device_ids, set(device_ids) <= excluded, _listed(device_ids))

    def use(self, device_ids: Collection[str], used: bool, what: str) -> None:
        """Lets plans use these devices, or not."""
        with self.session.reporting():
            if used:
                self.editor.include(device_ids, f"included {what}")
            else:
                self.editor.exclude(device_ids, f"excluded {what}")

    def delete_devices(self, device_ids: Collection[str]) -> None:
        """Deletes devices, and hosts and sites that they leave empty."""
        with self.session.reporting():
            ids = tuple(device_ids)
            self.editor.edit(lambda c: edits.delete_devices(_there(c), ids), f"deleted {_listed(ids)}")

    # -- the whole cluster ------------------------------------------------------------------------

    def begin_empty(self) -> None:
        """An empty map to draw on; Undo brings back what was there."""
        with self.session.reporting():
            self.editor.apply(None, "began an empty cluster")
            self.adding = True

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
        return _new_site(cluster, place.name, place.longitude, place.latitude)

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
        """The selected site in words: what stands there, and how much of it plans may use."""
        cluster = self.editor.cluster
        if cluster is None or len(self.selected) != 1:
            return ""
        site = edits.site_named(cluster, self.selected[0])
        ids = edits.devices_at(cluster, [site.name])
        kinds = Counter(cluster.devices[cluster.device_index(d)].kind for d in ids)
        hosts = len({cluster.host_of(d).id for d in ids})
        parts = [", ".join(f"{n} × {kind}" for kind, n in kinds.most_common()) or "no devices"]
        parts.append(f"on {hosts} host{'' if hosts == 1 else 's'}")
        parts.append(f"at {site.latitude:.2f}°, {site.longitude:.2f}°")
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

    @property
    def hint(self) -> str:
        """What a click does now."""
        if self.editor.cluster is None and not self.adding:
            return "Nothing is drawn yet: press Add and click on the map, add a whole site, or choose a sample."
        if self.adding:
            return f"Click: a new site with one {self.kind}, or one more at the site you hit. Esc ends adding."
        return (
            "Click a site to see its devices, click a device to exclude it. Drag moves a site. Shift-click a second"
            " one for their link."
        )


def _usd(text: str) -> float | None:
    """Dollars a GB as a person typed them; None for nothing."""
    text = text.strip().removeprefix("$").removesuffix("$/GB").strip()[:40]
    if not text:
        return None
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InvalidInput(f"must be dollars a GB, such as 0.02, or blank; got {text!r:.40}") from None


def _there(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise InvalidInput("cluster: it is empty by now; add a site first")
    return cluster


def _known(cluster: Cluster | None, name: str) -> Site:
    return edits.site_named(_there(cluster), name)


def _fresh(cluster: Cluster | None, site: Site) -> Site:
    """The site, under another name if another page has just taken its own."""
    return site.replace(name=edits.free_site_name(cluster, site.name))


def _new_site(cluster: Cluster | None, name: str, longitude: float, latitude: float) -> Site:
    """A site at a point; without a name it is called as the nearest place of the list, if one is near."""
    near = nearest_place(latitude, longitude)
    title = name or (
        near.name if near else f"{abs(latitude):.0f}°{'NS'[latitude < 0]} {abs(longitude):.0f}°{'EW'[longitude < 0]}"
    )
    fields = {"name": edits.free_site_name(cluster, title), "latitude": latitude, "longitude": longitude}
    return checked(Site, fields, "site")


def _point(gesture: Gesture) -> tuple[float, float]:
    """Longitude and latitude of a gesture. Raises InvalidInput."""
    longitude, latitude = degrees(gesture.x, gesture.y)
    if abs(latitude) >= MAX_LATITUDE:
        raise InvalidInput(f"map: it ends at {MAX_LATITUDE:g}° north and south; click nearer to the equator")
    return longitude, latitude


def _listed(names: Collection[str]) -> str:
    first = next(iter(names), "nothing")
    return first if len(names) <= 1 else f"{len(names)} devices"
