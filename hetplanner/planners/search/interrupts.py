"""Ctrl-C as a question that a search asks, so that it ends with the best plan so far."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """While entered, an interrupt (Ctrl-C, a notebook's stop button) ends nothing but makes this answer True.

    A second one raises KeyboardInterrupt, for a user who does not want to wait for the search's end. Outside the main
    thread neither happens: Python delivers signals to the main thread alone.
    """

    def __init__(self) -> None:
        self._hit = False
        self._before: Any = None

    def __call__(self) -> bool:
        """Whether an interrupt has come."""
        return self._hit

    def _interrupt(self, *_: object) -> None:
        if self._hit:
            raise KeyboardInterrupt
        self._hit = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
