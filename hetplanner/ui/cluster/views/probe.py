"""Measuring hosts on the Cluster page: what to measure, how far it is, and what was found."""

from html import escape
from typing import Any

from hetplanner.ui.cluster.models.probe_rows import DEVICE_HEAD, DEVICE_NUMBERS, LINK_HEAD, LINK_NUMBERS, ProbeRows
from hetplanner.ui.run.views.tables import html_table
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.views.unlock import Unlock
from hetplanner.ui.widgets.cards import FONT, ErrorWords, Words, card, html_pane, progress_bar, set_html, show_if
from hetplanner.ui.widgets.controls import Controls, Item, button, field
from hetplanner.ui.widgets.island import Island

WHAT = {"devices and links": "all", "devices": "devices", "links": "links"}
TABLE_HEIGHT = 320
HINT = (
    "The hosts measure themselves and each other over ssh, from this server's machine. Nothing else should run on them"
    " meanwhile. The cluster stays as it is until you take the numbers."
)
_LIST = (
    f"{FONT}font-size:13px;line-height:1.5;color:var(--panel-on-surface-color);overflow-wrap:anywhere;overflow:auto;"
    f"max-height:{TABLE_HEIGHT}px"
)


class ProbePart:
    """`view` is the card."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.probe
        self.unlock = Unlock(app.session)
        self.unlock.view.margin = (0, 8)
        self.lock = Island()
        self.controls = Controls(self._press, margin=(4, 14))
        self.state = Words(margin=(4, 14, 6, 14))
        self.error = ErrorWords()
        self.bar, self.found = html_pane(margin=(0, 14, 6, 14)), html_pane(margin=(0, 14, 10, 14))
        hint = Words(HINT, margin=(0, 14, 4, 14), size=12)
        parts = (self.controls, self.lock, self.bar, self.state.view, self.error.view, self.found)
        self.view = card("Measure hosts", hint.view, *parts)
        self.model.param.watch(self._show, ["changed", "only", "all_pairs", "on_map"])
        app.session.param.watch(self._show, "unlocked")
        self._show()

    def _show(self, *_: Any) -> None:
        model = self.model
        self.controls.put(self._items())
        wanted = [self.unlock.view] if model.names and not self.app.session.unlocked else []
        if self.lock.parts != wanted:  # where there is nothing to start, the browser need not draw the field
            self.lock.parts = wanted
        share = model.share
        set_html(self.bar, "" if share is None else progress_bar(share))
        show_if(self.bar, share is not None)
        self.state.set(model.state_text)
        self.error.set(model.error_text)
        rows = model.rows()
        set_html(self.found, "" if rows is None else _rows_html(rows))
        show_if(self.found, rows is not None)

    def _items(self) -> list[Item]:
        model = self.model
        if model.busy:
            return [button("cancel", "Cancel", "Stops at once; measurements are kept"), *self._more()]
        if not model.names:
            return self._more()
        what = next(label for label, only in WHAT.items() if only == model.only)
        pairs = "Else each host meets one host of every other site"
        items = [
            field("select", "hosts", "Hosts file", model.hosts, options=list(model.names), width=170,
                  title="As agent.toml offers them"),
            field("select", "only", "Measure", what, options=list(WHAT), width=150),
            field("check", "all_pairs", "Every pair of hosts", model.all_pairs, title=pairs),
        ]  # fmt: skip
        if not model.has_numbers:
            items.append(button("start", "Start", "Connects to all hosts, then measures in rounds", primary=True))
        else:
            if not model.is_whole:
                items.append(button("start", "Go on", "Measures the rest"))
            items.append(button("anew", "Measure anew", "Discards the measurements and starts again"))
        return [*items, *self._more()]

    def _more(self) -> list[Item]:
        """What can be done with the numbers so far."""
        model = self.model
        if not model.has_numbers or model.is_taken:
            return []
        items = [] if model.running else [button("use", "Use the measured cluster", "Undo takes it back", primary=True)]
        return [*items, field("check", "on_map", "Show them on the map", model.on_map)]

    def _press(self, name: str, values: dict[str, Any]) -> None:
        model = self.model
        if name == "hosts" and values.get("hosts") in model.names:
            model.hosts = values["hosts"]
            model.poll()
        elif name == "only" and values.get("only") in WHAT:
            model.only = WHAT[values["only"]]
        elif name in ("all_pairs", "on_map"):
            setattr(model, name, bool(values.get(name)))
        elif name in ("start", "anew"):
            self.unlock.take()
            model.start(anew=name == "anew")
        elif name == "cancel":
            self.unlock.take()
            model.cancel()
        elif name == "use":
            model.use()


def _rows_html(rows: ProbeRows) -> str:
    """Tables and sentences."""
    parts = []
    if rows.links:
        parts.append(html_table(LINK_HEAD, rows.links, numbers=LINK_NUMBERS, height=TABLE_HEIGHT))
    if rows.devices:
        parts.append(html_table(DEVICE_HEAD, rows.devices, numbers=DEVICE_NUMBERS, height=TABLE_HEIGHT))
    told = [*rows.findings, *([rows.more] if rows.more else [])]
    if told:
        lines = "".join(f"<li>{escape(text)}</li>" for text in told)
        parts.append(f'<div tabindex="0" style="{_LIST}"><b>Findings</b><ul style="margin:4px 0">{lines}</ul></div>')
    return "".join(f'<div style="margin-bottom:12px">{part}</div>' for part in parts)
