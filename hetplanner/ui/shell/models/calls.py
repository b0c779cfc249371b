"""Calls that wait for others (the agent, a child process), made off the event loop and answered in it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hetplanner.errors import HetplannerError
from hetplanner.ui.shell.models.session import Session

_log = logging.getLogger(__name__)

_executor = ThreadPoolExecutor(4, thread_name_prefix="call")


def submit(call: Callable[[], Any]) -> "Future[Any]":
    """Runs a call in one of this process's few threads."""
    return _executor.submit(call)


class Calls:
    """The calls of one session. `take` hands over answers; what failed becomes a notice, or goes to `failed`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: list[tuple[Future[Any], Callable[[Any], None], Callable[[str], None]]] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def make(
        self, call: Callable[[], Any], then: Callable[[Any], None], failed: Callable[[str], None] | None = None
    ) -> None:
        """Starts a call.

        Args:
            call: may take long; it must not touch the session.
            then: gets its result.
            failed: gets one line instead of the notice.
        """
        self._open.append((submit(call), then, failed or self._notice))

    def _notice(self, text: str) -> None:
        self._session.notify("error", text)

    def take(self) -> None:
        """Passes on what has been answered since."""
        ready = [entry for entry in self._open if entry[0].done()]
        self._open = [entry for entry in self._open if entry not in ready]
        for future, then, failed in ready:
            error = future.exception()
            if error is None:
                with self._session.reporting():
                    then(future.result())
            elif isinstance(error, HetplannerError):
                failed(str(error))
            else:
                _log.error("a call failed", exc_info=error)
                failed(f"{type(error).__name__}: {str(error)[:200]}; see the server's log")
