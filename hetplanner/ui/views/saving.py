"""Saving what a page shows: figures as PNG or SVG, texts as files, all made by the browser without a request."""

from typing import Any

import panel as pn
import panel_material_ui as pmui
from bokeh.models import ColumnDataSource, CustomJS

from hetplanner.ui.views.cards import Coloured

# Views are not in Bokeh's index where React components hold them, so their tree is walked.
_SAVE_FIGURE = """
const seen = new Set()
const find = (view) => {
  if (view == null || typeof view != 'object' || seen.has(view)) return null
  seen.add(view)
  if (view.model === FIGURE) return view
  const children = [...(view.child_views ?? []), ...(view._child_views?.values?.() ?? [])]
  for (const child of children) {
    const found = find(child)
    if (found != null) return found
  }
  return null
}
let view = null
for (const root of Bokeh.index.roots ?? Object.values(Bokeh.index)) view = view ?? find(root)
if (view == null) throw new Error('the figure is not on the page')
view.export('KIND').to_blob().then((blob) => {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = 'NAME.KIND'
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
})
"""
_SAVE_TEXT = """
const [name, kind, text] = ['name', 'kind', 'text'].map((key) => source.data[key][0])
if (text) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text], {type: kind}))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}
"""
_SMALL: dict[str, Any] = {"variant": "text", "size": "small", "margin": (2, 2)}


def figure_buttons(live: Coloured, name: str) -> pn.Row:
    """Buttons that save a figure as it is seen: pixels (PNG) or shapes (SVG). `name` is ours, without a suffix."""
    buttons = []
    for kind in ("png", "svg"):
        button = pmui.Button(label=kind.upper(), description=f"Save this figure as {kind.upper()}", **_SMALL)
        code = _SAVE_FIGURE.replace("FIGURE", "figure").replace("KIND", kind).replace("NAME", name)
        button.js_on_click(args={"figure": live.figure}, code=code)
        buttons.append(button)
    return pn.Row(*buttons, margin=0)


class TextSaver:
    """Hands the browser a text to save as a file; `view` must be on the page and shows nothing."""

    def __init__(self) -> None:
        self._source = ColumnDataSource({"name": [""], "kind": [""], "text": [""]})
        self._source.js_on_change("data", CustomJS(args={"source": self._source}, code=_SAVE_TEXT))
        self.view = pn.pane.Bokeh(_holder(self._source), width=0, height=0, margin=0)

    def save(self, name: str, text: str, kind: str = "application/json") -> None:
        """Sends the text; the browser saves it."""
        self._source.data = {"name": [name], "kind": [kind], "text": [text]}


def _holder(source: ColumnDataSource) -> Any:
    """A model without looks that brings the source into the document."""
    from bokeh.models import Div

    return Div(text="", width=0, height=0, tags=[source])
