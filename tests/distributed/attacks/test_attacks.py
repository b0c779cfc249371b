"""The attack script: what strangers may try against `hetplanner dashboard` and `panel serve`, over real sockets.

After each attack nothing was launched, the page still answers, and nothing that was sent comes back as markup.
"""

import asyncio
import json
import re
import secrets
import socket
from pathlib import Path

import httpx
import pytest
from bokeh.util.token import generate_jwt_token, get_session_id, get_token_payload
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from hetplanner.runs.agent.connection import find_agent
from tests.support.files.hostile import MARKUP, NAMES, SCRIPT
from tests.support.pages.served_dashboard import TOKEN, Dashboard, Server
from tests.support.processes.other_user import CAN_BECOME, as_another_user
from tests.support.processes.own_loop import finish
from tests.support.processes.patience import HANG_S

pytestmark = pytest.mark.distributed
PATHS = ("/planner", "/planner/autoload.js?bokeh-autoload-element=1", "/planner/metadata", "/static/js/bokeh.min.js")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    one = Dashboard(tmp_path_factory.mktemp("dashboard"))
    one.start()
    one.link()
    yield one
    the_page_opens(one)
    one.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("plain"))
    one.start()
    yield one
    the_page_opens(one)
    one.stop()


@pytest.fixture(params=["dashboard", "plain"])
def server(request):
    """Each of the two ways to serve; what a test did to it left it whole."""
    one = request.getfixturevalue(request.param)
    yield one
    unharmed(one)


def unharmed(server: Server) -> None:
    """It runs, it answers, and it started neither an agent nor a run."""
    assert server.process.poll() is None
    assert get(server, "/static/js/bokeh.min.js", "HEAD").status_code == 200
    assert find_agent(server.home) is None
    assert not list((server.home / "runs").glob("*"))
    said = (server.home / "server.txt").read_text()
    assert TOKEN not in said
    assert len(re.findall("token=", said)) <= 1  # the printed link


def get(server: Server, path: str, method: str = "GET", cookies: dict | None = None, **headers: str) -> httpx.Response:
    address = f"http://127.0.0.1:{server.port}"
    return httpx.request(method, address + path, headers=headers, cookies=cookies, timeout=HANG_S)


def session_token(server: Server, cookies: dict | None = None) -> str:
    return re.search(r'"token":\s*"([^"]+)"', get(server, "/planner", cookies=cookies).text)[1]


async def connect(server: Server, token: str, **headers: str) -> WebSocketClientConnection:
    named = {"Sec-WebSocket-Protocol": f"bokeh, {token}"} | headers
    return await websocket_connect(HTTPRequest(f"ws://127.0.0.1:{server.port}/planner/ws", headers=named))


async def opens(server: Server, token: str, **headers: str) -> bool:
    """Whether the server acknowledges the connection."""
    try:
        connection = await connect(server, token, **headers)
    except HTTPClientError:
        return False
    first = await connection.read_message()
    connection.close()
    return first is not None and "ACK" in str(first)


def own(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def the_page_opens(server: Server) -> None:
    """After all of it a page is served, and its session answers."""
    assert finish(opens(server, session_token(server), Origin=own(server)))
    unharmed(server)


def is_not_echoed(text: str) -> None:
    assert not [mark for mark in MARKUP if mark in text]


# -- who may talk to it ---------------------------------------------------------------------------


FOREIGN = (
    {"Host": "evil.example"},
    {"Host": "localhost.evil.example:80"},
    {"Host": SCRIPT.replace("/", "")},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
)


def test_a_foreign_request_gets_nothing_from_the_dashboard(dashboard):
    token = session_token(dashboard)
    for headers in FOREIGN:
        for path in (*PATHS, "/unlock", "/planner?token=x"):
            answer = get(dashboard, path, **headers)
            assert answer.status_code in (400, 403)  # 400: Tornado itself does not take such a Host
            assert "Bokeh" not in answer.text
            is_not_echoed(answer.text)
        assert not finish(opens(dashboard, token, **({"Origin": own(dashboard)} | headers)))
    unharmed(dashboard)


def test_a_foreign_host_gets_no_data_from_a_plain_server(plain):
    for host in ("evil.example", f"evil.example:{plain.port}"):
        page = get(plain, "/planner", Host=host).text
        assert not finish(pulls(plain, re.search(r'"token":\s*"([^"]+)"', page)[1], f"127.0.0.1:{plain.port}"))
    unharmed(plain)


def sees(server: Server) -> bool:
    """Whether somebody who opens the page over loopback gets to see a cluster in it."""
    page = get(server, "/planner")
    found = re.search(r'"token":\s*"([^"]+)"', page.text)
    host = f"127.0.0.1:{server.port}"
    made = generate_jwt_token(
        secrets.token_hex(22), extra_payload={"headers": {"Host": host}, "cookies": {}, "arguments": {}}
    )
    tokens = [made, *(found.groups() if found else ())]
    return any(finish(pulls(server, token, host)) for token in tokens)


def unlocks(server: Server) -> list[int | bool]:
    """What somebody is answered who knows the launch token."""
    answer = httpx.post(own(server) + "/unlock", data={"token": TOKEN}, headers={"Origin": own(server)}, timeout=HANG_S)
    return [answer.status_code, "set-cookie" in answer.headers]


@pytest.mark.skipif(not CAN_BECOME, reason="only root becomes another user; test_ui_local_user holds who is told apart")
def test_another_user_of_the_machine_sees_and_opens_nothing(server):
    assert sees(server)  # also for the modules that the other user could not import
    assert as_another_user(sees, server) is False
    if isinstance(server, Dashboard):
        assert unlocks(server) == [303, True]
        assert as_another_user(unlocks, server) == [403, False]


def test_a_websocket_without_or_with_a_foreign_origin_is_refused(dashboard):
    token = session_token(dashboard)
    assert finish(opens(dashboard, token, Origin=own(dashboard)))
    for headers in ({}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "http://localhost:1"}):
        assert not finish(opens(dashboard, token, **headers))
    # Tornado 6.6 takes any Origin that equals the Host: rebinding. Earlier ones take a WebSocket without Origin.
    assert not finish(opens(dashboard, token, Origin="http://evil.example:1", Host="evil.example:1"))
    unharmed(dashboard)


