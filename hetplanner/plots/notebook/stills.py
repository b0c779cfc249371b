"""The page's own figures in a notebook, as they are: HTML that needs the BokehJS it holds, and no kernel."""

from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.embed.elements import div_for_render_item, script_for_render_items
from bokeh.embed.util import standalone_docs_json_and_render_items
from bokeh.embed.wrappers import wrap_in_script_tag
from bokeh.models import LayoutDOM
from bokeh.plotting import figure

from hetplanner.plots.live.base import LiveFigure
from hetplanner.plots.notebook.backend import ready

FIGURE_PX = 420
"""Least width of a figure; where there is room they stand side by side."""

# In a notebook stored as a page, cells are drawn before the BokehJS of the first one is there.
_WHEN_LOADED = """(function draw() {
  if (window.Bokeh === undefined) { setTimeout(draw, 50); return }
%s
})()"""


def shown(live: LiveFigure) -> figure:
    """A live figure's Bokeh figure, which a cell that ends with it draws."""
    drawn: figure = shown_layout(live.figure, [live], f"{type(live).__name__}()")
    return drawn


def still(live: LiveFigure, *data: Any) -> figure:
    """A live figure's Bokeh figure as `shown` gives it, after an update with its data."""
    live.update(*data)
    return shown(live)


def shown_layout(drawn: LayoutDOM, lives: Sequence[LiveFigure], text: str) -> Any:
    """What holds live figures, so that a cell that ends with it draws it; `text` is what a console says instead."""
    ready()
    for live in lives:
        live.let_be()

    def bundle(**_: Any) -> dict[str, str]:
        return {"text/plain": text, "text/html": still_html([drawn])}

    drawn._repr_mimebundle_ = bundle
    return drawn


def still_html(figures: Sequence[LayoutDOM]) -> str:
    """Figures side by side."""
    for one in figures:
        if one.document is None:
            Document().add_root(one)
    # Our figures tell Python when their width changes; a still has no Python process to tell.
    docs_json, items = standalone_docs_json_and_render_items(figures, suppress_callback_warning=True)
    script = wrap_in_script_tag(_WHEN_LOADED % script_for_render_items(docs_json, items))
    boxes = "".join(
        f'<div style="flex:1 1 {FIGURE_PX}px;min-width:0">{div_for_render_item(item)}</div>' for item in items
    )
    return f'<div style="display:flex;flex-wrap:wrap">{boxes}</div>{script}'
