"""Views of which one is in sight; the others keep their size, so that a switch costs a frame, not a layout."""

from collections.abc import Iterable
from typing import Any

import param

from hetplanner.ui.widgets.island import Island

_SHOWN = {
    "position": "relative",
    "top": "0",
    "left": "0",
    "right": "0",
    "content-visibility": "visible",
}
_AWAY = _SHOWN | {"position": "absolute", "top": "-100000px", "content-visibility": "hidden"}
"""Not `visible=False`: Bokeh then lays out and paints every figure again when it returns, half a second a page. Nor
`visibility`: all elements inherit it, so that the styles of all would be computed again."""


class Place(Island):
    """What is in sight, or out of it.

    Bokeh measures a legend behind a layout, for the next one, and one that is out of sight has no size: when its page
    returns it stands below its figure, over what follows. Such figures are laid out once more.
    """

    shown = param.Boolean(default=False, doc="Whether it is in sight.")

    _esm = """
    const SETTLED_MS = [80, 500]
    function layLegendsOut() {
      for (const {type, id} of Bokeh.documents.flatMap((one) => [...one._all_models.values()])) {
        if (type !== "Legend") continue
        const legend = Bokeh.index.find_one_by_id(id)
        if (!legend?.el.checkVisibility({contentVisibilityAuto: true})) continue
        const bottom = (view) => view.el.getBoundingClientRect().bottom
        if (bottom(legend) > bottom(legend.plot_view) + 1) legend.request_layout()
      }
    }
    export function render({ model }) {
      const box = document.createElement("div")
      box.append(...model.get_child("parts"))
      model.on("shown", () => {
        if (model.shown) for (const after of SETTLED_MS) setTimeout(layLegendsOut, after)
      })
      return box
    }
    """


class Deck:
    """Named places, filled when their time comes. `view` goes to the page; a place has the CSS class `KIND-NAME`."""

    def __init__(self, kind: str, names: Iterable[str]) -> None:
        self._cards = {name: Place(styles=_AWAY, css_classes=[f"{kind}-{name}"]) for name in names}
        self.view = Island(*self._cards.values(), styles={"position": "relative"})

    @property
    def empty(self) -> list[str]:
        """Names of the places that nothing was put into."""
        return [name for name, card in self._cards.items() if not card.parts]

    def put(self, name: str, view: Any) -> None:
        """Fills a place."""
        self._cards[name].parts = [view]

    def show(self, name: str) -> None:
        """Brings a place in sight, and the others out of it."""
        for other, card in self._cards.items():
            card.param.update(styles=_SHOWN if other == name else _AWAY, shown=other == name)
