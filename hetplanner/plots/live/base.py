"""What all live figures share: parts made once, data replaced, light and dark."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.core.property.descriptors import UnsetValueError
from bokeh.core.property.vectorization import Field
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    FixedTicker,
    GlyphRenderer,
    HoverTool,
    Label,
    Legend,
    LegendItem,
    Node,
)
from bokeh.models.axes import Axis
from bokeh.plotting import figure

from hetplanner.plots.data.search.fronts import log_ticks
from hetplanner.plots.theme import DARK_INK, LIGHT_INK, Look, look_of

Columns = Mapping[str, Sequence[Any] | np.ndarray]
FONT = "Roboto, Helvetica, Arial, sans-serif"
TEXT_FONT = value(FONT)
"""For text glyphs, which take a bare string for the name of a column."""

INK_COLUMNS = {DARK_INK: "text_dark", LIGHT_INK: "text_light"}
"""Columns of a text by the colour that is read on what lies below it."""

SMALLEST_RESIZE_PX = 8.0
SMALLEST_FRAME_PX = 40.0
LEGEND_WIDTH_PX = 460.0
"""Room for a legend before the page has told the figure's width."""
LEGEND_CHAR_PX, LEGEND_SWATCH_PX = 6.4, 34.0
SMALL_ARRAY = 256
"""Values that are sent sooner as text than as bytes."""
LOG_ROOM = 1.08
"""Free factor below and above the outermost values."""
LOG_LOG: dict[str, Any] = {"x_axis_type": "log", "y_axis_type": "log", "x_range": (1, 10), "y_range": (1, 10)}
"""Options of a figure both of whose axes are logarithmic."""
AXIS = {
    "axis_line_color": None,
    "major_tick_line_color": None,
    "minor_tick_line_color": None,
    "major_label_text_font": FONT,
    "major_label_text_font_size": "12px",
    "axis_label_text_font": FONT,
    "axis_label_text_font_size": "12px",
    "axis_label_text_font_style": "normal",
    "axis_label_standoff": 10,
}
"""What every axis is drawn with, light or dark; the grid says where its numbers are."""


