"""Bandwidth, latency or provenance between all ordered pairs of devices, as one image ordered by site."""

import numpy as np
from bokeh.models import ColorBar, CustomJSHover, CustomJSTickFormatter, LinearColorMapper, LogColorMapper, LogTicker
from bokeh.palettes import cividis

from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster
from hetplanner.plots.data.maps.links import KNOWN, What, block_of, colour_limits, link_matrix
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.live.base import FONT, LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import SOURCE_COLOURS

_ID_OF_COLUMN = "return ids.data.id[Math.floor(special_vars.x)] ?? ''"
_ID_OF_ROW = "return ids.data.id[ids.data.id.length - 1 - Math.floor(special_vars.y)] ?? ''"
_SOURCE = "return known.data.text[value] ?? ''"
# Texts are made by the page: 512 devices would need 262,144 of them.
_MBIT = "const v = Number(X.toPrecision(3)); return v >= 1000 ? `${v / 1000} Gbit/s` : `${v} Mbit/s`"
_MS = "const v = Number(X.toPrecision(3)); return v >= 1000 ? `${v / 1000} s` : v < 1 ? `${v * 1000} µs` : `${v} ms`"
_KNOWN_TEXT = f"return {list(KNOWN)}[X] ?? ''"
_TEXTS: dict[What, str] = {"bandwidth": _MBIT, "latency": _MS, "known": _KNOWN_TEXT}
_PALETTE = list(cividis(256))
_MARK = "#EE6677"
_NOTHING = "rgba(0, 0, 0, 0)"


