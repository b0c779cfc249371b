"""Reports what a page's callbacks change without holding the document: a server imports it before it serves.

Such a change goes out at once, past messages that Panel has serialised and still sends: if it is one of a part that is
in them, the browser does not know the part yet. `Server.stop` finds the lines. `Server.stacks` asks for all stacks.
"""

import faulthandler
import signal
import traceback
from pathlib import Path

from bokeh.document.callbacks import DocumentCallbackManager
from bokeh.document.events import DocumentChangedEvent, DocumentPatchedEvent

SOURCES = str(Path(__file__).resolve().parents[3] / "hetplanner")
faulthandler.register(signal.SIGUSR1)

LATER = {"unhold", "unlocked", "hold"}
"""Functions of Bokeh and Panel that send what was held."""

send = DocumentCallbackManager.trigger_on_change


def send_and_tell(self: DocumentCallbackManager, event: DocumentChangedEvent) -> None:
    """In place of `trigger_on_change`."""
    document = self._document()
    session = getattr(getattr(document, "session_context", None), "session", None)
    is_of_page = isinstance(event, DocumentPatchedEvent) and event.setter is None
    if is_of_page and self._hold is None and session is not None and session.connection_count:
        stack = traceback.extract_stack()
        if not LATER & {frame.name for frame in stack}:
            own = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in stack if f.filename.startswith(SOURCES)]
            what = type(getattr(event, "model", document)).__name__ + "." + str(getattr(event, "attr", event.kind))
            print(f"unheld change: {what}: {' > '.join(own) or 'nobody of ours'}", flush=True)
    send(self, event)


DocumentCallbackManager.trigger_on_change = send_and_tell
