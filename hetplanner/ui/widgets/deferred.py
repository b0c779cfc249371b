"""What is drawn a moment after words were said: a person does not wait for figures that take the browser long."""

from collections.abc import Callable
from typing import Any

import panel as pn

AFTER_MS = 20
"""Long enough for what was said to go out first, too short to be seen."""


class Deferred:
    """Puts drawing off, and does all that was put off at once; `later(draw)` is what watches a signal.

    Where there is no session (a notebook, a test) everything is drawn at once.

    Args:
        after_ms: how long it is put off.
    """

    def __init__(self, after_ms: int = AFTER_MS) -> None:
        self._after_ms = after_ms
        self._due: dict[Callable[[], object], None] = {}

    def __call__(self, draw: Callable[[], object]) -> Callable[..., None]:
        """A watcher after which `draw` is called, once for all signals of a moment."""

        def put_off(*_: Any) -> None:
            document = pn.state.curdoc
            if document is None or document.session_context is None:
                draw()
                return
            if not self._due:
                document.add_timeout_callback(self._draw, self._after_ms)
            self._due[draw] = None

        return put_off

    def _draw(self) -> None:
        due, self._due = list(self._due), {}
        with pn.io.hold():  # see `binding.on_click`
            for draw in due:
                draw()
