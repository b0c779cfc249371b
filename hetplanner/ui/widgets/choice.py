"""One of several names, as tabs or as buttons beside each other: a light component with Material's look."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

_HERE = Path(__file__).parent


class Choice(JSComponent):
    """A choice that the browser shows at once; `value` follows when the server has taken it.

    Args:
        labels: what is shown for each name.
        choose: called with a name that a person chose.
    """

    options = param.String(default="[]")
    value = param.String(default="")
    busy = param.String(default="{}")
    look: Any = param.Selector(default="tabs", objects=["tabs", "buttons"])

    _esm = (_HERE / "choice.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar[list[str]] = [(_HERE / "choice.css").read_text(encoding="utf-8")]

    def __init__(self, labels: Mapping[str, str], choose: Callable[[str], object], **params: Any) -> None:
        options = json.dumps([{"name": name, "label": label} for name, label in labels.items()])
        super().__init__(**{"options": options, "value": next(iter(labels))} | params)
        self._names, self._choose = frozenset(labels), choose

    def set_busy(self, names: Mapping[str, str]) -> None:
        """Marks names with a dot; the words say what goes on there."""
        self.busy = json.dumps(names)

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, str) and msg in self._names:
            with pn.io.hold():  # see `binding.on_click`
                self._choose(msg)
