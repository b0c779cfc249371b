"""Takes the README's pictures from the running app: `python apps/take_screenshots.py` (needs the test extra)."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from hetplanner.runs.client import AgentClient, find_agent

HERE = Path(__file__).resolve().parent
TOKEN = "SCREENSHOT-TOKEN"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def served(home: Path, port: int) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-m", "panel", "serve", "planner.py", "--address", "127.0.0.1", "--port", str(port)],
        cwd=HERE,
        env=os.environ | {"HETPLANNER_HOME": str(home), "HETPLANNER_LAUNCH_TOKEN": TOKEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server does not answer")


def seen(page: Page, text: str | re.Pattern) -> None:
    page.get_by_text(text).filter(visible=True).first.wait_for(timeout=90_000)


def picture(page: Page, name: str) -> None:
    page.mouse.move(700, 70)
    page.wait_for_timeout(3000)
    page.screenshot(path=HERE / "images" / name)


def take(page: Page) -> None:
    seen(page, "64 devices on")
    picture(page, "cluster.png")
    page.get_by_role("button", name="Search", exact=True).click()
    seen(page, re.compile(r"Done: [\d,]+ placements"))
    picture(page, "plan.png")
    page.get_by_role("button", name="Toggle theme").click()
    picture(page, "plan-dark.png")
    page.get_by_role("button", name="Toggle theme").click()
    page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
    seen(page, "Launch the rehearsal?")
    page.get_by_label("Launch token (printed").click()
    page.keyboard.type(TOKEN)
    page.get_by_role("button", name="Launch", exact=True).click()
    seen(page, re.compile(r"step (2\d|3\d) of 200"))
    page.wait_for_timeout(6000)  # the notice of the launch goes
    picture(page, "run.png")


def main() -> None:
    (HERE / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        home = Path(folder)
        server = served(home, 5077)
        try:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            page = browser.new_page(viewport={"width": 1600, "height": 1060})
            page.goto("http://127.0.0.1:5077/planner")
            take(page)
            browser.close()
        finally:
            server.terminate()
            server.wait()
            if find_agent(home) is not None:
                AgentClient(home, start=False).shutdown(stop_runs=True)


if __name__ == "__main__":
    main()
