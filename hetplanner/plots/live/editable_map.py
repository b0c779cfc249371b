"""The map as one draws on it: taps, drags and keys are told to a listener; selected sites show their devices."""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, HoverTool, PanTool

from hetplanner.cluster.model import Cluster
from hetplanner.plots.data.gestures import Gesture, gesture_of
from hetplanner.plots.data.maps import DOT_NAMES, DOT_PX, Columns, dot_columns, site_columns, view_box
from hetplanner.plots.live.base import empty_source, put
from hetplanner.plots.live.device_map import DeviceMap
from hetplanner.plots.theme import DARK_INK

EMPTY_NOTE = "an empty map: press Add, then click where the first site stands"
SELECTED_COLOUR = "#EE6677"

# What lies under the pointer. Distances are in pixels, so that a small marker is as easy to hit at every zoom.
_HIT = """
const per_px = (fig.x_range.end - fig.x_range.start) / fig.inner_width
const hit_dot = (x, y) => {
  const {x: xs, y: ys, dx, dy, id} = dots.data
  let best = 8, found = -1
  for (let i = 0; i < id.length; i++) {
    const away = Math.hypot((x - xs[i]) / per_px - dx[i], (ys[i] - y) / per_px - dy[i])
    if (away < best) { best = away; found = i }
  }
  return found
}
const hit_site = (x, y) => {
  const {x: xs, y: ys, size, name} = sites.data
  let best = 7, found = -1
  for (let i = 0; i < name.length; i++) {
    const away = Math.hypot((x - xs[i]) / per_px, (y - ys[i]) / per_px) - size[i] / 2
    if (away < best) { best = away; found = i }
  }
  return found
}
const say = (kind, site, device, x, y, shift) => {
  heard.count = (heard.count ?? 0) + 1
  heard.data = {
    kind: [kind], site: [site], device: [device], x: [x], y: [y], shift: [shift],
    reach: [isFinite(per_px) ? 12 * per_px : 0], count: [heard.count],
  }
}
"""
_TAP = (
    _HIT
    + """
const {x, y} = cb_obj
const dot = hit_dot(x, y), site = hit_site(x, y)
say('tap', site < 0 ? '' : sites.data.name[site], dot < 0 ? '' : dots.data.id[dot], x, y, cb_obj.modifiers.shift)
"""
)
# Over a marker a drag moves it, elsewhere it moves the map: the pan tool steps aside while the pointer is over one.
_MOVE = (
    _HIT
    + """
if (!heard.dragging) pan.active = hit_site(cb_obj.x, cb_obj.y) < 0
"""
)
# A finger comes from nowhere, so the place where the drag began is asked again.
_DRAG_START = (
    _HIT
    + """
const row = hit_site(cb_obj.x, cb_obj.y)
heard.dragging = row < 0 ? null : {row}
pan.active = row < 0
"""
)
_DRAG = """
if (heard.dragging) {
  const {row} = heard.dragging
  const old_x = sites.data.x[row], old_y = sites.data.y[row]
  for (const source of [...followers, sites]) {
    const {x, y} = source.data
    let changed = false
    for (let i = 0; i < x.length; i++)
      if (x[i] == old_x && y[i] == old_y) { x[i] = cb_obj.x; y[i] = cb_obj.y; changed = true }
    if (changed) source.change.emit()
  }
}
"""
_DRAG_END = (
    _HIT
    + """
if (heard.dragging) {
  const {row} = heard.dragging
  heard.dragging = null
  say('drag', sites.data.name[row], '', sites.data.x[row], sites.data.y[row], false)
}
"""
)
# Keys of the whole page, but not those typed into a field.
_KEYS = (
    _HIT
    + """
if (!heard.listens) {
  heard.listens = true
  document.addEventListener('keydown', (e) => {
    const at = e.composedPath()[0]
    const types = at && (at.isContentEditable || at.tagName == 'TEXTAREA' || at.tagName == 'SELECT' ||
      (at.tagName == 'INPUT' && !/^(button|checkbox|radio|range|submit)$/.test(at.type)))
    if (types || fig.document == null) return
    const held = e.ctrlKey || e.metaKey, key = e.key.toLowerCase()
    const meaning = held && key == 'z' ? (e.shiftKey ? 'redo' : 'undo') : held && key == 'y' ? 'redo'
      : held || e.altKey ? '' : key == 'delete' || key == 'backspace' ? 'delete' : key == 'escape' ? 'escape' : ''
    if (meaning) {
      if (held) e.preventDefault()
      say('key', meaning, '', 0, 0, false)
    }
  })
}
"""
)