def test_guessed_and_replayed_tokens_open_nothing(dashboard):
    link = dashboard.link().partition(str(dashboard.port))[2]
    for guess in ("", "x", TOKEN, "../../etc/passwd", "%3Cscript%3Ewindow", "x" * 5000, link.partition("=")[2][:-1]):
        answer = get(dashboard, f"/planner?token={guess}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        is_not_echoed(answer.text)
    first = get(dashboard, link)
    assert first.status_code == 303
    cookies = dict(first.cookies)
    replayed = get(dashboard, link)
    assert (replayed.status_code, "set-cookie" in replayed.headers) == (403, False)

    # What the page holds for its scripts tells no cookie, and is worth nothing without it.
    token = session_token(dashboard, cookies)
    assert not [v for v in cookies.values() if v in json.dumps(get_token_payload(token)) or v in token]
    (name,) = cookies
    assert finish(opens(dashboard, token, Origin=own(dashboard), Cookie=f"{name}={cookies[name]}"))
    assert not finish(opens(dashboard, token, Origin=own(dashboard)))
    assert not finish(opens(dashboard, token, Origin=own(dashboard), Cookie=f"{name}=guess"))
    unharmed(dashboard)


def test_typed_guesses_open_nothing_and_lock_nobody_out(dashboard):
    answers = [
        httpx.post(own(dashboard) + "/unlock", data={"token": f"{guess}{SCRIPT}"}, headers={"Origin": own(dashboard)})
        for guess in range(30)
    ]
    assert {a.status_code for a in answers} == {403}
    assert not [a for a in answers if "set-cookie" in a.headers]
    for answer in answers:
        is_not_echoed(answer.text)
    right = httpx.post(own(dashboard) + "/unlock", data={"token": TOKEN}, headers={"Origin": own(dashboard)})
    assert (right.status_code, "set-cookie" in right.headers) == (303, True)
    foreign = httpx.post(own(dashboard) + "/unlock", data={"token": TOKEN}, headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False)
    unharmed(dashboard)


def test_a_session_of_somebodys_own_making_is_refused_or_locked(server):
    payload = {"headers": {"Host": "localhost"}, "cookies": {f"hetplanner-{server.port}": "x"}, "arguments": {}}
    for token in (
        generate_jwt_token("a" * 44, extra_payload=payload),
        generate_jwt_token(get_session_id(session_token(server)), extra_payload=payload),
        generate_jwt_token("../../etc/passwd", expiration=10**9),
        "no.token", "", "e30", "A" * 60_000,
    ):  # fmt: skip
        opened = finish(opens(server, token, Origin=own(server)))
        assert not (opened and isinstance(server, Dashboard))
    if not isinstance(server, Dashboard):
        assert finish(pulls(server, session_token(server), f"127.0.0.1:{server.port}"))
    assert not finish(pulls(server, generate_jwt_token("b" * 44, extra_payload=payload), "evil.example"))


async def pulls(server: Server, token: str, host: str) -> bool:
    """Whether a session that says it is local, over a connection that is not, gets to see a cluster."""
    try:
        connection = await connect(server, token, Host=host, Origin=f"http://{host}")
        await connection.read_message()
        for part in ('{"msgid":"1","msgtype":"PULL-DOC-REQ"}', "{}", "{}"):
            await connection.write_message(part)
        parts: list[object] = []
        while None not in parts and '{"doc":' not in str(parts[-1:]):  # the end of all, or the document
            parts.append(await asyncio.wait_for(connection.read_message(), 60))
        connection.close()
        return "dtfm" in str(parts)
    except HTTPClientError:
        return False


# -- what it may be sent --------------------------------------------------------------------------


async def survives(server: Server, token: str, fragments: list) -> None:
    """The server ends the connection or goes on; another one opens right after."""
    connection = await connect(server, token, Origin=own(server))
    await connection.read_message()
    for fragment in fragments:
        try:
            await connection.write_message(fragment, binary=isinstance(fragment, bytes))
        except Exception:  # it hung up; that is one of its rights
            break
    connection.close()
    assert await opens(server, token, Origin=own(server))


def patch(event: dict) -> list[str]:
    return ['{"msgid":"1","msgtype":"PATCH-DOC"}', "{}", json.dumps({"events": [event]})]


MESSAGES: tuple[list, ...] = (
    ["x"],
    [b"\x00\xff" * 1000],
    ["{" * 100_000],
    ["[" * 100_000, "{}", "{}"],
    ['{"msgtype":"NO-SUCH"}', "{}", "{}"],
    ['{"msgid":"1","msgtype":"PATCH-DOC"}', "{}", "[" * 20_000 + "]" * 20_000],
    patch({"kind": "ModelChanged", "model": {"id": "p1"}, "attr": "__class__", "new": "x"}),
    patch({"kind": "ModelChanged", "model": {"id": "p1001"}, "attr": "value", "new": 1e308}),
    patch({"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": {"type": "event", "name": "no-such"}}),
    patch({"kind": "RootAdded", "model": {"type": "object", "name": "os.system", "id": "x"}}),
    patch({"kind": "TitleChanged", "title": SCRIPT}),
    ["x" * (21 * 2**20)],
)


def test_malformed_and_oversized_messages_break_nothing(server):
    token = session_token(server)
    for fragments in MESSAGES:
        finish(survives(server, token, fragments))


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static/extensions/panel/../../../../../../etc/passwd",
        "/static/js/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/planner/../../etc/passwd",
        "/planner%00",
    ],
)
def test_no_path_leads_out_of_the_static_files(server, path):
    with socket.create_connection(("127.0.0.1", server.port), 30) as raw:  # httpx would tidy the path
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"root:" not in answer
    assert not answer.startswith(b"HTTP/1.1 200")


