"""The server's garbage collection, kept from stopping all pages for half a second.

A session has a few hundred thousand objects, which live as long as it does; Python looks through all of them whenever
so many new ones have come, and Panel has it do so whenever a session ends. Here what survives a full collection is
left out of the next ones for a while (frozen). What is frozen is never freed if it hangs together in a ring, as a
session does: so some time after sessions ended everything is looked at once, and the memory is given back to the
system, however still the server is then.
"""

import contextvars
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop

ENDED_EVERY_S = 30.0
"""At most this often everything is looked at because sessions ended: each leaves some 20 MiB."""
SESSIONS_S = 2.0
"""So long after a session ended, the others that expire with it have ended, too, and are found at one go."""
EVERY_S = 600.0
"""At most this often otherwise: pages that stay open for days make garbage as well."""


def in_the_loop(delay_s: float, call: Callable[[], object]) -> None:
    """Calls it after a delay, outside of any session: a loop keeps its calls' contexts, and those their documents."""
    contextvars.Context().run(IOLoop.current().call_later, delay_s, call)


def give_back() -> None:
    """Has the C library return free memory to the system; it keeps what lies between pieces in use."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has none
            trim(0)


class Collector:
    """Told of full collections by Python, and of sessions that ended by the server.

    Args:
        clock: seconds, monotonic.
        later: calls a function so many seconds later; by default in the server's loop.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], object]], object] = in_the_loop,
    ) -> None:
        self._clock, self._later = clock, later
        self._all_s = clock()
        self._ended = False

    def install(self) -> None:
        """From now on; asking again changes nothing."""
        if self._told not in gc.callbacks:
            gc.callbacks.append(self._told)

    def session_ended(self, *_: Any) -> None:
        """There is something to find among what was left out: it is looked for when it is time."""
        if not self._ended:
            self._later(max(0.0, self._all_s + ENDED_EVERY_S - self._clock()) + SESSIONS_S, self._free)
        self._ended = True

    def _free(self) -> None:
        """Has all looked at, unless that has been done since the session ended."""
        if self._ended:
            gc.collect()
        give_back()

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() - self._all_s >= (ENDED_EVERY_S if self._ended else EVERY_S):
            self._all_s, self._ended = self._clock(), False
            gc.unfreeze()


COLLECTOR = Collector()
"""Of the process."""
