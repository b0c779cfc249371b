"""Buttons, as light components with Material's look.

A Material button is a React root of its own: thirty of them are half of what a change of theme costs. And a property
that the server sets twice before React has drawn the first is set back by the browser, so that a button which was
enabled and disabled at once stayed enabled.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import panel_material_ui as pmui
import param
from bokeh.model import Model
from panel.custom import JSComponent

_HERE = Path(__file__).parent


class Button(JSComponent):
    """A button; `on_click` says what it does. Icons are named as in Material's icon font."""

    label = param.String(default="")
    icon = param.String(default="", doc="Before the label.")
    end_icon = param.String(default="", doc="Behind the label.")
    variant: Any = param.Selector(default="contained", objects=["contained", "outlined", "text"])
    color: Any = param.Selector(default="primary", objects=["primary", "error"])
    disabled = param.Boolean(default=False)
    clicks = param.Integer(default=0, doc="Counts how often it was pressed.")

    _esm = (_HERE / "buttons.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar[list[str]] = [(_HERE / "buttons.css").read_text(encoding="utf-8")]

    def on_click(self, act: Callable[[param.parameterized.Event], object]) -> None:
        """Calls `act` at every press."""
        self.param.watch(act, "clicks")

    def _handle_msg(self, msg: Any) -> None:
        if msg == "press" and not self.disabled:
            self.clicks += 1


class FileDownload(pmui.FileDownload):
    """A button that saves a file. What the browser holds stays there: it is never asked for more than the press."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**{"icon": "download", "variant": "outlined"} | params)

    def _get_model(self, *args: Any, **kwargs: Any) -> Model:
        model: Model = super()._get_model(*args, **kwargs)
        model.data.syncable = False
        return model
