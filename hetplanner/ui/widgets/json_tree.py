"""Plain data as a tree of HTML that opens and closes without a script."""

from html import escape
from itertools import islice
from typing import Any

OPEN_DEPTH = 1
MOST_ITEMS = 40
MOST_TEXT = 300
_KEY, _TEXT, _NUMBER, _DIM = "#8cb8ff", "#b5d99c", "#f0b8a0", "opacity:.6"


def tree_html(data: Any, key: str = "plan", depth: int = 0) -> str:
    """Objects and lists as `details` that fold, the rest as one line; long lists are cut, and say so."""
    name = f'<span style="color:{_KEY}">{escape(key)}</span>'
    if not isinstance(data, dict | list):
        return f'<div style="padding-left:15px">{name}: {_leaf(data)}</div>'
    if _is_flat(data):
        return f'<div style="padding-left:15px">{name}: [{", ".join(map(_leaf, data))}]</div>'
    items = data.items() if isinstance(data, dict) else ((str(i), value) for i, value in enumerate(data))
    shown = "".join(tree_html(value, label, depth + 1) for label, value in islice(items, MOST_ITEMS))
    left = len(data) - MOST_ITEMS
    more = f'<div style="padding-left:15px;{_DIM}">… {left} more in the file</div>' if left > 0 else ""
    count = f'<span style="{_DIM}">{{{len(data)}}}</span>' if isinstance(data, dict) else f"[{len(data)}]"
    state = " open" if depth < OPEN_DEPTH else ""
    head = f"<summary>{name} {count}</summary>"
    return f'<details{state} style="padding-left:{15 if depth else 0}px">{head}{shown}{more}</details>'


def _is_flat(data: Any) -> bool:
    return isinstance(data, list) and len(data) <= 16 and not any(isinstance(v, dict | list) for v in data)


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        text = value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"
        return f'<span style="color:{_TEXT}">"{escape(text)}"</span>'
    words = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return f'<span style="color:{_NUMBER}">{escape(words)}</span>'
