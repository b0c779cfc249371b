"""Through JupyterLab under a base URL and behind its token: the launcher's tile, and the dashboard in a cell."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, FrameLocator, Page

from hetplanner.ui.notebook import jupyter
from hetplanner.ui.notebook.framed import JupyterDashboard, framed_html
from tests.support.pages.jupyter_lab import TOKEN, Lab, cell_of, run_cell
from tests.support.pages.served_dashboard import PATIENCE_MS
from tests.support.processes.other_user import CAN_BECOME, as_another_user, closed_to_others

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

BASE = "/lab-7/"
CELLS = [
    "import hetplanner as hp\nhp.dashboard()",
    "drawing = hp.draw()\ndrawing",
    "print(f'{len(drawing.cluster.devices)} devices at {len(drawing.cluster.sites)} sites,',"
    " drawing.cluster.link(*[d.id for d in drawing.cluster.devices[::8]]).source)",
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    one = Lab(tmp_path, CELLS, f"--ServerApp.base_url={BASE}")
    yield one
    one.stop()


def opened(lab: Lab, browser: Browser, path: str, complaints: list[str]) -> Page:
    page = browser.new_context(viewport={"width": 1500, "height": 1300}).new_page()
    page.context.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.context.on("weberror", lambda e: complaints.append(str(e.error)))
    page.goto(f"http://127.0.0.1:{lab.port}{BASE}{path}?token={TOKEN}")
    return page


def answers(page: Page | FrameLocator) -> None:
    """Whether the dashboard is drawn, takes a click to its server and shows what comes back."""
    page.get_by_role("button", name="Search", exact=True).click(timeout=PATIENCE_MS)
    page.get_by_text("Bottleneck:").filter(visible=True).first.wait_for(timeout=PATIENCE_MS)
    page.get_by_role("tab", name=re.compile("Run$")).click()
    page.get_by_text("Launching is unlocked").filter(visible=True).first.wait_for(timeout=PATIENCE_MS)


def test_the_launcher_s_tile_opens_the_dashboard_for_who_is_logged_in_alone(lab: Lab, browser: Browser) -> None:
    complaints: list[str] = []
    page = opened(lab, browser, "lab", complaints)
    tile = page.locator(".jp-LauncherCard", has_text="hetplanner")
    tile.locator("img").wait_for(timeout=PATIENCE_MS)
    assert tile.locator("img").evaluate("one => one.decode().then(() => one.naturalWidth > 0)")
    with page.context.expect_page(timeout=PATIENCE_MS) as popup:
        tile.click()
    planner = popup.value
    sockets: list[str] = []
    planner.on("websocket", lambda one: sockets.append(one.url))
    answers(planner)
    own = f"127.0.0.1:{lab.port}{BASE}hetplanner/planner"
    assert planner.url.partition("?")[0] == f"http://{own}"
    assert [url.partition("?")[0] for url in sockets] == [f"ws://{own}/ws"]
    assert complaints == []
    page.context.close()

    for path in ("hetplanner/", "hetplanner/planner", "hetplanner/planner/ws", "server-proxy/servers-info"):
        for headers in (
            {},
            {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": f"http://127.0.0.1:{lab.port}"},
        ):
            answer = httpx.get(f"http://127.0.0.1:{lab.port}{BASE}{path}", headers=headers)
            assert answer.status_code in (302, 403), (path, answer.status_code)
            assert answer.headers.get("location", f"{BASE}login").startswith(f"{BASE}login")
            assert "hetplanner" not in answer.text.replace(f"{BASE}{path}", "")

    below = psutil.Process(lab.process.pid).children(recursive=True)
    (server,) = [process for process in below if "hetplanner.ui.notebook.jupyter" in process.cmdline()]
    assert not [one for one in server.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN]
    path = Path(server.cmdline()[-1])
    assert closed_to_others(path.parent)
    if CAN_BECOME:
        assert str(as_another_user(ask, str(path))).startswith("PermissionError")
    assert b"302" in ask(str(path)).encode()


def ask(path: str) -> str:
    """The first line that a server on a Unix socket answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.makefile().readline()


def test_cells_show_the_dashboard_through_the_proxy_and_a_map_to_draw_on(lab: Lab, browser: Browser) -> None:
    complaints: list[str] = []
    page = opened(lab, browser, "lab/tree/story.ipynb", complaints)
    cell_of(page, 0).wait_for(timeout=PATIENCE_MS)
    page.get_by_text("| Idle").wait_for(timeout=PATIENCE_MS)
    run_cell(page, 0)
    answers(page.frame_locator("iframe[title=hetplanner]"))
    link = cell_of(page, 0).get_by_role("link", name="Open the dashboard in a tab of its own")
    assert link.get_attribute("href") == f"http://127.0.0.1:{lab.port}{BASE}hetplanner/planner"

    run_cell(page, 1)
    cell = cell_of(page, 1)
    world = cell.locator(".bk-events").first
    world.wait_for(timeout=PATIENCE_MS)
    cell.get_by_text("click where the first site stands").or_(cell.get_by_text("Click: 1 × A100-80")).first.wait_for()
    cell.locator("select").first.select_option("8 ×")
    cell.get_by_text("Click: 8 × A100-80").wait_for(timeout=PATIENCE_MS)
    for count, (across, down) in enumerate(((0.3, 0.4), (0.6, 0.4)), 1):
        box = world.bounding_box()
        assert box is not None
        world.click(position={"x": across * box["width"], "y": down * box["height"]})
        cell.get_by_text(f"{8 * count} devices at {count} sites").wait_for(timeout=PATIENCE_MS)
    run_cell(page, 2)
    cell_of(page, 2).get_by_text("16 devices at 2 sites, assumed").wait_for(timeout=PATIENCE_MS)
    assert complaints == []
    page.context.close()


LAB = """<script id="jupyter-config-data" type="application/json">{"baseUrl": "/user/ann"}</script>"""
OF_ANN = "http://foreign.example/user/ann/hetplanner/planner"


@pytest.mark.parametrize(
    ("page_html", "framed", "linked"),
    [
        (LAB + "{}", OF_ANN, OF_ANN),
        ("<body data-base-url='/user/ann/'>{}", OF_ANN, OF_ANN),
        ("<body>{}", None, "http://localhost:8888/x/hetplanner/planner"),  # an editor's window knows no base URL
    ],
    ids=["lab", "classic", "editor"],
)
def test_the_cell_finds_the_page_wherever_the_notebook_is(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, page_html: str, framed: str | None, linked: str
) -> None:
    monkeypatch.setattr(jupyter, "address", lambda: "http://localhost:8888/x/hetplanner/planner")
    html = page_html.replace("{}", JupyterDashboard(700)._repr_mimebundle_()["text/html"])
    page = browser.new_context().new_page()
    page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"), times=1)
    page.route("**/planner", lambda route: route.fulfill(body="the page", content_type="text/html"))
    page.goto("http://foreign.example/tree")
    assert page.locator("a").get_attribute("href") == linked
    assert page.locator("iframe").get_attribute("src") == framed
    page.context.close()


def test_without_the_tile_a_remote_notebook_says_what_to_do(browser: Browser) -> None:
    page = browser.new_context().new_page()
    html = framed_html(5999, "/planner?token=x", 700)
    page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto("http://foreign.example/tree")
    page.get_by_text("install jupyter-server-proxy and hetplanner beside the Jupyter server").wait_for()
    assert page.locator("iframe").get_attribute("src") is None
    page.goto("http://localhost:8888/tree")
    assert page.locator("iframe").get_attribute("src") == "http://localhost:5999/planner?token=x"
    page.context.close()
