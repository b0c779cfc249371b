"""When this browser last had a page open: a cookie that the page itself keeps, one number, read when it loads."""

import math

import panel as pn
from bokeh.models import CustomJS

from hetplanner.ui.run.models.run import RunModel

COOKIE = "hetplanner_seen"
_MARK = f"""
const mark = () => {{
  document.cookie = "{COOKIE}=" + Math.floor(Date.now() / 1000) + "; Max-Age=2592000; Path=/; SameSite=Strict"
}}
mark()
setInterval(mark, 10000)
window.addEventListener("pagehide", mark)
"""


def note_when_closed(model: RunModel) -> None:
    """Tells the model when the last page of this browser was closed, and has this page keep the note."""
    document = pn.state.curdoc
    if document is None or document.session_context is None:
        return
    closed_s = seen_s(str((pn.state.cookies or {}).get(COOKIE, "")))
    if closed_s is not None:
        model.closed_since(closed_s)
    document.js_on_event("document_ready", CustomJS(code=_MARK))


def seen_s(text: str) -> float | None:
    """The time in the cookie; None for what is no time."""
    try:
        value = float(text[:20])
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
