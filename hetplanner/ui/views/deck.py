"""Views of which one is in sight; the others keep their size, so that a switch costs a frame, not a layout."""

from collections.abc import Iterable
from typing import Any

from hetplanner.ui.views.island import Island

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


class Deck:
    """Named places, filled when their time comes. `view` goes to the page; a place has the CSS class `KIND-NAME`."""

    def __init__(self, kind: str, names: Iterable[str]) -> None:
        self._cards = {name: Island(styles=_AWAY, css_classes=[f"{kind}-{name}"]) for name in names}
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
            card.styles = _SHOWN if other == name else _AWAY
