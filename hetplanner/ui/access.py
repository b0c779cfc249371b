"""Who may do what: a launch token typed into the page, and a list of Host names that are ours.

`panel serve` answers any Host without a password, so a page of some other site could reach it by DNS rebinding.
Looking and planning need a Host of ours; launching and stopping also need the token that was printed in the terminal.
"""

import hmac
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hetplanner.errors import InvalidInput

_log = logging.getLogger(__name__)

TOKEN_VARIABLE = "HETPLANNER_LAUNCH_TOKEN"
HOSTS_VARIABLE = "HETPLANNER_ALLOWED_HOSTS"
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

MAX_TRIES = 5
WINDOW_S = 30.0
MIN_TOKEN_LENGTH = 8

# No 0/O, 1/I/L: the token is read from one window and typed into another.
_ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"


class TooManyTries(InvalidInput):
    """Wrong tokens came too fast."""


def new_token() -> str:
    """Twelve random characters in groups of four: 59 bits, guessed at no more than ten a minute."""
    text = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    return "-".join(text[i : i + 4] for i in range(0, 12, 4))


class LaunchGuard:
    """Checks launch tokens in constant time; after `MAX_TRIES` wrong ones within `WINDOW_S` seconds all wait.

    The limit is per process: an attacker must not get more tries by opening more sessions.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        if len(token) < MIN_TOKEN_LENGTH:
            raise InvalidInput(f"{TOKEN_VARIABLE}: must have at least {MIN_TOKEN_LENGTH} characters, got {len(token)}")
        self.token = token
        self._clock = clock
        self._wrong: deque[float] = deque(maxlen=MAX_TRIES)
        self._lock = threading.Lock()

    def check(self, text: str) -> bool:
        """Whether `text` is the token; blanks around it and lower case are forgiven. Raises TooManyTries."""
        with self._lock:
            now = self._clock()
            if len(self._wrong) == MAX_TRIES and now - self._wrong[0] < WINDOW_S:
                wait_s = WINDOW_S - (now - self._wrong[0])
                raise TooManyTries(f"token: {MAX_TRIES} wrong tries; wait {wait_s:.0f} s and type it again")
            given = text[:200].strip()
            right = any(hmac.compare_digest(form.encode(), self.token.encode()) for form in (given, given.upper()))
            if not right:
                self._wrong.append(now)
                _log.warning("a wrong launch token was typed")
            return right


def allowed_hosts(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Host names (without port) that sessions may come from: loopback, and those of `HETPLANNER_ALLOWED_HOSTS`."""
    extra = {h.strip().lower() for h in environ.get(HOSTS_VARIABLE, "").split(",")}
    return LOOPBACK_HOSTS | (extra - {""})


def host_is_allowed(header: str | None, allowed: Iterable[str]) -> bool:
    """Whether a Host header, with or without a port, names one of `allowed`; a missing one does not."""
    if not header or len(header) > 255:
        return False
    name, colon, port = header.strip().lower().rpartition(":")
    if not colon or "]" in port:  # no port: "localhost", "[::1]"
        name, port = header.strip().lower(), "80"
    return port.isdecimal() and name in set(allowed)


def request_is_ours(request: Any, allowed: Iterable[str]) -> bool:
    """Whether the request that opened a session was sent to a host of ours.

    Bokeh lets a browser say in its session token which headers it sent; the connection's own host cannot be made up.
    """
    names = frozenset(allowed)
    told = {str(name).lower(): str(value) for name, value in request.headers.items()}
    return host_is_allowed(told.get("host"), names) and host_is_allowed(getattr(request, "host", None), names)


_guard: LaunchGuard | None = None
_guard_lock = threading.Lock()


def launch_token() -> tuple[str, bool]:
    """The token of this process, and whether it was given by the variable, which then leaves the environment.

    Searches, the agent and its runs inherit the environment, and none of them has to know the token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, "")
    return given or new_token(), bool(given)


def process_guard() -> LaunchGuard:
    """The one guard of this process; the first call prints its token to the terminal."""
    global _guard
    with _guard_lock:
        if _guard is None:
            token, is_given = launch_token()
            _guard = LaunchGuard(token)
            if not is_given:
                sys.stdout.write(
                    f"\n  hetplanner launch token: {_guard.token}\n  (type it into the page to launch runs)\n\n"
                )
                sys.stdout.flush()
        return _guard