class LinkHeatmap(LiveFigure):
    """Rows send, columns receive; bright is good (much bandwidth, little latency); the scale is logarithmic.

    `show` changes the quantity, `mark` frames the pairs of a link, `pair_at` names those of a click.
    """

    def __init__(self, what: What = "bandwidth", *, dark: bool = False, height: int = 360) -> None:
        super().__init__(dark=dark, height=height)
        self.what: What = what
        self._cluster: Cluster | None = None
        self._ids: tuple[str, ...] = ()
        self._ends: LinkEnds | None = None
        self.mapper = LogColorMapper(palette=_PALETTE, low=1, high=10, nan_color=_NOTHING)
        known = LinearColorMapper(
            palette=list(SOURCE_COLOURS.values()), low=-0.5, high=len(KNOWN) - 0.5, nan_color=_NOTHING
        )
        self.image_source = empty_source("image", "known", "dw", "dh")
        self.known_source = empty_source("text")
        self.id_source = empty_source("id")
        self.edge_source = empty_source("x", "y")
        self.mark_source = empty_source("left", "right", "bottom", "top")
        # Two glyphs, one of them shown: a drawn image does not take another colour mapper.
        image = {"image": "image", "x": 0, "y": 0, "dw": "dw", "dh": "dh", "source": self.image_source}
        self._image = self.figure.image(**image, color_mapper=self.mapper)
        self._known_image = self.figure.image(**image, color_mapper=known)
        self._columns = self.figure.vspan(x="x", source=self.edge_source, line_width=1)
        self._rows = self.figure.hspan(y="y", source=self.edge_source, line_width=1)
        self.figure.quad(
            "left", "right", "bottom", "top", source=self.mark_source, fill_color=None, line_color=_MARK, line_width=3
        )
        self._add_bar()
        self._add_hover()
        self._add_legend([(name, [self._swatch(colour)]) for name, colour in SOURCE_COLOURS.items()])
        self.figure.grid.visible = False
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = "to", "from"
        self.figure.xaxis.major_label_orientation = 0.6
        for axis in self.figure.axis:
            self._label_axis(axis, [], [])
        self._recolour()
        self._use(what)
        self.update(None)

    def show(self, what: What) -> None:
        """Another quantity of the same cluster."""
        if what != self.what:
            self._use(what)
            self.update(self._cluster)

    def _use(self, what: What) -> None:
        self.what = what
        known = what == "known"
        self.mapper.palette = _PALETTE if what == "bandwidth" else _PALETTE[::-1]
        self._image.visible, self._known_image.visible = not known, known
        self._bar_text.code = self._text_of("tick")
        self._value_text.code = self._text_of("value")

    def _show_scale(self) -> None:
        """A bar beside numbers, a legend below words; neither for an empty figure."""
        empty, known = bool(self._note.text), self.what == "known"
        self._bar.visible = not (known or empty)
        if self._legend is not None:
            self._legend.visible = known and not empty

    def _add_bar(self) -> None:
        self._bar_text = CustomJSTickFormatter(code=self._text_of("tick"))
        self._bar = ColorBar(
            color_mapper=self.mapper,
            ticker=LogTicker(desired_num_ticks=5),
            formatter=self._bar_text,
            width=10,
            label_standoff=6,
            background_fill_color=None,
            bar_line_color=None,
            major_tick_line_color=None,
            major_label_text_font=FONT,
            major_label_text_font_size="11px",
        )
        self.figure.add_layout(self._bar, "right")

    def _add_hover(self) -> None:
        self._value_text = CustomJSHover(code=self._text_of("value"))
        tables = {"known": self.known_source, "ids": self.id_source}
        self._add_tips(
            [self._image, self._known_image],
            [("from", "$y{0}"), ("to", "$x{0}"), ("link", "@image{0}"), ("known", "@known{0}")],
            formatters={
                "$x": CustomJSHover(args=tables, code=_ID_OF_COLUMN),
                "$y": CustomJSHover(args=tables, code=_ID_OF_ROW),
                "@image": self._value_text,
                "@known": CustomJSHover(args=tables, code=_SOURCE),
            },
        )

    def _text_of(self, variable: str) -> str:
        return _TEXTS[self.what].replace("X", variable)

    def _recolour(self) -> None:
        super()._recolour()
        for lines in (self._columns, self._rows):
            lines.glyph.line_color = self.look.paper
        self._bar.major_label_text_color = self.look.muted

    def update(self, cluster: Cluster | None) -> None:
        """Shows the links of a cluster; None empties the figure."""
        self._cluster = cluster
        if cluster is None:
            self._ids = ()
            self.mark(None)
            for source in (self.image_source, self.known_source, self.id_source, self.edge_source):
                put(source, {name: [] for name in source.column_names})
            self._say("choose a cluster to see its links")
            self._show_scale()
            return
        matrix = link_matrix(cluster, self.what)
        self._ids = matrix.ids
        size = len(matrix.ids)
        low, high = colour_limits(matrix.value_DD)
        self.mapper.update(low=low, high=high)
        put(self.known_source, {"text": list(matrix.sources)})
        put(self.id_source, {"id": list(matrix.ids)})
        edges = matrix.site_edges
        put(self.edge_source, {"x": list(edges), "y": [size - e for e in edges]})
        # An image's first row is at the bottom; ours belongs on top.
        known = np.ascontiguousarray(matrix.source_DD[::-1])
        if len(matrix.sources) <= 256:  # a quarter of the bytes on their way to the browser
            known = known.astype(np.uint8)
        image = np.ascontiguousarray(matrix.value_DD[::-1].astype(np.float32))
        put(self.image_source, {"image": [image], "known": [known], "dw": [size], "dh": [size]})
        names = [shortened(name, 14) for name in matrix.site_names]
        self._label_axis(self.figure.xaxis[0], matrix.site_centres, names)
        self._label_axis(self.figure.yaxis[0], [size - c for c in matrix.site_centres], names)
        set_range(self.figure.x_range, 0, size)
        set_range(self.figure.y_range, 0, size)
        self._say("" if size > 1 else "one device has no links")
        self._show_scale()
        self.mark(self._ends)

    def mark(self, ends: LinkEnds | None) -> None:
        """Frames the pairs of devices that a link is for; None takes the frame away."""
        self._ends = ends
        block = block_of(self._cluster, ends) if self._cluster is not None and ends is not None else None
        columns: dict[str, list[float]] = {"left": [], "right": [], "bottom": [], "top": []}
        if block is not None:
            (first_row, end_row), (first_column, end_column) = block
            size = len(self._ids)
            columns = {
                "left": [first_column],
                "right": [end_column],
                "bottom": [size - end_row],
                "top": [size - first_row],
            }
        put(self.mark_source, columns)

    def pair_at(self, x: float, y: float) -> tuple[str, str] | None:
        """The devices (from, to) of a point of the figure; None beside the matrix."""
        size = len(self._ids)
        if not (0 <= x < size and 0 < y <= size):
            return None
        return self._ids[min(int(size - y), size - 1)], self._ids[int(x)]
