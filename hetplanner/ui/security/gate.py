"""What stands before every request of `hetplanner dashboard`, ahead of Panel's and Bokeh's own handlers.

- Another user of this machine is refused: they reach loopback as well.
- A Host that is not ours is refused (DNS rebinding). So is an Origin that is not this very address, a WebSocket without
  an Origin, and a page of another site that asks for a part of ours. Tornado's own check differs from release to
  release and skips some of these.
- The link that the terminal prints holds a token that opens once: it becomes a cookie that scripts cannot read and that
  no other site can send, and leaves the address. A session opened with the cookie may launch; the launch token, typed
  in, gives another browser its cookie.
- Sessions learn what their request may do from the request itself, never from what Bokeh's session token carries along.

Behind a login (Jupyter's proxy, over a socket that only this user's processes reach) the login takes the place of link,
cookie and token, and Host is whatever the proxy goes by; all other rules hold.
"""

import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from bokeh.util.token import get_session_id
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.routing import Matcher
from tornado.web import Application, OutputTransform, RedirectHandler, RequestHandler

from hetplanner.ui.security.access import LaunchGuard, comes_from_another_user, host_is_allowed
from hetplanner.ui.security.local_user import is_by_another_user

_log = logging.getLogger(__name__)

PAGE = "/planner"
UNLOCK = "/unlock"
MAX_BROWSERS = 64
MAX_BODY_BYTES = 16 * 2**10
"""The one body that is taken is a typed token."""