def test_hostile_addresses_are_not_echoed_and_select_nothing(server):
    keys = ("page", "search", "run", "draft", "kept", "plan", "theme")
    for name in ("".join(NAMES), "../../../etc/passwd\x00$(touch x)" + "x" * 5000):
        query = httpx.QueryParams(dict.fromkeys(keys, name))
        answer = get(server, f"/planner?{query}")
        assert answer.status_code == 200
        is_not_echoed(answer.text)
        for path in (f"/{httpx.QueryParams({'x': name})}", f"/unlock?{query}", f"/static/{query}"):
            is_not_echoed(get(server, path).text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_only_reading_is_served(server, method):
    for path in PATHS:
        assert get(server, path, method, Origin=own(server)).status_code in (400, 403, 404, 405, 501)


def test_the_agents_requests_are_none_of_the_pages(server):
    for path in ("/runs", "/runs/x/stop", "/runs/x/peers", "/planner/runs/x/peers", "/shutdown"):
        for method, body in (("GET", None), ("POST", b'{"peer": "d0", "act": "kill"}')):
            answer = httpx.request(
                method, own(server) + path, content=body, headers={"Origin": own(server)}, timeout=HANG_S
            )
            assert answer.status_code in (403, 404, 405)


def test_large_bodies_and_headers_are_refused(dashboard):
    def refused(head: str, body: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", dashboard.port), 30) as raw:
            try:
                raw.sendall(head.encode() + body)
                return raw.recv(100)
            except ConnectionError:
                return b""

    host = f"Host: 127.0.0.1:{dashboard.port}\r\nOrigin: {own(dashboard)}\r\n"
    form = "Content-Type: application/x-www-form-urlencoded\r\n"
    for answer in (
        refused(f"POST /unlock HTTP/1.1\r\n{host}{form}Content-Length: {10**9}\r\n\r\n", b"token=" + b"x" * 10**6),
        refused(f"POST /unlock HTTP/1.1\r\n{host}{form}Content-Length: -5\r\n\r\n", b"token=x"),
        refused(f"GET /planner HTTP/1.1\r\n{host}X: {'x' * 10**6}\r\n\r\n", b""),
        refused("GET /planner HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b""),
        refused("GET /planner HTTP/1.0\r\n\r\n", b""),
    ):
        assert not answer.startswith(b"HTTP/1.1 2")
    unharmed(dashboard)


def test_a_server_for_other_machines_shows_nothing_without_its_token(tmp_path):
    class Open(Dashboard):
        def command(self) -> list[str]:
            return [*super().command(), "--host", "0.0.0.0"]

        def link(self) -> str:
            return super().link()

    one = Open(tmp_path)
    one.start()
    try:
        for path in PATHS:
            answer = get(one, path)
            assert answer.status_code == 401
            assert "Bokeh" not in answer.text
        assert not finish(opens(one, generate_jwt_token("a" * 44), Origin=own(one)))
        said = Path(one.home / "server.txt").read_text()
        assert "HTTP is not encrypted" in said
        assert "ssh -L" in said
        typed = httpx.post(own(one) + "/unlock", data={"token": TOKEN}, headers={"Origin": own(one)})
        assert typed.status_code == 303
        assert get(one, "/planner", cookies=dict(typed.cookies)).status_code == 200
    finally:
        one.stop()
