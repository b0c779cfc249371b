"""Small building blocks of the pages: titled cards, metric cards, responsive rows, plain text.

Text and frames are HTML with the theme's CSS variables, not Material components: a page of fifty React roots takes
seconds to appear. What came from a file or a person goes through `escape` before it becomes part of HTML.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Protocol

import panel as pn
from bokeh.plotting import figure

from hetplanner.ui.shell.models.glossary import GLOSSARY
from hetplanner.ui.widgets.island import Island

BORDER = "1px solid color-mix(in srgb, var(--panel-on-surface-color) 17%, transparent)"
FRAME = {
    "border": BORDER,
    "border-radius": "6px",
    "background": "var(--panel-surface-color)",
    "color": "var(--panel-on-surface-color)",
    "overflow": "hidden",
}
FONT = "font-family:Roboto,Helvetica,Arial,sans-serif;"
CODE_STYLE = (
    "background:#14181d;color:#d7dde4;padding:10px 12px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font:12.5px/1.5 'Roboto Mono',Menlo,Consolas,monospace;margin:6px 0"
)
COLOURS = {"good": "#2e9d4f", "warn": "#d97706", "bad": "#e5484d", "": "inherit"}
"""Readable on the light and on the dark paper."""
_METRIC_GRID = "display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,{}px),1fr))"
_METRIC = (
    f"{FONT}border:{BORDER};border-radius:6px;background:var(--panel-surface-color);"
    "color:var(--panel-on-surface-color);padding:9px 14px 10px;min-width:0"
)
_LINE = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis"


class Coloured(Protocol):
    """A live figure that follows the page's theme."""

    figure: figure
    holding: Callable[[], AbstractContextManager[Any]]

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        ...


def colour_all(figures: Iterable[Coloured], dark: bool) -> None:
    """Gives figures the page's theme."""
    for live in figures:
        live.set_dark(dark)


def html_pane(text: str = "", **params: Any) -> pn.pane.HTML:
    """A pane of trusted HTML; put nothing into it that was not escaped."""
    return pn.pane.HTML(text, **{"sizing_mode": "stretch_width", "margin": 0} | params)


def set_html(pane: pn.pane.HTML, text: str) -> None:
    """New HTML, sent only if it differs."""
    if pane.object != text:
        pane.object = text


def card(title: str, *objects: Any, margin: Any = 0, tools: Any = None) -> pn.Column:
    """A framed card with a title, "?" where the glossary has it, and with `tools` at its right end."""
    mark = help_mark(title)
    style = f"{FONT}font-size:15px;font-weight:600"
    text = f'{HELP_STYLE if mark else ""}<div style="{style}">{escape(title)}{mark}</div>'
    if tools is None:
        return frame(html_pane(text, margin=(10, 14, 2, 14)), *objects, margin=margin)
    head = toolbar(html_pane(text, margin=(6, 8), styles={"flex": "1 1 auto"}, sizing_mode=None), tools)
    return frame(head, *objects, margin=margin)


def caption(text: str) -> pn.pane.HTML:
    """A title of a part of a card."""
    style = f"{FONT}font-size:12.5px;font-weight:500;color:var(--panel-on-surface-color);opacity:.85"
    return html_pane(f'<div style="{style}">{escape(text)}</div>', margin=(4, 14))


def frame(*objects: Any, margin: Any = 0) -> pn.Column:
    """A framed card without a title."""
    return pn.Column(*objects, styles=FRAME, sizing_mode="stretch_width", margin=margin)


def chart(live: Coloured) -> pn.pane.Bokeh:
    """A live figure that fills its card's width."""
    live.holding = pn.io.hold  # see `binding.on_click`
    return pn.pane.Bokeh(live.figure, sizing_mode="stretch_width", margin=(0, 8, 4, 8))


def side_by_side(*cards: Any, least: int = 460) -> pn.FlexBox:
    """Cards of equal width next to each other, below each other where there is less than `least` pixels for one."""
    for child in cards:
        child.styles = {**child.styles, "flex": f"1 1 {least}px", "min-width": "0"}
    return pn.FlexBox(*cards, gap="12px", sizing_mode="stretch_width", margin=(6, 10), align_items="stretch")


LONG_OPTIONS = {"& .MuiSelect-select": {"whiteSpace": "normal !important", "fontSize": "13px", "lineHeight": "1.3"}}
"""For a select's `sx`: options that are longer than it is wide go on in a second line."""


def full_width(child: Any) -> Any:
    """A card over the whole width, with the page's margin."""
    child.margin = (6, 10)
    return child


def toolbar(*parts: Any) -> pn.FlexBox:
    """Groups of controls in a line, the last at the right end; below each other on a narrow page."""
    return pn.FlexBox(
        *parts,
        flex_wrap="wrap",
        justify_content="space-between",
        align_items="center",
        sizing_mode="stretch_width",
        margin=(2, 6),
    )


def page(*rows: Any) -> Island:
    """Rows below each other, each laid out by itself."""
    return Island(*map(Island, rows))


HELP_STYLE = """<style>
.help { margin: 0 0 0 6px; padding: 0; width: 17px; height: 17px; border-radius: 50%; vertical-align: baseline;
  border: 1px solid currentColor; font: 11px/14px Roboto, Helvetica, Arial, sans-serif; background: none;
  color: inherit; cursor: help }
.words { inset: auto; margin: 6px 0; width: 250px; padding: 8px 10px;
  left: min(anchor(left), 100vw - 290px); top: min(anchor(bottom), 100vh - 260px);
  text-align: left;
  font: 12.5px/1.4 Roboto, Helvetica, Arial, sans-serif; border-radius: 6px; background: var(--panel-surface-color);
  color: var(--panel-on-surface-color); border: 1px solid currentColor }
.words svg { display: block; margin-top: 6px }
</style>"""


