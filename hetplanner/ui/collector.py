"""The server's garbage collection, kept from stopping all pages for half a second.

A session has a few hundred thousand objects, which live as long as it does; Python looks through all of them whenever
so many new ones have come, and Panel has it do so whenever a session ends. Here what survives a full collection is
left out of the next ones for a while.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

ENDED_EVERY_S = 30.0
"""At most this often everything is looked at because sessions ended: each leaves some 20 MiB."""
EVERY_S = 600.0
"""At most this often otherwise: pages that stay open for days make garbage as well."""


class Collector:
    """Told of full collections by Python, and of sessions that ended by the server.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all_s = clock()
        self._ended = False

    def install(self) -> None:
        """From now on; asking again changes nothing."""
        if self._told not in gc.callbacks:
            gc.callbacks.append(self._told)

    def session_ended(self, *_: Any) -> None:
        """There is something to find among what was left out."""
        self._ended = True

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
