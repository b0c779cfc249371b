"""Who may do what: a launch token typed into the page, and a list of Host names that are ours.

`panel serve` answers any Host without a password, so a page of some other site could reach it by DNS rebinding.
Looking and planning need a Host of ours; launching and stopping also need the token that was printed in the terminal.
"""

import hmac
import os
import secrets
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.ui.security.local_user import is_by_another_user

TOKEN_VARIABLE = "HETPLANNER_LAUNCH_TOKEN"
HOSTS_VARIABLE = "HETPLANNER_ALLOWED_HOSTS"
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

MIN_TOKEN_LENGTH = 12

# No 0/O, 1/I/L: the token is read from one window and typed into another.
_ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"


def new_token() -> str:
    """Twelve random characters in groups of four.

    They are 59 bits: ten thousand guesses a second find them in a million years (31^12 / 2 / 1e4 / 3.2e7). So wrong
    ones need not be counted, and no caller can lock out a user with the right one.
    """
    text = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    return "-".join(text[i : i + 4] for i in range(0, 12, 4))


class LaunchGuard:
    """Checks launch tokens in constant time. The right one is taken always, however many wrong ones came before."""

    def __init__(self, token: str) -> None:
        if len(token) < MIN_TOKEN_LENGTH:
            raise InvalidInput(f"{TOKEN_VARIABLE}: must have at least {MIN_TOKEN_LENGTH} characters, got {len(token)}")
        self.token = token

    def check(self, text: str) -> bool:
        """Whether `text` is the token; blanks around it and lower case are forgiven."""
        given = text[:200].strip()
        return any(hmac.compare_digest(form.encode(), self.token.encode()) for form in (given, given.upper()))


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
    Another user of this machine is a stranger, too.
    """
    names = frozenset(allowed)
    told = {str(name).lower(): str(value) for name, value in request.headers.items()}
    asked = host_is_allowed(told.get("host"), names) and host_is_allowed(getattr(request, "host", None), names)
    return asked and not comes_from_another_user(request)


def comes_from_another_user(request: Any) -> bool:
    """Whether another user of this machine asks by a name of loopback; requests by other names come through a proxy."""
    return host_is_allowed(getattr(request, "host", None), LOOPBACK_HOSTS) and is_by_another_user(request)


_guard: LaunchGuard | None = None
_guard_lock = threading.Lock()


def launch_token() -> tuple[str, bool]:
    """The token of this process, and whether it was given by the variable, which then leaves the environment.

    Searches, the agent and its runs inherit the environment, and none of them has to know the token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, "")
    return given or new_token(), bool(given)


def process_guard() -> LaunchGuard:
    """The one guard of this process; the first call, with `panel serve --warm` before it serves, prints its token."""
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
