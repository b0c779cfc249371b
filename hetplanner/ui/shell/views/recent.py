"""What a returning person goes on with, on the page that opens first: a card that folds, and stays so."""

from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.cards import frame, full_width, show_if

_HERE = Path(__file__).parent


class RecentLists(JSComponent):
    """Lists beside each other, of a height that does not change when entries come; a click calls `act(kind, key)`.

    Attributes:
        columns: kind, title, empty (said without rows) and rows (key, name, words, title) of each list.
        room: rows that every list has room for; it scrolls beyond.
    """

    columns = param.List(default=[])
    room = param.Integer(default=0)

    _esm = (_HERE / "recent.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar[list[str]] = [(_HERE / "recent.css").read_text(encoding="utf-8")]

    def __init__(self, act: Any, **params: Any) -> None:
        super().__init__(**{"sizing_mode": "stretch_width", "margin": 0} | params)
        self._act = act

    def _handle_msg(self, msg: Any) -> None:
        """What the page sent is data: only what is listed is opened."""
        if not isinstance(msg, dict):
            return
        kind, key = msg.get("kind"), msg.get("key")
        if key and any(c["kind"] == kind and any(row["key"] == key for row in c["rows"]) for c in self.columns):
            with pn.io.hold():  # see `binding.on_click`
                self._act(kind, key)


def recent_card(app: PlannerApp) -> pn.Column:
    """The newest clusters, searches, kept plans and runs; out of sight where there is none."""
    model = app.recent
    lists = RecentLists(app.open_recent, columns=model.columns(), room=model.room)
    card = full_width(frame(lists))
    show_if(card, model.room > 0)

    def show(*_: Any) -> None:
        lists.param.update(columns=model.columns(), room=model.room)
        show_if(card, model.room > 0)

    model.param.watch(show, ["entries", "room"])
    return card
