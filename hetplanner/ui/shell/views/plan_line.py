"""The line above the pages: which plan is in hand, what it was made for, and whether the settings still ask for it."""

from typing import Any

import panel as pn

from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import COLOURS, FRAME, Words, frame, show_if, toolbar

PAGES = ("plan", "simulate", "export")
"""Pages that show the current plan."""
_BUTTON: dict[str, Any] = {"variant": "outlined", "margin": (3, 5)}


class PlanLine:
    """Keeps its place above the pages of `PAGES`, so that nothing moves when it has something to say."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self._words = Words(margin=(6, 8))
        self._again = Button(label="Search again", icon="play_arrow", **_BUTTON)
        self._back = Button(label="Back to its settings", icon="undo", **_BUTTON)
        self._buttons = pn.Row(self._again, self._back, margin=0, height=40)
        # Two lines have room, so that nothing below moves when the second one comes.
        self._words.view.styles = {"flex": "1 1 380px", "min-width": "0", "min-height": "40px"}
        self.view = frame(toolbar(self._words.view, self._buttons), margin=(4, 10, 2, 10))
        on_click(self._again, lambda _: app.search())
        on_click(self._back, lambda _: app.carry.back())
        app.carry.param.watch(self.show, "changed")
        app.session.param.watch(self.show, ["page", "plan", "elastic"])
        app.plan.param.watch(self.show, ["plan", "state"])
        self.show()

    def show(self, *_: Any) -> None:
        """The line as it stands."""
        carry = self.app.carry
        words = carry.words
        self._words.set("\n".join(text for text in (carry.subject, words) if text), bold="Plan:")
        marked = bool(words)
        border = {"border": f"2px solid {COLOURS['warn']}"} if marked else {"border-width": "2px"}
        self.view.styles = {**self.view.styles, **FRAME, **border}
        show_if(self.view, self.app.session.page in PAGES)
        for button in (self._again, self._back):
            button.disabled = not marked or self.app.plan.searching
