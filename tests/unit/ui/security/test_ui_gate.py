"""The gate before the dashboard's routes, in front of a small application: who gets through, and what is answered."""

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import httpx
import pytest
from bokeh.util.token import generate_jwt_token
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler, websocket_connect

from hetplanner.ui.security.access import LaunchGuard, allowed_hosts
from hetplanner.ui.security.gate import HEADERS, MAX_BROWSERS, PAGE, Gate, may_launch
from tests.support.processes.own_loop import finish

TOKEN = "ABCD-EFGH-JKMN"
UNLOCKED = generate_jwt_token("unlocked")
LOCKED = generate_jwt_token("locked")


class Page(RequestHandler):
    """Says whether it may launch, and what it was asked."""

    def get(self) -> None:
        self.write({"may_launch": may_launch(self.request), "uri": self.request.uri})


class Socket(WebSocketHandler):
    """A WebSocket whose own check lets everybody in."""

    def check_origin(self, origin: str) -> bool:
        return True

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return subprotocols[0] if subprotocols else None

    def open(self) -> None:
        self.write_message("open")


class Sessions(Application):
    """Knows two sessions, as Bokeh's application does."""

    def get_session(self, app_path: str, session_id: str) -> object:
        if app_path != PAGE or session_id not in ("unlocked", "locked"):
            raise ValueError(f"Session {session_id} does not exist")
        request = SimpleNamespace(may_launch=session_id == "unlocked")
        return SimpleNamespace(document=SimpleNamespace(session_context=SimpleNamespace(request=request)))


class Visitor:
    """Asks the server."""

    def __init__(self, gate: Gate, port: int) -> None:
        self.gate, self.port = gate, port
        self.own = f"http://127.0.0.1:{port}"

    async def ask(self, path: str = PAGE, method: str = "GET", cookie: str = "", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items() if name != "form"}
        content = headers.get("form")
        if content is not None:
            named["Content-Type"] = "application/x-www-form-urlencoded"
        if cookie:
            named["Cookie"] = f"{self.gate.cookie}={cookie}"
        async with httpx.AsyncClient(base_url=self.own, verify=False) as client:
            return await client.request(method, path, headers=named, content=content)

    async def connects(self, session: str = LOCKED, cookie: str = "", **headers: str) -> bool:
        named = {"Sec-WebSocket-Protocol": f"bokeh, {session}"} | headers
        if cookie:
            named["Cookie"] = f"{self.gate.cookie}={cookie}"
        try:
            socket = await websocket_connect(HTTPRequest(f"ws://127.0.0.1:{self.port}{PAGE}/ws", headers=named))
        except HTTPClientError:  # 401 or 403
            return False
        assert await socket.read_message() == "open"
        socket.close()
        return True


