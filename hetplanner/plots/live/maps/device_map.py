"""Sites on an offline world map, and a plan's traffic between them."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    GlyphRenderer,
    HoverTool,
    InlineStyleSheet,
    Label,
    Node,
    PanTool,
    ResetTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)

from hetplanner.cluster.model import Cluster
from hetplanner.plan.model import Plan
from hetplanner.plots.coastline import WORLD_WIDTH_M, border_lines, land_rings
from hetplanner.plots.data.maps.labels import LINE_PX, Block, badge_px, block_size, named_sites, placed_blocks, runs_of
from hetplanner.plots.data.maps.maps import (
    ARC_NAMES,
    SHARED_NAMES,
    Box,
    Columns,
    arc_columns,
    fitted,
    listed,
    shared_columns,
    site_columns,
    stages_at_sites,
    view_box,
)
from hetplanner.plots.data.maps.site_links import PixelBox
from hetplanner.plots.live.base import FONT, TEXT_FONT, LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import TERM_COLOURS, Look

KEY = "arcs: routes, width by bytes · dotted: gradient exchange · numbers: stages"
GROUPS_KEY = "arcs: routes · dotted: gradient exchange · numbers: stages · ×: size of groups"
DEFAULT_WIDTH_PX = 720.0
MAX_BADGES = 8
"""Badges at a site before '+n'."""

SITE_NAMES = ("x", "y", "name", "label", "count", "size", "colour", "kinds", "devices")
Badge = tuple[str, str]
"""What stands beside a site's name, and what its hover says."""
TEXT_NAMES = ("x", "y", "text", "dx", "dy", "align")

# A metre must be as wide as it is high whatever the size of the frame, which only the browser knows.
_FIT = """
if (fig.properties.inner_width.is_unset) return  // not drawn yet
const [west, east, south, north] = box.data.edge
const w = fig.inner_width, h = fig.inner_height
if (!(w > 40 && h > 40)) return  // not in view
const scale = Math.max((east - west) / w, (north - south) / h) / 2
const x = (west + east) / 2, y = (south + north) / 2
const set = (range, start, end) => range.setv({start, end, reset_start: start, reset_end: end})
set(fig.x_range, x - scale * w, x + scale * w)
set(fig.y_range, y - scale * h, y + scale * h)
"""


