"""Tables of the Run page as plain HTML: quick to draw, quick to change. Every cell is escaped."""

from collections.abc import Sequence
from html import escape

from hetplanner.ui.widgets.cards import BORDER, COLOURS, FONT

_CELL = f"padding:4px 10px 4px 0;border-bottom:{BORDER};vertical-align:top"


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0, bad: Sequence[bool] = (), height: int = 0
) -> str:
    """A table.

    Args:
        head, rows: text of the cells.
        numbers: so many last columns are aligned to the right.
        bad: rows that stand out.
        height: pixels, beyond which it scrolls; 0 lets it be as long as it is.
    """
    first = len(head) - numbers
    align = ["text-align:right" if i >= first else "text-align:left" for i in range(len(head))]
    cells = "".join(
        f'<th style="{_CELL};{a};font-weight:600">{escape(h)}</th>' for h, a in zip(head, align, strict=True)
    )
    lines = []
    for i, row in enumerate(rows):
        look = f"color:{COLOURS['bad']};font-weight:600" if i < len(bad) and bad[i] else ""
        shown = "".join(f'<td style="{_CELL};{a}">{escape(c)}</td>' for c, a in zip(row, align, strict=True))
        lines.append(f'<tr style="{look}">{shown}</tr>')
    style = f"{FONT}font-size:12.5px;color:var(--panel-on-surface-color);overflow:auto"
    style += f";max-height:{height}px" if height else ""
    keys = ' tabindex="0"' if height else ""  # what scrolls can be scrolled by keys
    return (
        f'<div{keys} style="{style}"><table style="border-collapse:collapse;width:100%;overflow-wrap:anywhere">'
        f"<tr>{cells}</tr>{''.join(lines)}</table></div>"
    )


def note(text: str) -> str:
    """A line instead of an empty table."""
    return f'<div style="{FONT}font-size:13px;opacity:.75;color:var(--panel-on-surface-color)">{escape(text)}</div>'
