"""The map as one draws on it: taps, drags and keys are told to a listener; selected sites show their devices."""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, PanTool

from hetplanner.cluster.model import Cluster
from hetplanner.plots.data.maps.gestures import Gesture, gesture_of
from hetplanner.plots.data.maps.labels import MAX_NAMED
from hetplanner.plots.data.maps.maps import (
    DOT_NAMES,
    DOT_PX,
    MAX_DOTS,
    Columns,
    dot_columns,
    fitted,
    kind_badges,
    site_columns,
    view_box,
)
from hetplanner.plots.data.maps.site_links import (
    BOW,
    LABEL_NAMES,
    LINE_NAMES,
    PixelBox,
    drawn_pairs,
    label_columns,
    line_columns,
)
from hetplanner.plots.live.base import TEXT_FONT, empty_source, put
from hetplanner.plots.live.maps.device_map import DEFAULT_WIDTH_PX, DeviceMap
from hetplanner.plots.live.maps.map_gestures import DRAG, DRAG_END, DRAG_START, KEYS, MOVE, TAP
from hetplanner.plots.theme import DARK_INK, SOURCE_COLOURS

EMPTY_NOTE = "an empty map: {}click where the first site stands"
SELECTED_COLOUR = "#EE6677"

MAX_BADGED = 16
"""Sites that say their kinds on the map; of more, the hover does."""