_POLICY = "; ".join(
    (
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
)
HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer our own form would come without its Origin
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """Decides about requests. One per server.

    Attributes:
        link_token: what the printed link holds; opens once.
    """

    def __init__(
        self,
        guard: LaunchGuard,
        hosts: Iterable[str],
        *,
        cookie: str = "hetplanner",
        demands_cookie: bool = False,
        behind_login: bool = False,
        frames_from: Iterable[str] = (),
    ) -> None:
        """A gate that no browser has passed.

        Args:
            guard: checks typed tokens.
            hosts: names, without port, that this server goes by; behind a login, origins of a proxy that sends another
                Host (`name` or `name:port`).
            cookie: its name; unlike per port, because browsers keep one jar for all ports of a host.
            demands_cookie: nothing at all is shown without it (a server that other machines reach).
            behind_login: every caller has passed a login that would let them run anything, so all may launch.
            frames_from: origins whose pages may show ours in a frame, if they are of the same site.
        """
        self.guard = guard
        self.hosts = frozenset(hosts)
        self.cookie = cookie
        self.demands_cookie = demands_cookie
        self.behind_login = behind_login
        self.frames_from = tuple(frames_from)
        self.headers = framed_headers(self.frames_from) if self.frames_from else HEADERS
        self.link_token = secrets.token_urlsafe(32)
        self._link_is_used = False
        self._browsers: OrderedDict[str, None] = OrderedDict()  # digests of cookies

    def install(self, application: Application) -> None:
        """Puts the gate before all routes of a Tornado application."""
        handlers: list[Any] = [(_Foreign(self, application), _Refusal, {"gate": self})]
        if self.behind_login:
            # A token is the login's own here. Relative: the proxy has a path before ours.
            handlers.append(("/", RedirectHandler, {"url": PAGE.lstrip("/"), "permanent": False}))
        else:
            handlers += [(_HoldsToken(), _Link, {"gate": self}), (UNLOCK, _Unlock, {"gate": self})]
        if self.demands_cookie:
            handlers.append((_WithoutCookie(), _Demand, {"gate": self}))
        application.add_handlers(r".*", handlers)
        application.add_transform(partial(_Headers, self.headers))  # type: ignore[arg-type]

    # -- who may ------------------------------------------------------------------------------------

    def redeem(self, token: str) -> str | None:
        """A new cookie for the link's token, once; None for anything else."""
        right = hmac.compare_digest(token.encode(), self.link_token.encode())
        if not right or self._link_is_used:
            _log.warning("a link token was refused: %s", "used before" if right else "not of this server")
            return None
        self._link_is_used = True
        return self.new_cookie()

    def new_cookie(self) -> str:
        """A value that a browser may launch with until the server ends; the oldest of many is forgotten."""
        value = secrets.token_urlsafe(32)
        self._browsers[_digest(value)] = None
        while len(self._browsers) > MAX_BROWSERS:
            self._browsers.popitem(last=False)
        return value

    def has_cookie(self, request: HTTPServerRequest) -> bool:
        """Whether the request comes from a browser that was let in."""
        morsel = request.cookies.get(self.cookie)
        return morsel is not None and _digest(morsel.value) in self._browsers

    def reason_against(self, request: HTTPServerRequest) -> str | None:
        """Why a request is foreign; None if it is not."""
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if is_by_another_user(request) if self.behind_login else comes_from_another_user(request):
            return "another user of this machine"
        if not self.behind_login and not host_is_allowed(host, self.hosts):
            return "Host"
        if origin is not None and not _is_own(origin, str(host)) and not self._is_the_proxys(origin):
            return "Origin"
        is_socket = "upgrade" in request.headers or request.path.endswith("/ws")
        if origin is None and (is_socket or request.method not in ("GET", "HEAD")):
            return "missing Origin"
        if _is_embedded(request.headers, bool(self.frames_from)):
            return "Sec-Fetch-Site"
        return None

    def _is_the_proxys(self, origin: str) -> bool:
        """Whether browsers know the proxy by a name of ours, where it sends another one as Host."""
        return self.behind_login and any(_is_own(origin, name) for name in self.hosts)


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def _is_own(origin: str, host: str) -> bool:
    """Whether an Origin header names the address that the request itself went to, port included."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and origin.lower() == f"{parts.scheme}://{host.lower()}"


def _is_embedded(headers: HTTPHeaders, frames: bool) -> bool:
    """Whether a page of another address asks for a script or picture of ours; links to us are fine.

    So are frames of the same site, where some may be: the browser then asks our policy which.
    """
    site = headers.get("Sec-Fetch-Site", "none")
    if site in ("none", "same-origin"):
        return False
    asked = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return asked != ("navigate", "document") and not (
        frames and site == "same-site" and asked == ("navigate", "iframe")
    )


def framed_headers(origins: Iterable[str]) -> dict[str, str]:
    """Headers that let pages of these origins alone show ours in a frame."""
    policy = f"{_POLICY}; frame-ancestors {' '.join(origins)}"
    return {k: v for k, v in HEADERS.items() if k != "X-Frame-Options"} | {"Content-Security-Policy": policy}


# -- routes: the first matcher that takes a request decides ---------------------------------------


class _Foreign(Matcher):
    """Takes what is refused; on all else it leaves the mark that `may_launch` reads."""

    def __init__(self, gate: Gate, application: Any) -> None:
        self._gate, self._application = gate, application

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        # The token leaves the request before anything can log or keep its address.
        presented = request.query_arguments.pop("token", None)
        request.arguments.pop("token", None)
        if presented is not None:
            request.uri, request.query = request.path, ""
            request.presented_token = presented[-1].decode(errors="replace")  # type: ignore[attr-defined]
        request.may_launch = self._gate.behind_login or self._gate.has_cookie(request)  # type: ignore[attr-defined]
        reason = self._gate.reason_against(request)
        if reason is None and not may_launch(request) and self._joins_unlocked(request):
            reason = "session of another browser"
        if reason is None:
            return None
        _log.warning("refused a request (%s)", reason)
        return {}

    def _joins_unlocked(self, request: HTTPServerRequest) -> bool:
        """Whether a WebSocket without the cookie asks for a session that was opened with it."""
        if not request.path.endswith("/ws"):
            return False
        _, _, token = request.headers.get("Sec-WebSocket-Protocol", "").partition(",")
        try:
            session = self._application.get_session(request.path.removesuffix("/ws"), get_session_id(token.strip()))
        except (KeyError, TypeError, ValueError):  # no token, or no such session: Bokeh says so itself
            return False
        return may_launch(session.document.session_context.request)


class _HoldsToken(Matcher):
    """Takes a link with a token in it."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return {} if hasattr(request, "presented_token") else None


class _WithoutCookie(Matcher):
    """Takes what comes from a browser that was not let in."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return None if may_launch(request) else {}


def may_launch(request: Any) -> bool:
    """Whether a request, or the request that opened a session, came with the cookie; false where no gate stands."""
    return getattr(request, "may_launch", False) is True


# -- answers: fixed texts; nothing of the request is repeated -------------------------------------


class _Answer(RequestHandler):
    gate: Gate

    def initialize(self, gate: Gate) -> None:
        self.gate = gate

    def say(self, status: int, title: str, words: str, *, form: bool = False) -> None:
        """A page of fixed words, with a field for the launch token."""
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.finish(_PAGE.format(title=title, words=words, form=_FORM if form else ""))

    def let_in(self, cookie: str) -> None:
        """Hands the cookie over and leads to the page, whose address holds no token."""
        secure = self.request.protocol == "https"
        self.set_cookie(self.gate.cookie, cookie, path="/", httponly=True, samesite="Strict", secure=secure)
        self.set_header("Cache-Control", "no-store")
        self.redirect(PAGE, status=303)


class _Refusal(_Answer):
    def prepare(self) -> None:
        self.say(403, "Refused", _FOREIGN_WORDS)


class _Demand(_Answer):
    def prepare(self) -> None:
        self.say(401, "A token is needed", _DEMAND_WORDS, form=True)


class _Link(_Answer):
    def get(self) -> None:
        if may_launch(self.request):
            self.redirect(PAGE, status=303)  # the same browser follows its link again
            return
        cookie = self.gate.redeem(self.request.presented_token)  # type: ignore[attr-defined]
        if cookie is not None:
            self.let_in(cookie)
        else:
            self.say(403, "This link does not open", _LINK_WORDS, form=True)


class _Unlock(_Answer):
    def get(self) -> None:
        self.say(200, "Unlock launching", _UNLOCK_WORDS, form=True)

    def post(self) -> None:
        if self.gate.guard.check(self.get_body_argument("token", "")):
            self.let_in(self.gate.new_cookie())
        else:
            self.say(403, "Not the launch token", _UNLOCK_WORDS, form=True)


class _Headers(OutputTransform):
    """Adds headers to every answer: no framing, no address of ours to others, nothing from elsewhere."""

    def __init__(self, added: dict[str, str], request: HTTPServerRequest) -> None:
        super().__init__(request)
        self._added = added

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        for name, value in self._added.items():
            headers[name] = value
        return status_code, headers, chunk


_FOREIGN_WORDS = (
    "This server answers under its own address only. Open the link that its terminal printed; other names can be"
    " allowed in the variable <code>HETPLANNER_ALLOWED_HOSTS</code>."
)
_DEMAND_WORDS = (
    "Other machines reach this dashboard, so it shows nothing without its token. Open the link that its terminal"
    " printed, or type the launch token."
)
_LINK_WORDS = (
    "It was opened before, or is not of this server. Type the launch token printed in the terminal, or"
    f' <a href="{PAGE}">look and plan without it</a>.'
)
_UNLOCK_WORDS = "Type the launch token that the server printed in its terminal."
_FORM = (
    f'<form method="post" action="{UNLOCK}"><input type="password" name="token" aria-label="Launch token" autofocus'
    ' autocomplete="off"> <button>Unlock</button></form>'
)
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>hetplanner: {title}</title>'
    '<meta name="viewport" content="width=device-width">'
    "<style>:root{{color-scheme:light dark}}body{{font:16px/1.5 Roboto,Helvetica,Arial,sans-serif;max-width:34em;"
    "margin:15vh auto;padding:0 1em}}input,button{{font:inherit;padding:.35em .7em}}</style>"
    "<h1>{title}</h1><p>{words}</p>{form}"
)
