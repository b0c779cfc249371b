"""Views of which one is in sight; the others keep their size, so that a switch costs a frame, not a layout."""

from collections.abc import Iterable
from typing import Any, ClassVar

import panel as pn
from panel.custom import Children, JSComponent

_SHOWN = {"position": "relative", "top": "0", "left": "0", "right": "0", "visibility": "visible"}
_AWAY = _SHOWN | {"position": "absolute", "top": "-100000px", "visibility": "hidden"}
"""Not `visible=False`: Bokeh then lays out and paints every figure again when it returns, half a second a page."""


class Island(JSComponent):
    """`parts` below each other, fixed from the start: what comes later goes into a column among them.

    A change of size, style or visibility anywhere makes Bokeh lay out everything from the root. It stops at a custom
    component whose parent is one too.
    """

    parts = Children()

    _esm = """
    export function render({ model }) {
      const box = document.createElement("div")
      box.append(...model.get_child("parts"))
      return box
    }
    """
    _stylesheets: ClassVar[list[str]] = []

    def __init__(self, *parts: Any, **params: Any) -> None:
        super().__init__(parts=list(parts), sizing_mode="stretch_width", margin=0, **params)


class Deck:
    """Named places, filled when their time comes. `view` goes to the page; a place has the CSS class `page-NAME`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns = {name: pn.Column(sizing_mode="stretch_width", margin=0) for name in names}
        self._cards = {
            name: Island(column, styles=_AWAY, css_classes=[f"page-{name}"]) for name, column in self._columns.items()
        }
        self.view = Island(*self._cards.values(), styles={"position": "relative"})

    @property
    def empty(self) -> list[str]:
        """Names of the places that nothing was put into."""
        return [name for name, column in self._columns.items() if not column.objects]

    def put(self, name: str, view: Any) -> None:
        """Fills a place."""
        self._columns[name].append(view)

    def show(self, name: str) -> None:
        """Brings a place in sight, and the others out of it."""
        for other, card in self._cards.items():
            card.styles = _SHOWN if other == name else _AWAY
