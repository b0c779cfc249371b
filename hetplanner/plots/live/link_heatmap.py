"""Bandwidth or latency between all ordered pairs of devices, as one image ordered by site."""

import numpy as np
from bokeh.models import (
    ColorBar,
    CustomJSHover,
    CustomJSTickFormatter,
    HoverTool,
    LogColorMapper,
    LogTicker,
    Range1d,
)
from bokeh.palettes import cividis

from hetplanner.cluster.model import Cluster
from hetplanner.plots.data.grid import shortened
from hetplanner.plots.data.links import What, colour_limits, link_matrix
from hetplanner.plots.live.base import FONT, LiveFigure, empty_source, put, set_range

_ID_OF_COLUMN = "return ids.data.id[Math.floor(special_vars.x)] ?? ''"
_ID_OF_ROW = "return ids.data.id[ids.data.id.length - 1 - Math.floor(special_vars.y)] ?? ''"
_SOURCE = "return known.data.text[value] ?? ''"
# Texts are made by the page: 512 devices would need 262,144 of them.
_MBIT = "const v = Number(X.toPrecision(3)); return v >= 1000 ? `${v / 1000} Gbit/s` : `${v} Mbit/s`"
_MS = "const v = Number(X.toPrecision(3)); return v >= 1000 ? `${v / 1000} s` : v < 1 ? `${v * 1000} µs` : `${v} ms`"


class LinkHeatmap(LiveFigure):
    """Rows send, columns receive; bright is good (much bandwidth, little latency); the scale is logarithmic."""

    def __init__(self, what: What = "bandwidth", *, dark: bool = False, height: int = 360) -> None:
        super().__init__(dark=dark, height=height, x_range=Range1d(0, 1), y_range=Range1d(0, 1))
        self.what: What = what
        palette = list(cividis(256))
        self.mapper = LogColorMapper(
            palette=palette if what == "bandwidth" else palette[::-1], low=1, high=10, nan_color="rgba(0, 0, 0, 0)"
        )
        self.image_source = empty_source("image", "known", "dw", "dh")
        self.known_source = empty_source("text")
        self.id_source = empty_source("id")
        self.edge_source = empty_source("x", "y")
        self._image = self.figure.image(
            "image", x=0, y=0, dw="dw", dh="dh", source=self.image_source, color_mapper=self.mapper
        )
        self._columns = self.figure.vspan(x="x", source=self.edge_source, line_width=1)
        self._rows = self.figure.hspan(y="y", source=self.edge_source, line_width=1)
        self._add_bar()
        self._add_hover()
        self.figure.grid.visible = False
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = "to", "from"
        self.figure.axis.axis_line_color = None
        self.figure.xaxis.major_label_orientation = 0.6
        self._recolour()
        self.update(None)

    def _add_bar(self) -> None:
        self._bar = ColorBar(
            color_mapper=self.mapper,
            ticker=LogTicker(desired_num_ticks=5),
            formatter=CustomJSTickFormatter(code=self._text_of("tick")),
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
        tables = {"known": self.known_source, "ids": self.id_source}
        self.figure.add_tools(
            HoverTool(
                renderers=[self._image],
                tooltips=[("from", "$y{0}"), ("to", "$x{0}"), (self.what, "@image{0}"), ("known", "@known{0}")],
                formatters={
                    "$x": CustomJSHover(args=tables, code=_ID_OF_COLUMN),
                    "$y": CustomJSHover(args=tables, code=_ID_OF_ROW),
                    "@image": CustomJSHover(code=self._text_of("value")),
                    "@known": CustomJSHover(args=tables, code=_SOURCE),
                },
                visible=False,
            )
        )

    def _text_of(self, variable: str) -> str:
        return (_MBIT if self.what == "bandwidth" else _MS).replace("X", variable)

    def _recolour(self) -> None:
        super()._recolour()
        self.figure.axis.axis_line_color = None
        self.figure.axis.major_tick_line_color = None
        for lines in (self._columns, self._rows):
            lines.glyph.line_color = self.look.paper
        self._bar.major_label_text_color = self.look.muted

    def update(self, cluster: Cluster | None) -> None:
        """Shows the links of a cluster; None empties the figure."""
        if cluster is None:
            for source in (self.image_source, self.known_source, self.id_source, self.edge_source):
                put(source, {name: [] for name in source.column_names})
            self._say("choose a cluster to see its links")
            return
        matrix = link_matrix(cluster, self.what)
        size = len(matrix.ids)
        low, high = colour_limits(matrix.value_DD)
        self.mapper.update(low=low, high=high)
        put(self.known_source, {"text": list(matrix.sources)})
        put(self.id_source, {"id": list(matrix.ids)})
        edges = matrix.site_edges
        put(self.edge_source, {"x": list(edges), "y": [size - e for e in edges]})
        # An image's first row is at the bottom; ours belongs on top.
        known = np.ascontiguousarray(matrix.source_DD[::-1])
        image = np.ascontiguousarray(matrix.value_DD[::-1].astype(np.float32))
        put(self.image_source, {"image": [image], "known": [known], "dw": [size], "dh": [size]})
        names = [shortened(name, 14) for name in matrix.site_names]
        self._label_axis(self.figure.xaxis[0], matrix.site_centres, names)
        self._label_axis(self.figure.yaxis[0], [size - c for c in matrix.site_centres], names)
        set_range(self.figure.x_range, 0, size)
        set_range(self.figure.y_range, 0, size)
        self._say("" if size > 1 else "one device has no links")