class EditableMap(DeviceMap):
    """Tells `listener` what a person does on it. What is drawn stays as it is until the listener has it changed."""

    site_tooltips: ClassVar = [("", "@name: @kinds")]

    def __init__(self, listener: Callable[[Gesture], None], *, dark: bool = False, height: int = 400) -> None:
        self._listener = listener
        self._shown_sites: set[str] = set()
        self._shown_empty = False
        super().__init__(dark=dark, height=height)
        self.figure.name = "editable-map"
        self.figure.toolbar.autohide = False  # where it comes and goes, the map is now wider, now narrower
        self._listen()

    def _draw_sites(self) -> None:
        self.tie_source = empty_source("x", "y")
        self.ring_source = empty_source("x", "y", "size")
        self.dot_source = empty_source(*DOT_NAMES)
        self._tie = self.figure.line(
            "x", "y", source=self.tie_source, line_dash="dashed", line_width=2, line_color=SELECTED_COLOUR
        )
        super()._draw_sites()
        self._ring = self.figure.scatter(
            "x", "y", size="size", source=self.ring_source, fill_color=None, line_color=SELECTED_COLOUR, line_width=3
        )
        self._dots = self._texts(self.dot_source, text_font_size="19px", text_baseline="middle")
        self._dots.glyph.update(text_align="center", x_offset="dx", y_offset="dy", text_color="colour")

    def _add_tools(self) -> None:
        super()._add_tools()
        tip = HoverTool(renderers=[self._dots], tooltips=[("", "@id"), ("", "@kind, @used")], visible=False)
        self.figure.add_tools(tip)

    def _listen(self) -> None:
        self.heard_source = ColumnDataSource({name: [] for name in (*Gesture._fields, "count")})
        self.heard_source.on_change("data", self._heard)
        fig = self.figure
        args: dict[str, Any] = {
            "fig": fig,
            "sites": self.site_source,
            "dots": self.dot_source,
            "heard": self.heard_source,
            "pan": fig.select_one(PanTool),
            "followers": [self.name_source, self.dot_source, self.ring_source, self.tie_source],
        }
        tap = CustomJS(args=args, code=_TAP)
        fig.js_on_event("tap", tap)
        fig.js_on_event("doubletap", tap)  # the second of two quick clicks
        for event, code in (("mousemove", _MOVE), ("panstart", _DRAG_START), ("pan", _DRAG), ("panend", _DRAG_END)):
            fig.js_on_event(event, CustomJS(args=args, code=code))
        fig.js_on_change("inner_width", CustomJS(args=args, code=_KEYS))

    def _heard(self, _attr: str, _old: object, new: dict[str, Sequence[Any]]) -> None:
        gesture = gesture_of(new)
        if gesture is not None:
            self._listener(gesture)

    def show(self, cluster: Cluster | None, excluded: Collection[str] = (), selected: Collection[str] = ()) -> None:
        """Shows a draft. The view stays while one edits; see `_fit_view`.

        Args:
            cluster: None shows an empty map.
            excluded: ids of devices that are drawn as left out.
            selected: names of sites that show their devices; a line joins two.
        """
        if cluster is None:
            self.update(None)
            self._again = partial(self.show, None)
            for source in (self.tie_source, self.ring_source):
                put(source, {name: [] for name in source.column_names})
            put(self.dot_source, _no_fewer_rows({name: [] for name in DOT_NAMES}, len(self.dot_source.data["x"])))
            self._shown_sites, self._shown_empty = set(), True
            self._say(EMPTY_NOTE)
            return
        self._again = partial(self.show, cluster, excluded, selected)
        self._say("")
        sites = site_columns(cluster, excluded)
        self._fit_view(sites)
        put(self.site_source, sites)
        dots = dot_columns(cluster, selected, excluded) if len(selected) == 1 else {name: [] for name in DOT_NAMES}
        self._show_labels(_with_room(sites, dots), [{} for _ in sites["x"]])
        rows = [i for i, name in enumerate(sites["name"]) if name in set(selected)]
        marks = {axis: [sites[axis][i] for i in rows] for axis in ("x", "y")}
        put(self.ring_source, marks | {"size": [sites["size"][i] + 7 for i in rows]})
        put(self.tie_source, marks if len(rows) == 2 else {"x": [], "y": []})
        put(self.dot_source, _no_fewer_rows(dots, len(self.dot_source.data["x"])))

    def _fit_view(self, sites: Columns) -> None:
        """Looks at all sites where none of the ones before is left, or where a new one is out of sight."""
        names = set(sites["name"])
        new = [i for i, name in enumerate(sites["name"]) if name not in self._shown_sites]
        across, up = self.figure.x_range, self.figure.y_range
        hidden = any(
            not (across.start <= sites["x"][i] <= across.end and up.start <= sites["y"][i] <= up.end) for i in new
        )
        is_other = not names & self._shown_sites and not (self._shown_empty and len(names) == 1)
        if is_other or hidden:
            self._look_at(view_box(sites["x"], sites["y"]))
        self._shown_sites, self._shown_empty = names, False

    def put_back(self) -> None:
        """Markers where the cluster has them, after a drag that changed nothing: the page has moved them already."""
        for source in (self.site_source, self.name_source, self.dot_source, self.ring_source, self.tie_source):
            count = len(source.data["x"])
            if count:
                source.patch({axis: [(slice(count), list(source.data[axis]))] for axis in ("x", "y")})


def _no_fewer_rows(dots: Columns, count: int) -> Columns:
    """Blank rows up to `count`: while rows go, Bokeh's text glyph reads its column of colours behind its end."""
    missing = max(0, count - len(dots["x"]))
    blank: dict[str, Any] = {"x": np.nan, "y": np.nan, "dx": 0.0, "dy": 0.0, "colour": DARK_INK}
    return {name: [*values, *[blank.get(name, "")] * missing] for name, values in dots.items()}


def _with_room(sites: Columns, dots: Columns) -> Columns:
    """Sites as large as the rings of devices around them, for labels that stay clear of these."""
    if not dots["x"]:
        return sites
    away = 2 * max(map(math.hypot, dots["dx"], dots["dy"])) + DOT_PX
    here = dots["x"][0], dots["y"][0]
    sizes = zip(sites["x"], sites["y"], sites["size"], strict=True)
    return sites | {"size": [max(away, size) if (x, y) == here else size for x, y, size in sizes]}
