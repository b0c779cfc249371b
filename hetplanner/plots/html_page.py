"""One HTML file that needs nothing else: scripts, styles and data are inside, no request is made."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE, Resources

from hetplanner.plots.theme import DARK, LIGHT, Look

MAX_ROWS = 64
# 'unsafe-eval': the map's CustomJS; nothing may be loaded from anywhere.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:;"
    " font-src data:"
)
_STYLE = """
body{font:15px/1.5 Roboto,Helvetica,Arial,sans-serif;color:var(--text);background:var(--page);margin:0 auto;
max-width:1180px;padding:24px}h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 8px}
.lead{font-size:16px;margin:10px 0}table{border-collapse:collapse;font-size:13px;width:100%;background:var(--paper)}
td,th{border:1px solid var(--line);padding:4px 8px;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{background:var(--head);font-weight:600;overflow-wrap:normal}td.n{text-align:right;white-space:nowrap}
.card{background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:8px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:12px}@media(max-width:900px){.two{grid-template-columns:1fr}}
pre{background:#14181d;color:#d7dde4;padding:10px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:12px}.bad{color:var(--bad)}.muted{color:var(--muted);font-size:13px}
"""


def _variables(look: Look, page: str, line: str, head: str, bad: str) -> str:
    own = {"page": page, "line": line, "head": head, "bad": bad}
    colours = {name: value for name, value in asdict(look).items() if isinstance(value, str)} | own
    return ":root{" + "".join(f"--{name}:{value};" for name, value in colours.items()) + "}"


_LIGHT = _variables(LIGHT, page="#fafbfc", line="#dfe3e8", head="#f1f3f6", bad="#b3261e")
_DARK = _variables(DARK, page="#14181d", line="#333b44", head="#242b33", bad="#ff8a80")
_HEAD = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_LIGHT}{_STYLE}</style>'
# Figures of Bokeh have a theme of their own: a page without them may follow the reader's.
_THEMED = f"<style>@media(prefers-color-scheme:dark){{{_DARK}}}:root{{color-scheme:light dark}}</style>"
_TEMPLATE = (
    "{% block preamble %}"
    + _HEAD
    + """{% endblock %}
{% block resources %}{% for text in library %}<script>{{ text | safe }}</script>{% endfor %}{% endblock %}
{% block contents %}{% for kind, part in parts %}{% if kind == "figure" %}
<div class="card">{{ embed(roots[part]) }}</div>{% else %}{{ part | safe }}{% endif %}{% endfor %}{% endblock %}
"""
)


def html_page(title: str, parts: Sequence[str | figure]) -> str:
    """The whole page as text.

    Args:
        title: of the window; escaped here.
        parts: figures, and HTML in which whatever others wrote is escaped already.
    """
    shown = [part for part in parts if isinstance(part, figure)]
    if not shown:  # Bokeh makes no page without one
        text = "".join(map(str, parts))
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{_HEAD}{_THEMED}'
        head += f"<title>{escape(title)}</title>"
        return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body><main>{text}</main></body></html>'
    for i, part in enumerate(shown):
        part.name = f"figure_{i}"
    # The text travels as a variable: what others wrote is never read as a template. The library is our choice, not
    # file_html's: that adds links to what Panel may have registered in this process.
    library = Resources(mode="inline", components=["bokeh"]).js_raw
    variables = {
        "library": library,
        "parts": [("figure", p.name) if isinstance(p, figure) else ("text", p) for p in parts],
    }
    return file_html(
        shown,
        INLINE,
        title=title,
        template=_TEMPLATE,
        template_variables=variables,
        suppress_callback_warning=True,  # no server handles a figure's change of width
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A table whose last `numbers` columns are right-aligned; every cell is escaped."""
    shown = list(rows)
    first = len(head) - numbers
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i >= first else ''}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in shown[:MAX_ROWS]
    )
    more = f'<p class="muted">… and {len(shown) - MAX_ROWS} more</p>' if len(shown) > MAX_ROWS else ""
    return f"<table><tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>{body}</table>{more}"
