"""Telling a rank to end: a file in the run directory, a signal, or a vanished launcher; noticed even while gloo blocks.

The file is its user's wish to stop. A signal or a lost launcher that the user did not ask for is a preemption: a
scheduler or cloud takes the processes away, and the run goes on elsewhere or later.

A rank that waits inside gloo runs no Python signal handler, so SIGTERM and SIGINT are blocked in every thread and
taken by this thread. No torch: the worker starts it before torch is imported.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from hetplanner.errors import Preempted
from hetplanner.liveness.heartbeat import Heartbeat

STOP_FILE = "stop"
SIGNALLED_FILE = "stop.signalled"
"""Tells the other ranks of this machine that one was sent a signal; `stop` itself is only written by who asks."""
POLL_S = 0.05
GRACE_S = 1.5
"""A rank that has not left its step this long after a stop was asked for saves what it holds and exits: with the
saving, every process is to be gone within 5 s, and the agent begins to kill after 3.3 s."""
SAVING_GRACE_S = 2.4
"""The same for a rank that is saving together with others, one of which may have given up."""
PREEMPTION_GRACE_S = 25.0
"""The same after a preemption: a launcher kills its ranks 30 s after it was told to end."""
PREEMPTION_SAVING_GRACE_S = 300.0
"""A checkpoint that is being written after a preemption is waited for; the scheduler may kill the rank sooner."""
SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})

log = logging.getLogger(__name__)


class Request(IntEnum):
    """What a rank is asked for; of two ranks' requests the greater one holds."""

    NONE = 0
    PREEMPT = 1
    STOP = 2


def block_signals() -> None:
    """Keeps SIGTERM and SIGINT for the watcher; to be called before any other thread starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class StopWatcher:
    """Watches for a request to end.

    Attributes:
        requested: set once an end is asked for.
        request: what was asked for.
        asked_s: when that was, on the monotonic clock.
        on_request: called once, from the watcher's thread, when it is.
        on_overdue: called once when the rank has not called `leave_steps` in time after a request; ends the process.
    """

    def __init__(self, run_dir: Path, heartbeat: Heartbeat | None = None, attempt: int = 0) -> None:
        self.requested = threading.Event()
        self.request = Request.NONE
        self.asked_s = 0.0
        self.on_request: Callable[[], None] = lambda: None
        self.on_overdue: Callable[[], None] = lambda: None
        self._heartbeat = heartbeat or Heartbeat()
        self._stop_file, self._signalled_file = run_dir / STOP_FILE, run_dir / SIGNALLED_FILE
        self._attempt = b"%d" % attempt
        self._parent = os.getppid()
        self._done = threading.Event()
        self._grace_s = {Request.STOP: GRACE_S, Request.PREEMPT: GRACE_S}
        self._thread = threading.Thread(target=self._run, name="stop-watcher", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def enter_steps(self) -> None:
        """From here on there is something to save."""
        self._grace_s[Request.PREEMPT] = PREEMPTION_GRACE_S

    def leave_steps(self) -> None:
        """The rank is past its last step and saves; from here on it has more time."""
        self._grace_s = {Request.STOP: SAVING_GRACE_S, Request.PREEMPT: PREEMPTION_SAVING_GRACE_S}

    def ask(self, request: Request) -> None:
        """Asks for an end; a stop takes the place of a preemption."""
        if request > self.request:
            first = self.request is Request.NONE
            self.request, self.asked_s = request, time.monotonic()
            log.info("asked to %s", request.name.lower())
            self.requested.set()
            if first:
                self.on_request()

    def exit_code(self) -> int:
        """Of a rank that ends before its last step because it was asked to."""
        return Preempted.exit_code if self.request is Request.PREEMPT else 0

    def close(self) -> None:
        """Ends the watch."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            self.ask(self._look())
            if self.requested.is_set() and time.monotonic() - self.asked_s > self._grace_s[self.request]:
                self.on_overdue()
                return

    def _look(self) -> Request:
        """Waits `POLL_S`, then looks for a request."""
        self._done.wait(POLL_S)
        # Never with a timeout: when a process that was stopped, or traced, goes on after it, CPython (3.11 to 3.13)
        # returns a siginfo that the kernel has not filled in; it may even name a signal.
        found = signal.sigtimedwait(SIGNALS, 0)
        if found is not None:
            self._heartbeat.note_signal(found.si_signo, found.si_pid)
            log.info("%s from process %d", signal.Signals(found.si_signo).name, found.si_pid)
        elif os.getppid() == self._parent:
            if self._stop_file.exists():
                return Request.STOP
            return Request.PREEMPT if self._is_signalled() else Request.NONE
        # The agent ends a run that its user wants to stop by a signal, too, when its ranks do not see the file.
        if self._stop_file.exists():
            return Request.STOP
        if self.request is Request.NONE:
            with contextlib.suppress(OSError):  # on a full disk the others learn it when the step ends
                self._signalled_file.write_bytes(self._attempt)
        return Request.PREEMPT

    def _is_signalled(self) -> bool:
        """Whether another rank of this attempt was told to end; of an earlier attempt the file may lie there still."""
        try:
            return self._signalled_file.read_bytes() == self._attempt
        except OSError:
            return False
