"""A table of text fields, sites × sites: typed into, or pasted over from a spreadsheet."""

from collections.abc import Callable
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from hetplanner.plots.theme import SOURCE_COLOURS
from hetplanner.ui.cluster.models.link_tables import MAX_TABLE_SITES
from hetplanner.ui.widgets.cards import COLOURS

MAX_CELL = 80
_LINE = "color-mix(in srgb, var(--panel-on-surface-color) 17%, transparent)"
_STYLE = f"""
.box {{ overflow: auto; max-height: 420px; font: 12px Roboto, Helvetica, Arial, sans-serif; }}
table {{ border-collapse: separate; border-spacing: 0; width: 100%; color: var(--panel-on-surface-color); }}
th {{ font-weight: 500; padding: 3px 6px; text-align: left; max-width: 110px; overflow-wrap: break-word;
  background: var(--panel-surface-color); position: sticky; }}
thead th {{ max-width: 66px; padding: 3px 4px; top: 0; z-index: 1; text-align: right;
  border-bottom: 1px solid {_LINE}; }}
thead th:first-child, tbody th {{ left: 0; text-align: left; }}
thead th:first-child {{ max-width: none; z-index: 2; opacity: .7; }}
td {{ padding: 1px; min-width: 42px; }}
input {{ width: 100%; box-sizing: border-box; font: inherit; color: inherit; background: transparent; text-align: right;
  border: 1px solid transparent; border-bottom: 2px solid transparent; border-radius: 3px; padding: 3px 4px; }}
input:hover {{ border-color: {_LINE}; }}
input:focus {{ outline: 2px solid var(--panel-primary-color); }}
input.inside {{ background: color-mix(in srgb, var(--panel-on-surface-color) 6%, transparent); }}
input.chosen {{ border-color: #EE6677; }}
input.bad {{ border-color: {COLOURS["bad"]}; color: {COLOURS["bad"]}; }}
""" + "\n".join(f"input.{name} {{ border-bottom-color: {colour}; }}" for name, colour in SOURCE_COLOURS.items())


class SiteTable(JSComponent):
    """Draws `content` (see `LinkTables.content`); what is typed goes to `on_write`, what is focused to `on_choose`."""

    content = param.Dict(default={"names": [], "rows": [], "chosen": None})
    label = param.String(default="")

    _esm = "site_table.js"
    _stylesheets: ClassVar[list[str]] = [_STYLE]

    def __init__(
        self,
        on_write: Callable[[int, int, list[list[str]]], object],
        on_choose: Callable[[int, int], object],
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self._on_write, self._on_choose = on_write, on_choose

    def _handle_msg(self, data: Any) -> None:
        """What the browser sent: data of unknown shape."""
        with pn.io.hold():
            if not isinstance(data, dict):
                return
            if _is_cell(data.get("choose")):
                self._on_choose(*data["choose"])
            elif _is_cell(data.get("write")) and isinstance(data.get("texts"), list):
                row, column = data["write"]
                self._on_write(row, column, _texts(data["texts"]))


def _is_cell(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)


def _texts(lines: list[Any]) -> list[list[str]]:
    """A block of texts, cut to what a table may hold."""
    block = [line[:MAX_TABLE_SITES] for line in lines[:MAX_TABLE_SITES] if isinstance(line, list)]
    return [[str(text)[:MAX_CELL] for text in line] for line in block]
