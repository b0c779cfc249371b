"""A lost connection shows itself, and the page comes back by itself: its address remembers what a person made."""

from bokeh.document import Document
from bokeh.models import CustomJS

LOST = "The connection to the server is lost; runs continue. This page reconnects as soon as the server answers."

# A session of a server that is gone cannot be joined again, and one that was left alone for some seconds is dropped:
# loading the page anew is right in every case. Any of the page's own scripts tells whether the server answers.
_COME_BACK = """
if (window.hetplanner_waits) { return }
window.hetplanner_waits = true
let leaving = false
addEventListener("pagehide", () => { leaving = true })
const address = (document.querySelector("script[src]") ?? {src: "favicon.ico"}).src
const ask = async () => {
  if (leaving) { return }
  try {
    const answer = await fetch(address, {method: "HEAD", cache: "no-store"})
    if (answer.status < 500) { location.reload(); return }
  } catch { }
  setTimeout(ask, 1500)
}
setTimeout(ask, 1500)
"""


def come_back_after_loss(document: Document) -> None:
    """Makes the page of a document load itself again once the server that it lost answers."""
    document.js_on_event("connection_lost", CustomJS(code=_COME_BACK))
