"""Stopping a rank: a file in the run directory, a signal, or a vanished parent; noticed even while gloo blocks.

A rank that waits inside gloo runs no Python signal handler, so SIGTERM and SIGINT are blocked in every thread and
taken by this thread. No torch: the worker starts it before torch is imported.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

STOP_FILE = "stop"
SIGNALLED_FILE = "stop.signalled"
"""Tells the other ranks of this machine that one was sent a signal; `stop` itself is only written by who asks."""
POLL_S = 0.05
GRACE_S = 1.5
"""A rank that has not left its step this long after a stop was asked for saves what it holds and exits: with the
saving, every process is to be gone within 5 s, and the agent begins to kill after 3.3 s."""
SAVING_GRACE_S = 2.4
"""The same for a rank that is saving together with others, one of which may have given up."""

log = logging.getLogger(__name__)


def block_signals() -> None:
    """Keeps SIGTERM and SIGINT for the watcher; to be called before any other thread starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


class StopWatcher:
    """Watches for a request to stop.

    Attributes:
        requested: set once a stop is asked for.
        asked_s: when that was, on the monotonic clock.
        on_request: called once, from the watcher's thread, when it is.
        on_overdue: called once when the rank has not called `leave_steps` in time after a request; ends the process.
    """

    def __init__(self, run_dir: Path) -> None:
        self.requested = threading.Event()
        self.asked_s = 0.0
        self.on_request: Callable[[], None] = lambda: None
        self.on_overdue: Callable[[], None] = lambda: None
        self._stop_file, self._signalled_file = run_dir / STOP_FILE, run_dir / SIGNALLED_FILE
        self._parent = os.getppid()
        self._done = threading.Event()
        self._grace_s = GRACE_S
        self._thread = threading.Thread(target=self._run, name="stop-watcher", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def leave_steps(self) -> None:
        """The rank is past its last step and saves; from here on it has more time."""
        self._grace_s = SAVING_GRACE_S

    def close(self) -> None:
        """Ends the watch."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            if not self.requested.is_set() and self._is_asked():
                self.asked_s = time.monotonic()
                log.info("a stop was asked for")
                self.requested.set()
                self.on_request()
            elif self.requested.is_set() and time.monotonic() - self.asked_s > self._grace_s:
                self.on_overdue()
                return
            elif self.requested.is_set():
                self._done.wait(POLL_S)

    def _is_asked(self) -> bool:
        """Waits up to `POLL_S` for a request."""
        # The wait for a signal is the pause between two looks at the file.
        if signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, POLL_S) is not None or os.getppid() != self._parent:
            self._signalled_file.touch()
            return True
        return self._stop_file.exists() or self._signalled_file.exists()