def help_mark(name: str) -> str:
    """HTML: a "?" whose click shows what a word of the glossary means; '' for other words. Needs HELP_STYLE once.

    The words are a popover: no card cuts them off, and none stands over them. They are placed by `anchor()`:
    `position-area` ends the tab's process in Chromium 156 when the page is drawn while they open.
    """
    term = GLOSSARY.get(name)
    if term is None:
        return ""
    target = f"help-{escape(name.replace(' ', '-'))}"
    words = f'<span class="words" id="{target}" popover>{escape(term.sentence)}{term.picture()}</span>'
    facts = f'aria-label="What is {escape(name)}?" title="{escape(term.sentence)}"'
    return f'<button type="button" class="help" popovertarget="{target}" {facts}>?</button>{words}'


def show_if(part: Any, is_shown: bool) -> None:
    """Shows or hides a part. For `visible` Bokeh lays out all pages again, half a second."""
    # None, since a property that is left out stays as it was in the browser.
    part.styles = {**part.styles, "display": None if is_shown else "none"}


def is_shown(part: Any) -> bool:
    """Whether `show_if` shows a part."""
    return part.styles.get("display") != "none"


class MetricRow:
    """Cards with a name, one number, and a line of words; `set` changes one, and only what differs is sent."""

    def __init__(self, *names: str, least: int = 190) -> None:
        self._content = dict.fromkeys(names, ("–", "", ""))
        self._grid = _METRIC_GRID.format(least)
        self._pane = html_pane(margin=(6, 10))
        self.view = self._pane
        self._draw()

    def set(self, name: str, value: str, words: str = "", colour: str = "") -> None:
        """New content of a card; `colour` is a key of COLOURS."""
        self._content[name] = (value, words, colour)
        self._draw()

    def clear(self) -> None:
        """Dashes everywhere."""
        self._content = dict.fromkeys(self._content, ("–", "", ""))
        self._draw()

    def _draw(self) -> None:
        cards = "".join(_metric(name, *content) for name, content in self._content.items())
        set_html(self._pane, f'{HELP_STYLE}<div style="{self._grid}">{cards}</div>')


def _metric(name: str, value: str, words: str, colour: str) -> str:
    small = "font-size:12px;opacity:.72"
    big = f"font-size:21px;font-weight:700;margin:3px 0;color:{COLOURS[colour]};{_LINE}"
    note = escape(words)
    return (
        f'<div style="{_METRIC}"><div style="{small};letter-spacing:.03em">{escape(name)}{help_mark(name)}</div>'
        f'<div style="{big}" data-metric="{escape(name)}">{escape(value)}</div>'
        f'<div style="{small};line-height:1.3;min-height:2.6em">{note}</div></div>'
    )


class Words:
    """A line of small text; `set` escapes."""

    def __init__(self, text: str = "", margin: Any = (2, 14, 8, 14), size: int = 13) -> None:
        self._size = size
        self.view = html_pane(margin=margin)
        self.set(text)

    def set(self, text: str, bold: str = "") -> None:
        """New text, after a bold lead."""
        lead = f"<b>{escape(bold)}</b> " if bold else ""
        lines = "<br>".join(escape(line) for line in text.split("\n"))
        style = f"{FONT}font-size:{self._size}px;line-height:1.45;color:var(--panel-on-background-color);opacity:.86"
        set_html(self.view, f'<div style="{style};overflow-wrap:anywhere">{lead}{lines}</div>')
        show_if(self.view, bool(text))


class ErrorWords:
    """What was refused, in red, or what is doubtful ("warn"); nothing where nothing is."""

    def __init__(self, margin: Any = (0, 14, 6, 14), colour: str = "bad") -> None:
        self.view = html_pane(margin=margin)
        show_if(self.view, False)
        self._colour = COLOURS[colour]

    def set(self, text: str) -> None:
        """New text; '' hides it."""
        style = f"{FONT}font-size:12.5px;line-height:1.4;color:{self._colour};overflow-wrap:anywhere"
        set_html(self.view, f'<div role="alert" style="{style}">{escape(text).replace(chr(10), "<br>")}</div>')
        show_if(self.view, bool(text))


def progress_bar(share: float | None) -> str:
    """HTML: a bar that is filled so far; None: nothing is known yet."""
    filled = 0.0 if share is None else share
    faint = "color-mix(in srgb, var(--panel-primary-color) 28%, transparent)"
    facts = f'role="progressbar" aria-label="Progress" aria-valuenow="{100 * filled:.0f}"'
    return (
        f'<div {facts} style="height:4px;background:{faint}">'
        f'<div style="height:4px;width:{100 * filled:.1f}%;background:var(--panel-primary-color)"></div></div>'
    )


def chip(text: str) -> str:
    """HTML: a word in a frame, on the header."""
    look = (
        f"{FONT}font-size:13px;color:#fff;border:1px solid currentColor;border-radius:16px;"
        "padding:5px 11px;white-space:nowrap"
    )
    return f'<div style="{look}">{escape(text)}</div>'


def heading(text: str) -> pn.pane.HTML:
    """A heading inside the side bar."""
    style = (
        f"{FONT}font-size:12px;font-weight:600;letter-spacing:.05em;opacity:.8;color:var(--panel-on-background-color)"
    )
    return html_pane(f'<div style="{style}">{escape(text.upper())}</div>', margin=(10, 10, 0, 10))
