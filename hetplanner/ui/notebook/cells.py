"""A live view in a notebook's output: the page's figures, words, and a stop button, without a server.

Updates travel over the comms of ipywidgets, which a front end opens also for a cell that is still running; scripts are
part of the notebook, so it works offline. When all is done the view is replaced by a still one: what is saved with the
notebook needs no kernel. Without ipywidgets and jupyter_bokeh (the extra `notebook`) still views follow each other.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from hetplanner.plots.live.base import LiveFigure
from hetplanner.plots.notebook.backend import ready
from hetplanner.plots.notebook.stills import FIGURE_PX, still_html

T = TypeVar("T")

STILL_EVERY_S = 2.0
_PAPER = "background:#fff;color:#20242a;padding:6px 10px;border-radius:4px"
_FONT = "font-family:Roboto,Helvetica,Arial,sans-serif;font-size:13px;line-height:1.45"


class Face(Generic[T]):
    """What a cell shows of a subject: words above, figures below."""

    figures: Sequence[LiveFigure]

    def update(self, subject: T) -> None:
        """Redraws the figures."""
        raise NotImplementedError

    def words(self, subject: T) -> str:
        """Trusted HTML: texts of files and people in it are escaped."""
        raise NotImplementedError


class LiveCell(Generic[T]):
    """One view of one subject in the output of the cell that makes it.

    Only one thread may call its methods; `stop_asked` may be read by any.

    Args:
        make: a new face, with figures of its own.
        subject: what to show first.
        live: whether it will change.
    """

    def __init__(self, make: Callable[[], Face[T]], subject: T, live: bool = True) -> None:
        from IPython.display import display

        ready()
        self.stop_asked = threading.Event()
        self._make = make
        self._due_s = 0.0
        self._view = None
        if live:
            with suppress(ImportError):
                self._view = _View(self._new_face(subject), self.stop_asked.set)
        if self._view is None:
            self._handle: Any = display(self._still(subject), raw=True, display_id=True)
        else:
            self._view.update(subject)
            self._handle = display(self._view.widget, display_id=True)
            self._view.listen()

    def update(self, subject: T) -> None:
        """Shows news; cheap enough for a few calls a second."""
        if self._view is not None:
            self._view.update(subject)
            if self.stop_asked.is_set():
                self._view.say_stopping()
        elif time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + STILL_EVERY_S
            self._handle.update(self._still(subject), raw=True)

    def finish(self, subject: T) -> None:
        """Leaves the last state, without the button."""
        self._handle.update(self._still(subject), raw=True)
        if self._view is not None:
            self._view.close()

    def _still(self, subject: T) -> dict[str, str]:
        face = self._new_face(subject)  # a figure belongs to one document
        figures = still_html([live.figure for live in face.figures])
        return {"text/html": words_html(face.words(subject)) + figures}

    def _new_face(self, subject: T) -> Face[T]:
        face = self._make()
        for live in face.figures:
            live.let_be()
        face.update(subject)
        return face


class _View(Generic[T]):
    """The widgets of a live cell. Raises ImportError without ipywidgets and jupyter_bokeh."""

    def __init__(self, face: Face[T], on_stop: Callable[[], None]) -> None:
        import ipywidgets
        from jupyter_bokeh import BokehModel

        self._face = face
        self._words = ipywidgets.HTML(layout={"flex": "1 1 auto"})
        self._button = ipywidgets.Button(description="Stop", icon="stop", layout={"width": "110px", "flex": "0 0 auto"})
        self._button.on_click(lambda _: on_stop())
        self._figures = [
            BokehModel(live.figure, layout={"flex": f"1 1 {FIGURE_PX}px", "min_width": "0"}) for live in face.figures
        ]
        self._boxes = [
            ipywidgets.HBox([self._words, self._button], layout={"width": "100%"}),
            ipywidgets.Box(self._figures, layout={"display": "flex", "flex_flow": "row wrap", "width": "100%"}),
        ]
        self.widget = ipywidgets.VBox(self._boxes, layout={"width": "100%"})

    def listen(self) -> None:
        """Lets a click be handled beside the cell that runs, where the front end offers it (JupyterLab 4.4).

        ipykernel hands what comes over a comm to the thread that wrote to it last: our own, which is busy. Once that is
        forgotten, it goes to the thread that the front end has asked for.
        """
        vars(self._button.comm).pop("_reply_subshell_id", None)

    def say_stopping(self) -> None:
        """The click has been seen."""
        if not self._button.disabled:
            self._button.description, self._button.disabled = "Stopping …", True

    def update(self, subject: T) -> None:
        """Sends what has changed."""
        self._face.update(subject)
        self._words.value = words_html(self._face.words(subject))

    def close(self) -> None:
        """Ends the comms."""
        import ipywidgets

        for widget in (*self._figures, self._words, self._button, *self._boxes, self.widget):
            # BokehModel's own `close` raises when it comes a second time, and the garbage collector calls it.
            ipywidgets.Widget.close(widget)


def words_html(words: str) -> str:
    """The words in the cell's font, on its paper: the notebook may be dark, the figures are not."""
    return f'<div style="{_FONT};{_PAPER}">{words}</div>'