class DeviceMap(LiveFigure):
    """Sites as counted markers; with a plan: routes as arcs, stage numbers at the sites, gradient exchange dotted."""

    site_tooltips: ClassVar = [("site", "@name"), ("devices", "@kinds"), ("", "@devices")]
    badge_tooltips: ClassVar = [("stage", "@text at @site"), ("", "@devices")]

    def __init__(self, *, dark: bool = False, height: int = 360) -> None:
        box = view_box([], [])
        west, east, south, north = fitted(box, DEFAULT_WIDTH_PX, height)
        super().__init__(
            dark=dark,
            height=height,
            x_range=(west, east),
            y_range=(south, north),
            toolbar_location="right",
            toolbar_inner=True,
            min_border=1,  # what is drawn into the outermost row of pixels stays there when the theme changes
            min_border_right=1,
        )
        self.figure.axis.visible = False
        self.figure.grid.visible = False
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True
        # The page's theme gives it a light paper, in dark mode too.
        self.figure.toolbar.stylesheets = [InlineStyleSheet(css=":host { background: transparent !important; }")]
        self._box: Box = box
        self._box_source = ColumnDataSource({"edge": list(box)})
        fit = CustomJS(args={"box": self._box_source, "fig": self.figure}, code=_FIT)
        self._box_source.js_on_change("data", fit)
        self.figure.js_on_change("inner_width", fit)
        self.figure.js_on_change("inner_height", fit)
        self._draw_world()
        self._draw_traffic()
        self._draw_sites()
        self._key = Label(
            x=Node(target="frame", symbol="bottom_left", offset=6),
            y=Node(target="frame", symbol="bottom_left", offset=-6),
            text=KEY,
            text_font=FONT,
            text_font_size="11px",
            padding=2,
            visible=False,
        )
        self.figure.add_layout(self._key)
        self._add_tools()
        self._recolour()
        self.update(None)

    def _draw_world(self) -> None:
        fig = self.figure
        self._ocean = self._boxes([0], [0], width=4 * WORLD_WIDTH_M, height=4 * WORLD_WIDTH_M, line_color=None)
        # One glyph with NaN between the rings: thousands of small arrays would be as many WebSocket frames.
        self._land = fig.patch(*_joined(land_rings()), line_width=0.6)
        self._borders = fig.line(*_joined(border_lines()), line_width=0.5)

    def _draw_traffic(self) -> None:
        self.shared_source = empty_source(*SHARED_NAMES)
        self.arc_source = empty_source(*ARC_NAMES)
        self._shared = self.figure.multi_line(
            "xs", "ys", source=self.shared_source, line_dash="dotted", line_width=1.6, line_alpha=0.8
        )
        self.arcs = self.figure.multi_line(
            "xs", "ys", source=self.arc_source, line_color="colour", line_width="width", line_alpha=0.85
        )

    def _draw_sites(self) -> None:
        self.site_source = empty_source(*SITE_NAMES)
        self.name_source = empty_source(*TEXT_NAMES)
        self.badge_source = empty_source(*TEXT_NAMES, "site", "devices")
        self.sites = self.figure.scatter(
            "x", "y", size="size", source=self.site_source, fill_color="colour", line_width=1.5
        )
        self._names = self._texts(self.name_source, text_font_size="12px", text_baseline="top", padding=1)
        self.badges = self._texts(
            self.badge_source, text_font_size="10px", text_baseline="top", padding=[4, 1], border_radius=8,
            text_font_style="bold", border_line_width=1,
        )  # fmt: skip

    def _texts(self, source: ColumnDataSource, **options: object) -> GlyphRenderer:
        return self.figure.text(
            "x", "y", text="text", x_offset="dx", y_offset="dy", text_align="align", source=source,
            text_font=TEXT_FONT, **options,
        )  # fmt: skip

    def _add_tools(self) -> None:
        arcs = [("", "@link"), ("", "@route"), ("bytes a step", "@traffic"), ("latency", "@latency")]
        self.figure.add_tools(
            PanTool(),
            WheelZoomTool(modifiers={"ctrl": True}),
            ZoomInTool(),
            ZoomOutTool(),
            ResetTool(),
            HoverTool(
                renderers=[self.sites],
                tooltips=self.site_tooltips,
                visible=False,
            ),
            HoverTool(
                renderers=[self.arcs],
                tooltips=[*arcs, ("bandwidth", "@bandwidth")],
                line_policy="interp",
                visible=False,
            ),
            HoverTool(
                renderers=[self._shared],
                tooltips=[("", "@sites"), ("gradient exchange", "@groups"), ("bytes a step", "@traffic")],
                line_policy="interp",
                visible=False,
            ),
            HoverTool(renderers=[self.badges], tooltips=self.badge_tooltips, visible=False),
        )
        self.figure.toolbar.active_drag = self.figure.select_one(PanTool)

    def _recolour(self) -> None:
        super()._recolour()
        look = self.look
        self._ocean.glyph.fill_color = look.ocean
        self._land.glyph.update(fill_color=look.land, line_color=look.coast)
        self._borders.glyph.line_color = look.coast
        self._shared.glyph.line_color = shared_colour(look)
        self._key.update(text_color=look.muted, background_fill_color=look.paper, background_fill_alpha=0.7)
        self.sites.glyph.line_color = look.outline
        self._names.glyph.update(text_color=look.text, background_fill_color=look.paper, background_fill_alpha=0.55)
        self.badges.glyph.update(
            text_color=look.text,
            background_fill_color=look.paper,
            background_fill_alpha=0.9,
            border_line_color=look.muted,
        )

    def update(self, cluster: Cluster | None, plan: Plan | None = None) -> None:
        """Shows a cluster, or a plan on its own cluster; None empties the map. The view moves if the sites do."""
        self._again = partial(self.update, cluster, plan)
        shown = plan.problem.cluster if plan else cluster
        if shown is None:
            for source in (self.site_source, self.name_source, self.badge_source):
                put(source, {name: [] for name in source.column_names})
            self._show_traffic(None)
            self._look_at(view_box([], []))
            self._say("choose a cluster to see its sites")
            return
        self._say("")
        sites = site_columns(shown, groups=(plan.problem.groups or ()) if plan else ())
        west, east, south, north = view_box(sites["x"], sites["y"])
        # Arcs bow to the north: leave them room.
        self._look_at((west, east, south, north + 0.08 * (east - west)))
        put(self.site_source, sites)
        self._show_labels(sites, [badge_texts(at) for at in stages_at_sites(plan)] if plan else [])
        self._show_traffic(plan)

    def _show_traffic(self, plan: Plan | None) -> None:
        self._key.visible = plan is not None
        self._key.text = GROUPS_KEY if plan is not None and plan.problem.groups else KEY
        put(self.arc_source, arc_columns(plan) if plan else {name: [] for name in ARC_NAMES})
        put(self.shared_source, shared_columns(plan) if plan else {name: [] for name in SHARED_NAMES})

    def _look_at(self, box: Box) -> None:
        if box == self._box:
            return
        self._box = box
        west, east, south, north = fitted(box, *self._frame_px(DEFAULT_WIDTH_PX))
        set_range(self.figure.x_range, west, east)
        set_range(self.figure.y_range, south, north)
        self._box_source.data = {"edge": list(box)}

    def _show_labels(self, sites: Columns, badges: list[list[Badge]]) -> list[PixelBox]:
        """Names of the largest sites, and the badges of every site below (none: without); where all these stand."""
        largest = named_sites(sites["size"])
        sites = {name: [values[i] for i in largest] for name, values in sites.items()}
        badges = [badges[i] if badges else [] for i in largest]
        width, height = self._frame_px(DEFAULT_WIDTH_PX)
        west, east, south, north = fitted(self._box, width, height)
        x_px = (np.asarray(sites["x"]) - west) / (east - west) * width
        y_px = (north - np.asarray(sites["y"])) / (north - south) * height
        sizes = [
            block_size(label, [text for text, _ in row]) for label, row in zip(sites["label"], badges, strict=True)
        ]
        blocks = placed_blocks(x_px.tolist(), y_px.tolist(), [s / 2 for s in sites["size"]], sizes, (width, height))
        put(self.name_source, name_columns(sites, blocks))
        put(self.badge_source, badge_columns(sites, blocks, badges))
        radii = [size / 2 for size in sites["size"]]
        markers = [(x - r, y - r, x + r, y + r) for x, y, r in zip(x_px, y_px, radii, strict=True)]
        corners = [(x + b.left, y + b.top, b) for x, y, b in zip(x_px, y_px, blocks, strict=True)]
        return [*markers, *((left, top, left + b.width, top + b.height) for left, top, b in corners)]


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    gap = np.array([np.nan])
    xs, ys = (np.concatenate([v for part in parts for v in (part[axis], gap)]) for axis in (0, 1))
    return xs, ys


