"""The launch token, typed once: it unlocks all of a session that starts processes."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import Words, show_if


class Unlock:
    """A field for the token and a button, or that launching is unlocked."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.token = pmui.PasswordInput(label="Launch token", width=165, size="small", margin=(8, 6))
        self.button = Button(label="Unlock", icon="lock_open", variant="outlined", margin=(12, 4))
        self.words = Words(margin=(14, 12))
        self.words.view.sizing_mode = None
        self.view = pn.Row(self.token, self.button, self.words.view, margin=0)
        on_click(self.button, lambda _: self.take())
        self.token.param.watch(lambda _: self.take(), "enter_pressed")
        session.param.watch(self._show, "unlocked")
        self._show()

    def take(self) -> None:
        """Tries what is typed."""
        text, self.token.value = self.token.value_input or self.token.value or "", ""
        if text:
            self.session.unlock(text)

    def _show(self, *_: Any) -> None:
        unlocked = self.session.unlocked
        for part in (self.token, self.button):
            show_if(part, not unlocked)
        self.words.set("Launching is unlocked." if unlocked else "")
