"""The dashboard in a frame: whose pages may show it, and a server that lives and dies with who made it."""

import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from hetplanner.errors import RunError
from hetplanner.ui.notebook import framed
from hetplanner.ui.security.access import LaunchGuard, allowed_hosts
from hetplanner.ui.security.gate import PAGE, Gate
from tests.support.processes.own_loop import finish

JUPYTER = "http://localhost:8888"
FRAME = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}


class Page(RequestHandler):
    def get(self) -> None:
        self.write("the page")


def answers(frames_from: tuple[str, ...], *asked: dict[str, str]) -> list[tuple[int, HTTPHeaders]]:
    """Status and headers for requests with these headers."""

    async def ask() -> list[tuple[int, HTTPHeaders]]:
        application = Application([(PAGE, Page)])
        Gate(LaunchGuard("ABCD-EFGH-JKMN"), allowed_hosts({}), frames_from=frames_from).install(application)
        server = HTTPServer(application)
        socket, port = bind_unused_port()
        server.add_socket(socket)
        try:
            async with httpx.AsyncClient(base_url=f"http://localhost:{port}") as client:
                found = [await client.get(PAGE, headers=headers) for headers in asked]
            return [(one.status_code, HTTPHeaders(dict(one.headers))) for one in found]
        finally:
            server.stop()
            await server.close_all_connections()

    return finish(ask())


def test_the_named_pages_alone_may_frame_it() -> None:
    ((status, headers),) = answers((JUPYTER,), {"Sec-Fetch-Site": "same-site", **FRAME})
    assert status == 200
    assert headers["Content-Security-Policy"].endswith(f"frame-ancestors {JUPYTER}")
    assert "X-Frame-Options" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_pages_of_other_sites_may_not_nor_may_anybody_take_parts() -> None:
    script = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    asked = ({"Sec-Fetch-Site": "cross-site", **FRAME}, {"Sec-Fetch-Site": "same-site", **script})
    assert [status for status, _ in answers((JUPYTER,), *asked)] == [403, 403]


def test_without_names_nobody_may() -> None:
    (refused, _), (status, headers) = answers((), {"Sec-Fetch-Site": "same-site", **FRAME}, {})
    assert (refused, status) == (403, 200)
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")


def test_jupyter_servers_are_known_under_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [{"url": "http://myhost:8889/lab"}, {"url": "https://localhost/"}, {"url": "http://127.0.0.1:8889/"}]
    fake = SimpleNamespace(list_running_servers=lambda: iter(running))
    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", fake)
    assert framed.jupyter_origins() == [
        "http://localhost:8889",
        "http://127.0.0.1:8889",
        "https://localhost:443",
        "https://127.0.0.1:443",
    ]


def started(monkeypatch: pytest.MonkeyPatch, code: str) -> framed.Dashboard:
    """A dashboard whose server is a few lines of Python."""
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real([sys.executable, "-c", code], **options))
    return framed.Dashboard(700, [])


def test_the_cell_holds_a_frame_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "http://localhost:5999/planner?token=a-b_c"
    one = started(monkeypatch, f"print('  {line}', flush=True); input()")
    html = one._repr_mimebundle_()["text/html"]
    assert "5999/planner?token=a-b_c" in html
    assert "height:700px" in html
    assert repr(one) == f"Dashboard({line})"
    one.close()
    assert not one.is_alive
    assert one._repr_mimebundle_() == {"text/plain": "Dashboard(closed)"}


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"dashboard: its server did not start .* no such module"):
        started(monkeypatch, "print('no such module')")


def test_the_server_ends_with_its_kernel() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hetplanner.ui.notebook.framed", JUPYTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert any(framed._LINK.search(line) for line in process.stdout)
    process.stdin.close()
    assert process.wait(20) == 0
