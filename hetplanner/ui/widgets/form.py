"""The settings as one light component: plain HTML fields in groups that open, with errors beside their fields.

Some forty Material fields would be forty React roots, seconds of drawing; these are drawn at once.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import panel as pn
import param
from panel.custom import JSComponent

FORM_SCRIPT = Path(__file__).with_name("form.js").read_text(encoding="utf-8")
FORM_STYLE = Path(__file__).with_name("form.css").read_text(encoding="utf-8")


class Form(Protocol):
    """What can be drawn: view-models such as `models.form.SettingsForm`; `edit` is all that the page can do."""

    groups: Any
    values: Any
    errors: Any
    notes: Any
    disabled: Any
    param: Any

    def edit(self, name: str, raw: object) -> None:
        """Takes what was typed or chosen in a field."""


class SettingsPanel(JSComponent):
    """Draws a form; both parameters are JSON text. Ctrl-Enter calls `on_search`."""

    groups = param.String(default="[]")
    state = param.String(default='{"values":{},"errors":{},"notes":{},"disabled":[]}')

    _esm = FORM_SCRIPT
    _stylesheets: ClassVar[list[str]] = [FORM_STYLE]

    def __init__(self, form: Form, on_search: Callable[[], object], **params: Any) -> None:
        super().__init__(**{"sizing_mode": "stretch_width"} | params)
        self._form, self._on_search = form, on_search
        form.param.watch(self._show_groups, "groups")
        form.param.watch(self._show, ["values", "errors", "notes", "disabled"])
        self._show_groups()
        self._show()

    def _show_groups(self, *_: Any) -> None:
        self.groups = json.dumps(self._form.groups)

    def _show(self, *_: Any) -> None:
        names = ("values", "errors", "notes", "disabled")
        self.state = json.dumps({name: getattr(self._form, name) for name in names})

    def _handle_msg(self, msg: Any) -> None:
        # Held for the same reason as clicks, see `binding.on_click`.
        with pn.io.hold():
            if not isinstance(msg, dict):
                return
            if msg.get("search") is True:
                self._on_search()
            elif isinstance(msg.get("name"), str):
                self._form.edit(msg["name"], msg.get("value"))