def visiting(story: Callable[[Visitor], Awaitable[None]], **settings: object) -> None:
    """Runs a story against a small application behind a gate."""

    async def run() -> None:
        gate = Gate(LaunchGuard(TOKEN), allowed_hosts({}), **settings)
        application = Sessions([(PAGE, Page), (f"{PAGE}/ws", Socket), ("/static/x.js", Page)])
        gate.install(application)
        server = HTTPServer(application)
        socket, port = bind_unused_port()
        server.add_socket(socket)
        try:
            await story(Visitor(gate, port))
        finally:
            server.stop()
            await server.close_all_connections()

    finish(run())


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "localhost.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "https://localhost:5006@evil.example"},
        {"Origin": "http://[::1"},
        {"Origin": "file://127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_foreign_requests_get_a_reason_and_no_page(headers):
    async def story(visitor):
        for path in (PAGE, "/static/x.js", "/unlock", f"{PAGE}?token={visitor.gate.link_token}", "/nowhere"):
            answer = await visitor.ask(path, **headers)
            assert answer.status_code == 403
            assert "Refused" in answer.text
            assert "evil" not in answer.text
            assert "set-cookie" not in answer.headers

    visiting(story)


def test_our_own_pages_get_through_and_may_not_launch():
    async def story(visitor):
        for headers in (
            {},
            {"Origin": visitor.own},
            {"Host": f"LOCALHOST:{visitor.port}", "Origin": f"http://localhost:{visitor.port}"},
            {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
            {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        ):
            answer = await visitor.ask(**headers)
            assert answer.json() == {"may_launch": False, "uri": PAGE}
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS

    visiting(story)


def test_the_link_opens_once_and_its_token_leaves_the_address(caplog):
    async def story(visitor):
        link = f"{PAGE}?token={visitor.gate.link_token}&page=run"
        wrong = await visitor.ask(f"{PAGE}?token=<script>guess")
        assert (wrong.status_code, "guess" in wrong.text, "set-cookie" in wrong.headers) == (403, False, False)
        first = await visitor.ask(link)
        assert (first.status_code, first.headers["location"]) == (303, PAGE)
        said = first.headers["set-cookie"]
        assert all(word in said for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert visitor.gate.link_token not in said
        cookie = said.partition("=")[2].partition(";")[0]
        assert (await visitor.ask(cookie=cookie)).json()["may_launch"]
        replayed = await visitor.ask(link)
        assert (replayed.status_code, "set-cookie" in replayed.headers) == (403, False)
        again = await visitor.ask(link, cookie=cookie)
        assert (again.status_code, "set-cookie" in again.headers) == (303, False)
        for guess in ("x", cookie[:-1], cookie + "x", TOKEN, visitor.gate.link_token):
            assert not (await visitor.ask(cookie=guess)).json()["may_launch"]
        logged = [r.getMessage() for r in caplog.records if r.name.startswith(("tornado", "hetplanner"))]
        assert any("303 GET /planner" in line for line in logged)
        assert not [line for line in logged for secret in (visitor.gate.link_token, cookie) if secret in line]

    with caplog.at_level(logging.DEBUG):
        visiting(story)


def test_a_typed_token_gives_a_cookie_also_after_many_guesses():
    async def story(visitor):
        right = await visitor.ask("/unlock", "POST", Origin=visitor.own, form=f"token={TOKEN.lower()}")
        assert (right.status_code, right.headers["location"]) == (303, PAGE)
        assert "HttpOnly" in right.headers["set-cookie"]
        for _ in range(50):
            wrong = await visitor.ask("/unlock", "POST", Origin=visitor.own, form="token=%3Cscript%3E")
            assert (wrong.status_code, "<script" in wrong.text) == (403, False)
        late = await visitor.ask("/unlock", "POST", Origin=visitor.own, form=f"token={TOKEN}")
        assert (late.status_code, "set-cookie" in late.headers) == (303, True)

    visiting(story)


@pytest.mark.parametrize("origin", [{}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_a_form_of_another_page_unlocks_nothing(origin):
    async def story(visitor):
        answer = await visitor.ask("/unlock", "POST", form=f"token={TOKEN}", **origin)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)

    visiting(story)


def test_a_websocket_needs_our_origin_and_an_unlocked_session_its_cookie():
    async def story(visitor):
        own, cookie = visitor.own, visitor.gate.new_cookie()
        assert await visitor.connects(Origin=own)
        assert not await visitor.connects()
        for origin in ("http://evil.example", "null", "http://localhost:1", f"http://localhost:{visitor.port}"):
            assert not await visitor.connects(Origin=origin, cookie=cookie)
        assert not await visitor.connects(Origin=own, Host="evil.example")
        assert await visitor.connects(UNLOCKED, Origin=own, cookie=cookie)
        assert not await visitor.connects(UNLOCKED, Origin=own)
        assert not await visitor.connects(UNLOCKED, Origin=own, cookie="guess")
        assert await visitor.connects("no.token!", Origin=own)  # for Bokeh to refuse

    visiting(story)


def test_a_server_that_others_reach_shows_nothing_without_the_cookie():
    async def story(visitor):
        for path in (PAGE, "/static/x.js", "/nowhere"):
            answer = await visitor.ask(path)
            assert (answer.status_code, 'name="token"' in answer.text) == (401, True)
        assert not (await visitor.ask(cookie="guess")).is_success
        assert not await visitor.connects(Origin=visitor.own)
        cookie = visitor.gate.new_cookie()
        assert (await visitor.ask(cookie=cookie)).json()["may_launch"]
        assert (await visitor.ask("/unlock")).status_code == 200

    visiting(story, demands_cookie=True)


def test_behind_a_login_all_may_launch_under_any_name_and_foreign_origins_are_refused_still():
    async def story(visitor):
        public = {"Host": "hub.example", "Origin": "https://hub.example"}
        for headers in ({}, {"Host": "hub.example"}, public):
            answer = await visitor.ask(f"{PAGE}?token=of-the-login", **headers)
            assert answer.json() == {"may_launch": True, "uri": PAGE}
            assert "set-cookie" not in answer.headers
        assert await visitor.connects(**public)
        for headers in ({}, {"Host": "hub.example"}, public | {"Origin": "https://evil.example"}):
            assert not await visitor.connects(**headers)
        assert (await visitor.ask(Origin="http://evil.example")).status_code == 403
        assert (await visitor.ask("/unlock")).status_code == 404
        first = await visitor.ask("/")
        assert (first.status_code, first.headers["location"]) == (302, "planner")

    visiting(story, behind_login=True)


def test_behind_a_login_a_proxy_may_send_another_host_than_browsers_know():
    async def story(visitor):
        visitor.gate.hosts = frozenset({"hub.example", "lab.example:8443"})
        for origin in ("https://hub.example", "https://lab.example:8443"):
            assert await visitor.connects(Origin=origin)
        for origin in ("https://lab.example", "https://hub.example:1", "https://evil.example", "null"):
            assert not await visitor.connects(Origin=origin)

    visiting(story, behind_login=True)


def test_names_of_ours_are_no_origins_where_no_login_stands():
    async def story(visitor):
        visitor.gate.hosts |= {"hub.example"}
        assert not await visitor.connects(Origin="https://hub.example")

    visiting(story)


def test_the_oldest_of_many_browsers_is_forgotten():
    gate = Gate(LaunchGuard(TOKEN), allowed_hosts({}))
    first = gate.new_cookie()
    values = {gate.new_cookie() for _ in range(MAX_BROWSERS)}
    assert len(values) == MAX_BROWSERS

    def known(value: str) -> bool:
        return gate.has_cookie(SimpleNamespace(cookies={gate.cookie: SimpleNamespace(value=value)}))

    assert not known(first)
    assert all(known(value) for value in values)