class EditableMap(DeviceMap):
    """Tells `listener` what a person does on it. What is drawn stays as it is until the listener has it changed.

    Attributes:
        left_out: what is not drawn because there is too much of it, in words; '' if nothing is.
    """

    site_tooltips: ClassVar = [("", "@name: @kinds")]
    badge_tooltips: ClassVar = [("", "@text at @site"), ("", "@devices")]

    def __init__(
        self, listener: Callable[[Gesture], None], *, dark: bool = False, height: int = 400, keys: bool = True
    ) -> None:
        """An empty map; `keys`: whether it hears keys, those of the whole page, which a notebook has for itself."""
        self._listener = listener
        self._hears_keys = keys
        self._told: dict[str, list[Any]] = {}
        self._shown_sites: set[str] = set()
        self._shown_empty = False
        self.left_out = ""
        super().__init__(dark=dark, height=height)
        self.figure.name = "editable-map"
        self.figure.toolbar.autohide = False  # where it comes and goes, the map is now wider, now narrower
        self._listen()

    def _draw_sites(self) -> None:
        self.line_source = empty_source(*LINE_NAMES, "colour")
        self.label_source = empty_source(*LABEL_NAMES)
        self.sketch_source = empty_source("xs", "ys")
        self.ring_source = empty_source("x", "y", "size")
        self.dot_source = empty_source(*DOT_NAMES)
        self._lines = self.figure.multi_line(
            "xs", "ys", source=self.line_source, line_width="width", line_color="colour", line_alpha=0.75
        )
        self._numbers = self.figure.text(
            "x", "y", text="text", source=self.label_source, text_font=TEXT_FONT, text_font_size="11px",
            text_align="center", text_baseline="middle", padding=2, border_radius=4,
        )  # fmt: skip
        self.figure.multi_line(
            "xs", "ys", source=self.sketch_source, line_dash="dashed", line_width=2, line_color=SELECTED_COLOUR
        )
        super()._draw_sites()
        self._ring = self.figure.scatter(
            "x", "y", size="size", source=self.ring_source, fill_color=None, line_color=SELECTED_COLOUR, line_width=3
        )
        self._dots = self._texts(self.dot_source, text_font_size="19px", text_baseline="middle")
        self._dots.glyph.update(text_align="center", x_offset="dx", y_offset="dy", text_color="colour")

    def _add_tools(self) -> None:
        super()._add_tools()
        self._add_tips([self._dots], [("", "@id"), ("", "@kind, @used")])
        self._add_tips([self._lines], [("", "@there"), ("", "@back")], limit=1)

    def _recolour(self) -> None:
        super()._recolour()
        look = self.look
        self._numbers.glyph.update(text_color=look.text, background_fill_color=look.paper, background_fill_alpha=0.85)

    def _listen(self) -> None:
        self.heard_source = ColumnDataSource({name: [] for name in (*Gesture._fields, "count")})
        self.heard_source.on_change("data", self._heard)
        self.mode_source = ColumnDataSource({"mode": ["select"]})
        fig = self.figure
        args: dict[str, Any] = {
            "fig": fig,
            "sites": self.site_source,
            "dots": self.dot_source,
            "heard": self.heard_source,
            "pan": fig.select_one(PanTool),
            "mode": self.mode_source,
            "lines": self.line_source,
            "labels": self.label_source,
            "sketch": self.sketch_source,
            "bow": BOW,
            "followers": [self.name_source, self.badge_source, self.dot_source, self.ring_source],
        }
        tap = CustomJS(args=args, code=TAP)
        fig.js_on_event("tap", tap)
        fig.js_on_event("doubletap", tap)  # the second of two quick clicks
        for event, code in (("mousemove", MOVE), ("panstart", DRAG_START), ("pan", DRAG), ("panend", DRAG_END)):
            fig.js_on_event(event, CustomJS(args=args, code=code))
        if self._hears_keys:
            fig.js_on_change("inner_width", CustomJS(args=args, code=KEYS))

    def _heard(self, _attr: str, _old: object, new: dict[str, Sequence[Any]]) -> None:
        told = {name: list(values) for name, values in new.items()}
        if told == self._told:  # a notebook's front end tells everything twice; gestures are counted
            return
        self._told = told
        gesture = gesture_of(new)
        if gesture is not None:
            self._listener(gesture)

    def show(
        self,
        cluster: Cluster | None,
        excluded: Collection[str] = (),
        selected: Collection[str] = (),
        line: Sequence[str] = (),
        mode: str = "select",
    ) -> None:
        """Shows a draft. The view stays while one edits; see `_fit_view`.

        Args:
            cluster: None shows an empty map.
            excluded: ids of devices that are drawn as left out.
            selected: names of sites; one alone shows its devices.
            line: the two sites whose link is marked.
            mode: what a click does: select, add or link.
        """
        self._again = partial(self.show, cluster, excluded, selected, line, mode)
        put(self.mode_source, {"mode": [mode]})
        if cluster is None:
            self._show_empty(mode)
            return
        self._say("")
        sites = site_columns(cluster, excluded)
        self._fit_view(sites)
        put(self.site_source, sites)
        dots = dot_columns(cluster, selected, excluded) if len(selected) == 1 else {name: [] for name in DOT_NAMES}
        taken = self._show_labels(
            _with_room(sites, dots), kind_badges(cluster) if len(cluster.sites) <= MAX_BADGED else []
        )
        rows = [i for i, name in enumerate(sites["name"]) if name in set(selected)]
        marks = {axis: [sites[axis][i] for i in rows] for axis in ("x", "y")}
        put(self.ring_source, marks | {"size": [sites["size"][i] + 7 for i in rows]})
        put(self.dot_source, _no_fewer_rows(dots, len(self.dot_source.data["x"])))
        self.left_out = " ".join(
            filter(None, (self._show_lines(cluster, selected, line, taken), _left_out_of(sites, dots, rows)))
        )

    def _show_empty(self, mode: str) -> None:
        self.update(None)
        self._again = partial(self.show, None, mode=mode)
        for source in (self.ring_source, self.line_source, self.label_source):
            put(source, {name: [] for name in source.column_names})
        put(self.dot_source, _no_fewer_rows({name: [] for name in DOT_NAMES}, len(self.dot_source.data["x"])))
        self._shown_sites, self._shown_empty, self.left_out = set(), True, ""
        self._say(EMPTY_NOTE.format("" if mode == "add" else "press Add, then "))

    def _show_lines(
        self, cluster: Cluster, selected: Collection[str], line: Sequence[str], taken: Sequence[PixelBox]
    ) -> str:
        """Lines of links, with numbers where nothing stands; returns what is left out, in words."""
        pairs, words = drawn_pairs(cluster, selected, line)
        lines = line_columns(cluster, pairs, line)
        colours = [
            SELECTED_COLOUR if chosen else SOURCE_COLOURS[source]
            for chosen, source in zip(lines["chosen"], lines["source"], strict=True)
        ]
        put(self.line_source, lines | {"colour": colours})
        frame = self._frame_px(DEFAULT_WIDTH_PX)
        first = sorted(pairs, key=lambda pair: {pair.start, pair.end} != set(line))
        put(self.label_source, label_columns(cluster, first, fitted(self._box, *frame), frame, taken))
        return words

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
            west, east, south, north = view_box(sites["x"], sites["y"])
            self._look_at((west, east, south, north + BOW * (east - west)))  # lines bow to the north
        self._shown_sites, self._shown_empty = names, False

    def put_back(self) -> None:
        """Markers where the cluster has them, after a drag that changed nothing: the page has moved them already."""
        moved: dict[ColumnDataSource, tuple[str, ...]] = dict.fromkeys(
            (self.site_source, self.name_source, self.badge_source, self.dot_source, self.ring_source), ("x", "y")
        )
        moved |= {self.label_source: ("x", "y"), self.line_source: ("xs", "ys", "x0", "y0", "x1", "y1")}
        for source, axes in moved.items():
            count = len(source.data[axes[0]])
            if count:
                source.patch({axis: [(slice(count), list(source.data[axis]))] for axis in axes})


def _left_out_of(sites: Columns, dots: Columns, selected: Sequence[int]) -> str:
    """What of sites and of the selected one's devices is not drawn, in words."""
    parts = []
    if len(sites["name"]) > MAX_NAMED:
        parts.append(f"{MAX_NAMED} of {len(sites['name'])} sites are named, the largest.")
    here = sites["count"][selected[0]] if len(selected) == 1 else 0
    if here > MAX_DOTS:
        parts.append(f"{len(dots['x'])} of the site's {here} devices are drawn.")
    return " ".join(parts)


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
