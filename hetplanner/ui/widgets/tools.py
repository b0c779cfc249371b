"""Small buttons in a row, as one light component; figures are saved by the browser, without a request."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from hetplanner.ui.widgets.cards import Coloured

_HERE = Path(__file__).parent


class Tools(JSComponent):
    """Buttons. What they do is decided here, never by what the browser sends beyond a button's name."""

    items = param.String(default="[]")

    _esm = (_HERE / "tools.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar[list[str]] = [(_HERE / "tools.css").read_text(encoding="utf-8")]

    def __init__(self, *buttons: dict[str, Any], acts: Mapping[str, Callable[[], object]] | None = None, **params: Any):
        super().__init__(**{"margin": 0} | params)
        self._buttons, self._acts = list(buttons), dict(acts or {})
        self.disable()

    def disable(self, *names: str) -> None:
        """The buttons that cannot be pressed now; all others can."""
        self.items = json.dumps([button | {"disabled": button["name"] in names} for button in self._buttons])

    def send_file(self, name: str, text: str, kind: str = "application/json") -> None:
        """Has the browser save a text as a file."""
        self._send_msg({"name": name, "text": text, "kind": kind})

    def _handle_msg(self, msg: Any) -> None:
        act = self._acts.get(str(msg.get("press"))) if isinstance(msg, dict) else None
        if act is not None:
            with pn.io.hold():  # see `binding.on_click`
                act()


def tool(name: str, label: str, title: str = "") -> dict[str, Any]:
    """A button that does what `acts` has under its name."""
    return {"name": name, "label": label, "title": title}


def save_tools(live: Coloured, name: str) -> list[dict[str, Any]]:
    """Buttons that save a figure as it is seen, as pixels or as shapes; `name` is the file's without a suffix."""
    return [
        {
            "name": name,
            "label": kind.upper(),
            "title": f"Save this figure as {kind.upper()}",
            "figure": live.figure.id,
            "kind": kind,
        }
        for kind in ("png", "svg")
    ]
