"""Looks for hosts that a run goes on without: whether they are back and could run their part."""

import logging
import threading
from collections.abc import Callable, Sequence

from hetplanner.errors import HetplannerError
from hetplanner.launchers.hosts_file import PlacedHost

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Between two looks at hosts that are away."""


class ReturnWatch:
    """A thread that looks at hosts which are away, until one is back.

    Args:
        away: the hosts.
        look: what is wrong with one of them, nothing if it could run its part. Raises HetplannerError.
    """

    def __init__(self, away: Sequence[PlacedHost], look: Callable[[PlacedHost], list[str]]) -> None:
        self._away, self._look = away, look
        self._closed = threading.Event()
        self._back: tuple[str, ...] = ()
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="returning hosts", daemon=True)
        self._thread.start()

    @property
    def back(self) -> tuple[str, ...]:
        """Names of hosts that are back; none until one is."""
        return self._back

    def close(self) -> None:
        """Ends it; an answer may be waited for a moment longer."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S) and not self._back:
            self._back = tuple(host.name for host in self._away if self._is_back(host))

    def _is_back(self, host: PlacedHost) -> bool:
        try:
            told = self._look(host)
        except HetplannerError as error:
            told = [str(error)]
        words = "; ".join(told)
        if words != self._said.get(host.name):
            log.info("host %s: %s", host.name, words or "is back")
            self._said[host.name] = words
        return not told
