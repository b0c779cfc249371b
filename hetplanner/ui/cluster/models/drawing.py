"""Drawing on the map: what a click, a drag or a key does in each mode, and what is done with what is selected."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import param

from hetplanner.cluster import edits, link_edits
from hetplanner.cluster.catalog import kind_names
from hetplanner.cluster.distance import distance_link
from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster, Site
from hetplanner.errors import InvalidInput
from hetplanner.plots.coastline import MAX_LATITUDE, degrees, mercator
from hetplanner.plots.data.maps.gestures import Gesture
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.cluster.models.links import LinksModel
from hetplanner.ui.cluster.models.site_forms import SiteForms, new_site, there
from hetplanner.ui.shell.models.session import Session

DEFAULT_KIND = "A100-80"
MODES = ("select", "add", "link")
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
"""How many devices a click may add, and a host may hold."""
COPY_EAST_DEG = 6.0
"""How far east of a site its copy stands, until it is dragged elsewhere."""


class DrawingModel(SiteForms):
    """What the map's controls hold. Every change goes through the editor, so that Undo takes it back.

    Attributes:
        mode: what a click does: select, add `count` devices of `kind`, or link two sites.
        per_host: devices of a host; a click at a site fills its newest host of that kind first.
        line: the two sites whose link was clicked or drawn; sites that are selected release it.
    """

    mode: Any = param.Selector(default="select", objects=list(MODES))
    kind: Any = param.Selector(default=DEFAULT_KIND, objects=list(kind_names()))
    count: Any = param.Selector(default=1, objects=list(COUNTS))
    per_host: Any = param.Selector(default=8, objects=list(COUNTS))
    line: Any = param.Parameter(default=())

    def __init__(self, session: Session, editor: Editor, links: LinksModel, **params: Any) -> None:
        super().__init__(session, editor, **params)
        self.links = links
        editor.param.watch(self._cluster_changed, "cluster")
        self.param.watch(self._selection_changed, ["selected", "line"])

    def _cluster_changed(self, *_: Any) -> None:
        cluster = self.editor.cluster
        known = {s.name for s in cluster.sites} if cluster is not None else set()
        with param.parameterized.batch_call_watchers(self):
            self._select(self.selected)
            if not known.issuperset(self.line):
                self.line = ()

    def _selection_changed(self, *_: Any) -> None:
        if self.ends:
            self.links.choose(LinkEnds("site", *self.ends))

    @property
    def ends(self) -> tuple[str, ...]:
        """The two sites whose link is shown for editing: of the chosen line, or two selected ones; else nothing."""
        return self.line or (self.selected if len(self.selected) == 2 else ())

    def _choose(self, *, sites: tuple[str, ...] = (), line: tuple[str, ...] = ()) -> None:
        """Sites or a line selected in place of what was."""
        with param.parameterized.batch_call_watchers(self):
            self._select(sites)
            self.line = line

    # -- gestures ---------------------------------------------------------------------------------

    def act(self, gesture: Gesture) -> None:
        """Does what a gesture means; a site or device that is gone by now is said so."""
        acts: dict[str, Callable[[Gesture], None]] = {
            "key": self._key,
            "drag": self._drag,
            "box": self._box,
            "link": lambda drawn: self.link(drawn.site, drawn.other),
            "tap": self._tap,
        }
        with self.session.reporting():
            acts[gesture.kind](gesture)

    def _key(self, gesture: Gesture) -> None:
        verbs: dict[str, Callable[[], None]] = {
            "undo": self.editor.undo,
            "redo": self.editor.redo,
            "delete": self.delete_selected,
            "escape": self.release,
        }
        if gesture.site in verbs:
            verbs[gesture.site]()

    def _tap(self, gesture: Gesture) -> None:
        site = "" if gesture.other else gesture.site
        if gesture.device and self.mode == "select":
            self.toggle([gesture.device])
        elif gesture.device:  # its dot stands beside its site
            self._tap(gesture._replace(site=self._site_of(gesture.device), device="", other=""))
        elif gesture.shift:
            if site:
                self._select_too(site)
        elif self.mode == "add":
            self._add_at(gesture._replace(site=site))
        elif self.mode == "link" and site and len(self.selected) == 1 and site not in self.selected:
            self.link(self.selected[0], site)
        elif gesture.other and self._are_sites(gesture.site, gesture.other):
            self._choose(line=(gesture.site, gesture.other))
        else:
            self._choose(sites=(site,) if site and (site,) != self.selected else ())

    def _are_sites(self, *names: str) -> bool:
        cluster = self.editor.cluster
        return cluster is not None and {s.name for s in cluster.sites}.issuperset(names)

    def _site_of(self, device: str) -> str:
        cluster = self.editor.cluster
        return cluster.site_of(device).name if cluster is not None and device in cluster.device_ids else ""

    def _select_too(self, name: str) -> None:
        """One more site; one that is selected already is released."""
        if name in self.selected:
            self._choose(sites=tuple(n for n in self.selected if n != name))
        else:
            self._choose(sites=(*self.selected, name))

    def release(self) -> None:
        """Nothing selected, and clicks select again."""
        self._choose()
        self.mode = "select"

    def _add_at(self, gesture: Gesture) -> None:
        kind, count, per_host = self.kind, self.count, self.per_host
        # The page may not show yet what the click before this one has added.
        name = gesture.site or self._site_near(gesture)
        if name:
            self.editor.edit(
                lambda c: edits.fill_hosts(c, kind, count, edits.site_named(there(c), name), per_host=per_host),
                f"added {count} × {kind} at {name}",
            )
        else:
            site = new_site(self.editor.cluster, "", *_point(gesture))
            name = site.name
            self.editor.edit(
                lambda c: edits.add_devices(c, kind, count, _fresh(c, site), per_host=per_host),
                f"added {name} with {count} × {kind}",
            )
        self._choose(sites=(name,))

    def _site_near(self, gesture: Gesture) -> str:
        cluster = self.editor.cluster
        if cluster is None:
            return ""
        x_S, y_S = _places(cluster)
        away_S = np.hypot(x_S - gesture.x, y_S - gesture.y)
        nearest = int(away_S.argmin())
        return cluster.sites[nearest].name if away_S[nearest] <= gesture.reach else ""

    def _box(self, gesture: Gesture) -> None:
        """The sites in a box; with those that are selected already."""
        cluster = self.editor.cluster
        if cluster is not None:
            x_S, y_S = _places(cluster)
            across, up = sorted((gesture.x, gesture.x2)), sorted((gesture.y, gesture.y2))
            inside_S = (x_S >= across[0]) & (x_S <= across[1]) & (y_S >= up[0]) & (y_S <= up[1])
            new = [s.name for s, inside in zip(cluster.sites, inside_S, strict=True) if inside]
            self._choose(sites=tuple(dict.fromkeys([*self.selected, *new])))

    def _drag(self, gesture: Gesture) -> None:
        """Moves a site, and with it all others that are selected if it is one of them."""
        longitude, latitude = _point(gesture)
        names = self.selected if gesture.site in self.selected else (gesture.site,)

        def change(cluster: Cluster | None) -> Cluster:
            now = there(cluster)
            dragged = edits.site_named(now, gesture.site)
            north, east = latitude - dragged.latitude, longitude - dragged.longitude
            for name in names:
                old = edits.site_named(now, name)
                up = min(max(old.latitude + north, -MAX_LATITUDE), MAX_LATITUDE)
                now = edits.move_site(now, name, round(up, 4), round(_turned(old.longitude + east), 4))
            return now

        self.editor.edit(change, f"moved {_sites_text(names)}")

    # -- verbs on what is selected ----------------------------------------------------------------

    def link(self, start: str, end: str) -> None:
        """Chooses the link between two sites; where there is none it is made, assumed from the distance."""
        if start == end or not self._are_sites(start, end):
            return
        ends = LinkEnds("site", start, end)

        def change(cluster: Cluster | None) -> Cluster:
            now = there(cluster)
            if link_edits.own_link(now, ends) is not None:
                return now
            by_distance = distance_link(edits.site_named(now, start), edits.site_named(now, end))
            return link_edits.set_link(
                now,
                ends,
                latency_s=by_distance.latency,
                bandwidth_bytes_per_s=by_distance.bandwidth,
                source="assumed",
                when=by_distance.when,
            )

        self.editor.edit(change, f"linked {start} and {end}")
        self._choose(line=(start, end))

    def delete_selected(self) -> None:
        """Deletes the chosen link, or the selected sites with all that stands there."""
        names = self.selected
        with self.session.reporting():
            if self.line:
                if not self.links.remove():
                    raise InvalidInput("; ".join(self.links.errors.values()))
                self.line = ()
            elif names:
                self.editor.edit(lambda c: edits.delete_sites(there(c), names), f"deleted {_sites_text(names)}")

    def copy_selected(self) -> None:
        """A copy of every selected site beside it, selected in their place."""
        names = self.selected
        if not names:
            self.session.notify("info", "Select the sites to copy.")
            return
        made: list[str] = []

        def change(cluster: Cluster | None) -> Cluster:
            now = there(cluster)
            made.clear()
            for name in names:
                old = edits.site_named(now, name)
                east = _turned(old.longitude + COPY_EAST_DEG)
                twin = _fresh(now, old.replace(name=f"{name[:100]} copy", longitude=east))
                now = edits.copy_site(now, name, twin)
                made.append(twin.name)
            return now

        with self.session.reporting():
            self.editor.edit(change, f"copied {_sites_text(names)}")
            self._choose(sites=tuple(made))

    def align_selected(self, axis: str) -> None:
        """Puts the selected sites onto one latitude or one longitude: that of the first one selected."""
        names = self.selected
        if len(names) < 2 or axis not in ("latitude", "longitude"):
            return

        def change(cluster: Cluster | None) -> Cluster:
            now = there(cluster)
            first = edits.site_named(now, names[0])
            for name in names[1:]:
                old = edits.site_named(now, name)
                place = (first.latitude, old.longitude) if axis == "latitude" else (old.latitude, first.longitude)
                now = edits.move_site(now, name, *place)
            return now

        with self.session.reporting():
            self.editor.edit(change, f"put {_sites_text(names)} onto one {axis}")

    def use_selected(self, used: bool) -> None:
        """Includes or excludes all devices of the selected sites."""
        cluster = self.editor.cluster
        if cluster is not None and self.selected:
            self.use(edits.devices_at(cluster, self.selected), used, _sites_text(self.selected))

    def set_link(self, bandwidth: str, latency: str) -> bool:
        """The link whose ends are chosen, as a person typed it; False if refused (`links.errors`)."""
        if not self.ends:
            return False
        ends = LinkEnds("site", *self.ends)
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
            self.editor.edit(lambda c: edits.delete_devices(there(c), ids), f"deleted {_listed(ids)}")

    # -- the whole cluster ------------------------------------------------------------------------

    def begin_empty(self) -> None:
        """An empty map on which every click adds; Undo brings back what was there."""
        with self.session.reporting():
            self.editor.apply(None, "began an empty cluster")
            self.mode = "add"

    @property
    def hint(self) -> str:
        """What a click does now."""
        if self.mode == "add":
            return (
                f"Click: {self.count} × {self.kind} at a new site, or at the one you hit, up to"
                f" {self.per_host} on a host. Esc ends adding."
            )
        if self.editor.cluster is None:
            return "Nothing is drawn yet: press Add and click on the map, add a whole site, or choose a sample."
        if self.mode == "link":
            return "Drag from one site to another, then type bandwidth and latency beside the map. Esc ends linking."
        return (
            "Click a site, a device (excludes it) or a link. Drag moves a site; Shift-drag from it links it."
            " Shift-click and Shift-drag select several."
        )


def _places(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    return mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])


def _turned(longitude: float) -> float:
    """Within ±180°."""
    return (longitude + 180) % 360 - 180


def _fresh(cluster: Cluster | None, site: Site) -> Site:
    """The site, under another name if another page has just taken its own."""
    return site.replace(name=edits.free_site_name(cluster, site.name))


def _point(gesture: Gesture) -> tuple[float, float]:
    """Longitude and latitude of a gesture. Raises InvalidInput."""
    longitude, latitude = degrees(gesture.x, gesture.y)
    if abs(latitude) >= MAX_LATITUDE:
        raise InvalidInput(f"map: it ends at {MAX_LATITUDE:g}° north and south; click nearer to the equator")
    return longitude, latitude


def _sites_text(names: tuple[str, ...]) -> str:
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} sites"


def _listed(names: Collection[str]) -> str:
    first = next(iter(names), "nothing")
    return first if len(names) <= 1 else f"{len(names)} devices"
