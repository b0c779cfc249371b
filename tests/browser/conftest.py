"""A browser for tests: headless Chromium, see `find_browser`."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from tests.support.pages.find_browser import BrowserMissing, find_browser
from tests.support.pages.served_dashboard import PATIENCE_MS, REPOSITORY, Server, Visit

CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP foreign.example 127.0.0.1",
]  # fmt: skip
expect.set_options(timeout=PATIENCE_MS)  # of quiet machines 5 s


@pytest.fixture(scope="session", autouse=True)
def browser_path() -> str:
    """Found before Playwright starts: its driver may need a library first."""
    try:
        return find_browser()
    except BrowserMissing as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_path: str) -> dict:
    return {"executable_path": browser_path, "args": CHROMIUM_FLAGS}


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory) -> None:
    """Compiles the planners' kernels once: on a busy machine that outlasts a story's patience."""
    cluster = REPOSITORY / "sample_clusters" / "laptop_8_cities.json"
    plan = ["plan", cluster, "tiny-gpt", "--codecs", "none,int8", "--evaluations", "2000"]
    out = tmp_path_factory.mktemp("kernels") / "plan.json"
    subprocess.run(
        [sys.executable, "-m", "hetplanner.cli", *map(str, plan), "-o", str(out)], check=True, capture_output=True
    )


@pytest.fixture(scope="session")
def browser(browser: Browser) -> Browser:
    """Whose contexts wait as long as a busy machine needs: Playwright's 30 s are a limit of quiet ones."""
    new_context = browser.new_context

    def patient(**options: object) -> BrowserContext:
        context = new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        return context

    browser.new_context = patient
    return browser


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """A warm server for the stories that look and search: they keep nothing, and their pages name no earlier search."""
    with Server(tmp_path_factory.mktemp("home")) as one:
        yield one


@pytest.fixture(scope="module")
def server_of_file(tmp_path_factory) -> Iterator[Server]:
    """A server and a home for the stories of a file: none finds what another kept, nor the room that its list takes."""
    with Server(tmp_path_factory.mktemp("home")) as one:
        yield one


@pytest.fixture
def own_server(tmp_path):
    """A server in a fresh home; its agent and runs end with the test."""
    one = Server(tmp_path / "home")
    one.home.mkdir()
    one.start()
    yield one
    one.stop()
    if find_agent(one.home) is not None:
        AgentClient(one.home, start=False).shutdown(stop_runs=True)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[str], Visit]]:
    """Opens pages; afterwards none may have left the machine or logged an error."""
    visits: list[Visit] = []

    def make(url: str) -> Visit:
        page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
        one = Visit(page)
        page.on("request", lambda r: one.requests.append(r.url))
        page.on("console", lambda m: one.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: one.complaints.append(e.stack or str(e)))
        visits.append(one)
        return one.open(url)

    yield make
    for one in visits:
        if not one.page.is_closed():
            one.leave()
