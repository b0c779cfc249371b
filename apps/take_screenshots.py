"""Takes the README's pictures from the running app: every page in both themes.

    python apps/take_screenshots.py [--only plan,run] [--size 1600x1060] [--out apps/images]

Needs the test extra. A page is pictured as it opens, unless `STEPS` names what a person does there first.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from hetplanner.ui.shell.models.session import PAGES
from tests.support.pages.find_browser import find_browser

HERE = Path(__file__).resolve().parent
TOKEN = "SCREENSHOT-TOKEN"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 120_000
IS_DARK = """[...Bokeh.documents[0]._all_models.values()].find(m => m.class_name === "Page").data.dark_theme"""
DRAWN_MS = 3000
"""Until a page that was opened, or has changed its colours, is drawn."""


def seen(page: Page, text: str | re.Pattern) -> None:
    page.get_by_text(text).filter(visible=True).first.wait_for(timeout=PATIENCE_MS)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=re.compile(rf"^\d+ {name}$", re.IGNORECASE)).click()
    page.locator(f".page-{name}").first.wait_for(state="visible", timeout=PATIENCE_MS)


def search(page: Page) -> None:
    """A search of ten seconds, to its end; it opens the Plan page."""
    page.get_by_role("button", name="Search", exact=True).click()
    seen(page, re.compile(r"Done: [\d,]+ placements"))


def rehearse(page: Page) -> None:
    """A rehearsal that has come some way."""
    page.get_by_role("button", name="Rehearse here").filter(visible=True).first.click()
    seen(page, "Launch the rehearsal?")
    page.get_by_label("Launch token (printed").click()
    page.keyboard.type(TOKEN)
    page.get_by_role("button", name="Launch", exact=True).click()
    seen(page, re.compile(r"step (2\d|3\d) of 200"))
    page.wait_for_timeout(6000)  # the notice of the launch goes


STEPS: dict[str, Callable[[Page], None]] = {
    "cluster": lambda page: seen(page, "64 devices on"),
    "plan": search,
    "run": rehearse,
}
"""Page -> what is done once, before its pictures are taken. Pages come in the order of their tabs."""


def pictures(page: Page, name: str, folder: Path) -> None:
    """A page as it is, light, then dark."""
    for suffix in ("", "-dark"):
        page.mouse.move(700, 70)
        page.evaluate("window.scrollTo(0, 0)")
        page.wait_for_timeout(DRAWN_MS)
        page.screenshot(path=folder / f"{name}{suffix}.png")
        before = page.evaluate(IS_DARK)
        page.get_by_role("button", name="Toggle theme").click()
        page.wait_for_function(f"before => {IS_DARK} !== before", arg=before, timeout=PATIENCE_MS)
    page.mouse.move(700, 70)


def take(page: Page, names: list[str], folder: Path) -> None:
    """Goes through all pages, for each needs what those before have brought; pictures those named."""
    for name in PAGES:
        open_tab(page, name)
        STEPS.get(name, lambda page: None)(page)
        open_tab(page, name)
        if name in names:
            pictures(page, name, folder)


@contextmanager
def served(home: Path) -> Iterator[str]:
    """The app on a free port, with a home of its own; its agent and runs end with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "panel", "serve", "planner.py", "--address", "127.0.0.1", "--port", str(port)],
        cwd=HERE,
        env=os.environ | {"HETPLANNER_HOME": str(home), "HETPLANNER_LAUNCH_TOKEN": TOKEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}/planner"
    finally:
        server.terminate()
        server.wait()
        if find_agent(home) is not None:
            AgentClient(home, start=False).shutdown(stop_runs=True)


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PAGES), help=", ".join(PAGES))
    parser.add_argument("--size", default="1600x1060")
    parser.add_argument("--out", type=Path, default=HERE / "images")
    asked = parser.parse_args()
    width, height = map(int, asked.size.split("x"))
    asked.out.mkdir(exist_ok=True, parents=True)
    chromium = find_browser()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(url)
        page.get_by_role("button", name="Search", exact=True).wait_for(timeout=PATIENCE_MS)
        take(page, asked.only, asked.out)
        browser.close()


if __name__ == "__main__":
    main()