def shared_colour(look: Look) -> str:
    """Gradient exchange has the hue of the cost term `data parallel`."""
    return "#44BB99" if look.is_dark else TERM_COLOURS["data_parallel"]


def badge_texts(stages: dict[int, list[str]]) -> list[Badge]:
    """(stage number or run of stages, devices) at a site; the last badge is '+n' where there are too many."""
    rows = [
        (str(a) if a == b else f"{a}–{b}", listed([d for s in range(a, b + 1) for d in stages[s]]))
        for a, b in runs_of(list(stages))
    ]
    if len(rows) <= MAX_BADGES:
        return rows
    left = rows[MAX_BADGES - 1 :]
    return [*rows[: MAX_BADGES - 1], (f"+{len(left)}", "stages " + listed([text for text, _ in left]))]


def _anchor(block: Block) -> tuple[str, float]:
    """Alignment towards the marker, and the x at which the block's text stands."""
    if block.left >= 0:
        return "left", block.left
    if block.left + block.width <= 0:
        return "right", block.left + block.width
    return "center", block.left + block.width / 2


def name_columns(sites: Columns, blocks: list[Block]) -> Columns:
    """Site names at their blocks."""
    anchors = [_anchor(block) for block in blocks]
    return {
        "x": sites["x"],
        "y": sites["y"],
        "text": sites["label"],
        "dx": [x for _, x in anchors],
        "dy": [block.top for block in blocks],
        "align": [align for align, _ in anchors],
    }


def badge_columns(sites: Columns, blocks: list[Block], badges: list[list[Badge]]) -> Columns:
    """Stage numbers in a row below the names."""
    columns: Columns = {name: [] for name in (*TEXT_NAMES, "site", "devices")}
    for i, (block, row) in enumerate(zip(blocks, badges, strict=True)):
        align, x = _anchor(block)
        widths = [badge_px(text) for text, _ in row]
        left = x - sum(widths) * {"left": 0.0, "center": 0.5, "right": 1.0}[align]
        for (text, devices), width in zip(row, widths, strict=True):
            values = (sites["x"][i], sites["y"][i], text, left + width / 2, block.top + LINE_PX, "center")
            left += width
            for name, value in zip(columns, (*values, sites["name"][i], devices), strict=True):
                columns[name].append(value)
    return columns
