"""In JupyterLab, offline: a search that is watched and stopped from its cell, a run, the dashboard in a frame."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from served_dashboard import PATIENCE_MS, REPOSITORY, free_port

from hetplanner.runs.client import AgentClient, find_agent

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

TOKEN = "a-token-of-this-test"
CELLS = [
    f"""
import hetplanner as hp
cluster = hp.load_cluster({str(REPOSITORY / "sample_clusters" / "dtfm_5_worldwide.json")!r})
problem = hp.Problem(cluster=cluster, workload=hp.preset("gpt3-xl"), constraints=hp.Constraints(stages=8, replicas=8))
result = hp.search(problem, budget="100 s")
print("cancelled:", result.cancelled)
""",
    'run = hp.launch(hp.rehearse(problem), emulate_links=True, steps=500)\nprint("launched")',
    "print(run.wait(60).state)",
    "hp.plots.convergence(result)",
    "hp.dashboard()",
]


class Lab:
    """JupyterLab on the loopback interface, with a notebook of `CELLS` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, folder / "story.ipynb")
        own = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
        with (folder / "lab.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}"),
                    *(f"--IdentityProvider.token={TOKEN}", "--allow-root", f"--ServerApp.root_dir={folder}"),
                    "--LabApp.news_url=",
                ],
                env=os.environ | own | {"IPYTHONDIR": str(folder / "ipython"), "HETPLANNER_HOME": str(folder / "home")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (self.folder / "lab.txt").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        home = self.folder / "home"
        if find_agent(home) is not None:
            AgentClient(home, start=False).shutdown(stop_runs=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    one = Lab(tmp_path)
    yield one
    one.stop()


def cell_of(page: Page, number: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def run_cell(page: Page, number: int) -> None:
    cell_of(page, number).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def is_done(page: Page, number: int) -> None:
    prompt = cell_of(page, number).locator(".jp-InputPrompt").first
    expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=PATIENCE_MS)


def is_outside(url: str) -> bool:
    """Whether an address is neither data nor on this machine."""
    return not url.startswith(("data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:"))


def test_search_run_and_dashboard_in_jupyterlab_without_a_network(lab: Lab, browser: Browser) -> None:
    page = browser.new_context(viewport={"width": 1500, "height": 1300}).new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda r: requests.append(r.url))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(f"http://127.0.0.1:{lab.port}/lab/tree/story.ipynb?token={TOKEN}")
    cell_of(page, len(CELLS) - 1).wait_for(timeout=PATIENCE_MS)
    page.get_by_text("| Idle").wait_for(timeout=PATIENCE_MS)

    run_cell(page, 0)
    first = cell_of(page, 0)
    first.get_by_text("against random").wait_for(timeout=PATIENCE_MS)
    first.get_by_text("Bottleneck:").wait_for(timeout=PATIENCE_MS)
    assert first.locator("canvas").count() >= 2
    first.locator("button", has_text="Stop").click()
    first.get_by_text(re.compile(r"Stopped: [\d,]+ plans in")).wait_for(timeout=30_000)
    first.get_by_text("cancelled: True").wait_for()
    is_done(page, 0)
    expect(first.locator("button", has_text="Stop")).to_have_count(0)
    expect(first.locator("canvas").first).to_be_visible()  # what stays is drawn too

    run_cell(page, 1)
    second = cell_of(page, 1)
    second.get_by_text("launched").wait_for(timeout=PATIENCE_MS)
    is_done(page, 1)  # while the run goes on
    second.get_by_text(re.compile(r"step \d+ of 500")).wait_for(timeout=PATIENCE_MS)
    second.locator("button", has_text="Stop").click()
    second.get_by_text(re.compile(r"rehearsal of \d ranks · stopped")).wait_for(timeout=30_000)
    run_cell(page, 2)
    cell_of(page, 2).get_by_text("stopped", exact=True).wait_for(timeout=PATIENCE_MS)
    run_cell(page, 3)
    is_done(page, 3)
    cell_of(page, 3).locator("canvas").first.wait_for(timeout=PATIENCE_MS)

    run_cell(page, 4)
    frame = page.frame_locator("iframe[title=hetplanner]")
    frame.get_by_role("button", name="Search", exact=True).wait_for(timeout=PATIENCE_MS)
    frame.get_by_role("tab", name=re.compile("Run$")).click()
    frame.get_by_text("Launching is unlocked").filter(visible=True).first.wait_for(timeout=PATIENCE_MS)
    assert [url for url in requests if is_outside(url)] == []
    assert complaints == []
    page.context.close()
