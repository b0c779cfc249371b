"""The page's address and title in the browser, and its theme: what is there again after Back, Forward and a reload."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

MAX_ADDRESS = 8000
"""Characters of an address that are read."""


class Address(JSComponent):
    """Panel's own location only writes: a person who went back would change the address and not the page.

    Args:
        on_move: called with the query of the address ('?page=plan…') that a person went back or forth to.
        on_theme: called with whether the browser wants a dark page: chosen here before, or by its system.
    """

    entry = param.String(default='{"search":"","places":0}')
    title = param.String(default="hetplanner")
    dark = param.Boolean(default=False)
    pulse = param.Integer(default=0, doc="Changes now and then; see `Shell`.")

    _esm = Path(__file__).with_name("address.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar[list[str]] = [":host { display: none; }"]

    def __init__(self, on_move: Callable[[str], object], on_theme: Callable[[bool], object], **params: Any) -> None:
        super().__init__(**{"width": 0, "height": 0, "margin": 0} | params)
        self._on_move, self._on_theme = on_move, on_theme
        self._places = 0

    def write(self, search: str, push: bool) -> None:
        """Another address; with `push` one that Back leaves, else in place of the one there is.

        Places are counted: of several entries that are written in one answer the browser gets the last alone.
        """
        self._places += push
        self.entry = json.dumps({"search": search, "places": self._places})

    def _handle_msg(self, msg: Any) -> None:
        if not isinstance(msg, dict):
            return
        with pn.io.hold():  # see `binding.on_click`
            search, dark = msg.get("search"), msg.get("dark")
            if isinstance(search, str):
                self._on_move(search[:MAX_ADDRESS])
            if isinstance(dark, bool):
                self._on_theme(dark)
