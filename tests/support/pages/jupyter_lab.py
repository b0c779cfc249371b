"""JupyterLab for browser tests, and its cells."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from tests.support.pages.served_dashboard import PATIENCE_MS, free_port

TOKEN = "a-token-of-this-test"


class Lab:
    """JupyterLab on the loopback interface, with a notebook of these cells in a folder of its own."""

    def __init__(self, folder: Path, cells: Sequence[str], *options: str) -> None:
        self.folder, self.port = folder, free_port()
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, folder / "story.ipynb")
        own = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
        with (folder / "lab.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}"),
                    *(f"--IdentityProvider.token={TOKEN}", "--allow-root", f"--ServerApp.root_dir={folder}"),
                    "--LabApp.news_url=",
                    *options,
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


def cell_of(page: Page, number: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def run_cell(page: Page, number: int) -> None:
    cell_of(page, number).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def is_done(page: Page, number: int) -> None:
    prompt = cell_of(page, number).locator(".jp-InputPrompt").first
    expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=PATIENCE_MS)