class LiveFigure:
    """A Bokeh figure whose glyphs are made once; `update` of the subclasses replaces data only.

    Args:
        dark: colours for a dark page; `set_dark` changes them later.
        height: pixels; the width follows the page.
        options: passed to `bokeh.plotting.figure`.

    Attributes:
        holding: in which a change is made that a page's own message brings about; a server's page sets it.
    """

    update: Callable[..., Any]

    def __init__(self, *, dark: bool = False, height: int = 320, **options: Any) -> None:
        self.holding: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        self.look: Look = look_of(dark)
        self.figure = figure(
            **{
                "height": height,
                "x_range": (0, 1),
                "y_range": (0, 1),
                "sizing_mode": "stretch_width",
                "output_backend": "canvas",
                "toolbar_location": None,
                "tools": "",
                "outline_line_color": None,
                "background_fill_color": None,
                "border_fill_color": None,
                "min_border_right": 12,
            }
            | options
        )
        # The page gives every toolbar a style, again at each change of theme: nothing that we need to be told.
        self.figure.toolbar.syncable = False
        self._legend: Legend | None = None
        self._hidden: list[Any] = []
        self._again: Callable[[], None] | None = None
        """Repeats the last update where its words depend on the width."""
        self._width_px = 0.0
        self.figure.on_change("inner_width", self._resized)
        self._note = Label(
            x=Node(target="frame", symbol="center"),
            y=Node(target="frame", symbol="center"),
            text="",
            text_align="center",
            text_baseline="middle",
            text_font=FONT,
            text_font_size="13px",
        )
        self.figure.add_layout(self._note)

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        self.look = look_of(dark)
        self._recolour()

    def let_be(self) -> None:
        """For a figure that no server holds: its own paper, and sizes that the browser tells redraw nothing."""
        self.figure.remove_on_change("inner_width", self._resized)
        self.figure.update(background_fill_color=self.look.paper, border_fill_color=self.look.paper)

    # -- for the subclasses -----------------------------------------------------------------------

    def _recolour(self) -> None:
        look = self.look
        for axis in self.figure.axis:
            axis.update(major_label_text_color=look.muted, axis_label_text_color=look.text, **AXIS)
        for grid in (*self.figure.xgrid, *self.figure.ygrid):
            grid.grid_line_color = look.grid
        if self._legend is not None:
            self._legend.label_text_color = look.text
        self._note.text_color = look.muted

    def _say(self, text: str) -> None:
        """Words in the middle of an empty figure, which then shows no axes; '' takes them away."""
        self._fit_legend()
        if self._note.text == text:
            return
        if not self._note.text:
            bars = [part for part in self.figure.right if isinstance(part, ColorBar)]
            parts = [*self.figure.axis, *self.figure.grid, *bars, *([self._legend] if self._legend else [])]
            self._hidden = [part for part in parts if part.visible]
        for part in self._hidden:
            part.visible = not text
        self._note.text = text

    def _boxes(self, *args: Any, **options: Any) -> GlyphRenderer:
        """Rectangles. The page sets `dilate` on each in the dark, and tells us so one by one, where it is not set."""
        return self.figure.rect(*args, dilate=True, **options)

    def _swatch(self, colour: str, **options: Any) -> GlyphRenderer:
        """A box for a legend: a legend draws nothing for a glyph without data."""
        nowhere = ColumnDataSource({"x": [np.nan], "y": [np.nan]})
        return self._boxes("x", "y", width=1, height=1, source=nowhere, color=colour, **options)

    def _mark(self, marker: str, colour: str, **options: Any) -> GlyphRenderer:
        """A marker for a legend."""
        nowhere = ColumnDataSource({"x": [np.nan], "y": [np.nan]})
        return self.figure.scatter("x", "y", marker=marker, source=nowhere, color=colour, line_width=2, **options)

    def _add_tips(self, renderers: list[GlyphRenderer], tooltips: Sequence[tuple[str, str]], **options: Any) -> None:
        """Words beside the pointer over these glyphs, without a button in the toolbar."""
        self.figure.add_tools(HoverTool(renderers=renderers, tooltips=tooltips, visible=False, **options))

    def _ink_texts(self, x: str, y: str, source: ColumnDataSource, **options: Any) -> None:
        """Texts on coloured boxes; the source's columns come from `by_ink`.

        One glyph for each ink: while rows go, Bokeh's text glyph reads a column of colours behind its end.
        """
        for ink, column in INK_COLUMNS.items():
            self.figure.text(
                x, y, text=column, source=source, text_color=ink, text_align="center", text_baseline="middle",
                text_font=TEXT_FONT, text_font_size="11px", **options,
            )  # fmt: skip

    def _stroke(self, **options: Any) -> GlyphRenderer:
        """A line for a legend."""
        nowhere = ColumnDataSource({"x": [np.nan, np.nan], "y": [np.nan, np.nan]})
        return self.figure.line("x", "y", source=nowhere, **options)

    def _resized(self, _attr: str, _old: object, width: float) -> None:
        if width >= SMALLEST_FRAME_PX and abs(width - self._width_px) >= SMALLEST_RESIZE_PX:
            self._width_px = width
            with self.holding():
                self._fit_legend()
                if self._again is not None:
                    self._again()

    def _fit_legend(self) -> None:
        """As many columns as fit: Bokeh lets a legend run out of the figure."""
        if self._legend is None:
            return
        labels = [label for item in self._legend.items if item.visible for label in _labels_of(item)]
        widest = max(map(len, labels), default=1) * LEGEND_CHAR_PX + LEGEND_SWATCH_PX
        # The page tells the width before the height.
        columns = int((self._width_px or LEGEND_WIDTH_PX) / widest)
        # Rows of equal length look better than a full one and a rest.
        rows = -(-len(labels) // max(columns, 1)) or 1
        columns = -(-len(labels) // rows) or 1
        if self._legend.ncols != columns:
            self._legend.ncols = columns

    def _add_legend(self, items: Sequence[tuple[str | dict[str, str], list[GlyphRenderer]]], **options: Any) -> Legend:
        """A legend below the plot, where it covers no data; a label is a word, or {"field": column} for each of it."""
        self._legend = Legend(
            items=[LegendItem(label=label, renderers=renderers) for label, renderers in items],
            orientation="horizontal",
            location="center",
            border_line_color=None,
            background_fill_color=None,
            label_text_font=FONT,
            label_text_font_size="12px",
            glyph_height=12,
            glyph_width=16,
            spacing=10,
            padding=2,
            margin=2,
            **options,
        )
        self.figure.add_layout(self._legend, "below")
        return self._legend

    def _frame_px(self, width: float) -> tuple[float, float]:
        """Size of the frame as the page last told it; before that the expected `width`, and the height."""
        try:
            told = float(self.figure.inner_width), float(self.figure.inner_height)
        except UnsetValueError:
            told = 0.0, 0.0
        # A figure on a page that is not in view has no size.
        return told if min(told) >= SMALLEST_FRAME_PX else (width, float(self.figure.height))

    def _label_axis(self, axis: Axis, positions: Sequence[float], labels: Sequence[str]) -> None:
        """Words instead of numbers at these positions of an axis; call it in the constructor, if only without words.

        Bokeh's server walks the whole page when a model comes or goes, 0.2 s with all pages: a ticker is made once.
        """
        ticks = [float(p) for p in positions]
        words: dict[Any, Any] = dict(zip(ticks, labels, strict=True))
        if not isinstance(axis.ticker, FixedTicker):
            axis.ticker = FixedTicker(ticks=ticks)
            axis.major_label_overrides = words
        elif axis.ticker.ticks != ticks or axis.major_label_overrides != words:
            axis.major_label_overrides = words
            axis.ticker.ticks = ticks


def _labels_of(item: LegendItem) -> list[str]:
    """The words of a legend item: one, or those of a column."""
    if isinstance(item.label, Field):
        words = item.renderers[0].data_source.data.get(item.label.field, [])
        return list(dict.fromkeys(map(str, words)))
    return [str(item.label.value)]


def empty_source(*names: str) -> ColumnDataSource:
    """A source with empty columns."""
    return ColumnDataSource({name: [] for name in names})


def by_ink(columns: Columns) -> dict[str, Any]:
    """Columns with `text` split by `ink`, for `_ink_texts`."""
    pairs = list(zip(columns["text"], columns["ink"], strict=True))
    return dict(columns) | {
        name: [text if colour == ink else "" for text, colour in pairs] for ink, name in INK_COLUMNS.items()
    }


def put(source: ColumnDataSource, columns: Columns) -> None:
    """New data for a source; equal data is not sent again."""
    old, new = source.data, {name: _without_small_arrays(column) for name, column in columns.items()}
    if old.keys() == new.keys() and all(_equal(old[name], new[name]) for name in new):
        return
    source.data = new


def _without_small_arrays(column: Any) -> Any:
    """A column with lists for short arrays: Bokeh sends each array as two messages of its own."""
    if isinstance(column, np.ndarray):
        is_small = column.ndim == 1 and column.dtype.kind in "biuf" and len(column) <= SMALL_ARRAY
        return column.tolist() if is_small else column
    if len(column) and isinstance(column[0], np.ndarray):
        return [_without_small_arrays(part) for part in column]
    return column


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(two, np.ndarray) and np.array_equal(one, two)
    if len(one) != len(two):
        return False
    if any(isinstance(part, np.ndarray) for part in (*one, *two)):  # lines and images: a list of arrays
        return all(_equal(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)


def set_range(target: Any, start: float, end: float) -> None:
    """Both ends of a Range1d, if they change; also where the reset tool returns to."""
    if (target.start, target.end) != (start, end):
        target.update(start=start, end=end, reset_start=start, reset_end=end)


def fit_log_values(drawn: figure, values: Sequence[float], unit: str) -> None:
    """Range, ticks and words of a logarithmic y axis for values of the objective; its ticker is a FixedTicker."""
    low, high = (min(values) / LOG_ROOM, max(values) * LOG_ROOM) if values else (1.0, 10.0)
    set_range(drawn.y_range, low, high)
    drawn.yaxis[0].ticker.ticks = log_ticks(low, high)
    drawn.yaxis[0].axis_label = "step time (s)" if unit == "s" else unit
