"""A served dashboard for tests, and a visit to it that notes every request and every error."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from playwright.sync_api import Locator, Page, TimeoutError

REPOSITORY = Path(__file__).resolve().parents[3]
TOKEN = "TEST-LAUNCH-TOKEN"
PATIENCE_MS = 120_000  # the first search of an installation compiles its kernels

SHOWN_JS = """() => {
  const boxless = n => n.nodeType == Node.ELEMENT_NODE && getComputedStyle(n).display == "contents"
  const seen = n => n.nodeType == Node.TEXT_NODE || boxless(n) || n.checkVisibility?.({visibilityProperty: true})
  const read = n => [...n.childNodes].filter(c => !/^(STYLE|SCRIPT|OPTION)$/.test(c.nodeName) && seen(c))
    .map(c => c.nodeType == Node.TEXT_NODE ? c.data : read(c.shadowRoot ?? c)).join(" ")
  return read(document.body)
}"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Server:
    """`panel serve apps/planner.py`, as the README says, in a home of its own."""

    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = None
    setup: ClassVar[str] = "tests/support/pages/server_setup.py"
    """Runs in the server before it serves."""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/planner"

    def command(self) -> list[str]:
        serve = ["panel", "serve", "apps/planner.py", "--warm", "--address", "127.0.0.1", "--setup", self.setup]
        return [sys.executable, "-m", *serve]

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        log = (self.home / "server.txt").open("ab")
        self.process = subprocess.Popen(
            [*self.command(), "--port", str(self.port)],
            cwd=REPOSITORY,
            env=os.environ | {"HETPLANNER_HOME": str(self.home), "HETPLANNER_LAUNCH_TOKEN": TOKEN},
            stdout=log,
            stderr=log,
        )
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            assert self.process.poll() is None, (self.home / "server.txt").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)  # a shell may have its children ignore SIGINT
            self.process.wait(30)
            self.process = None
            said = (self.home / "server.txt").read_text()
            assert "unexpected error in a session" not in said, said
            unheld = sorted(set(re.findall("unheld change: .*", said)))
            assert not unheld, "\n".join(unheld)  # see report_unheld.py

    def stacks(self) -> str:
        """What each thread of a server that hangs is doing, after what it said last."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        return (self.home / "server.txt").read_text()[-20_000:]


class Dashboard(Server):
    """`hetplanner dashboard`; `link()` is what it printed last."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "hetplanner.cli", "dashboard"]

    def link(self) -> str:
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            found = re.findall(r"http://localhost:\d+/planner\?token=\S+", (self.home / "server.txt").read_text())
            if found:
                return found[-1]
            assert time.monotonic() < deadline
            time.sleep(0.05)


@dataclass
class Visit:
    """A page, what it asked the network for, and what it complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, url: str) -> "Visit":
        self.page.goto(url)
        self.settle()
        return self

    def settle(self) -> None:
        """Until the first page is drawn and answers."""
        self.page.get_by_role("button", name="Search", exact=True).wait_for(timeout=PATIENCE_MS)
        self.page.wait_for_function("Bokeh.documents.length && Bokeh.documents[0].is_idle", timeout=PATIENCE_MS)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def choose(self, label: str, option: str) -> None:
        """An option of a menu."""
        self.page.get_by_label(label, exact=True).filter(visible=True).first.click()
        self.page.get_by_role("menuitem", name=option, exact=True).click()

    def set(self, **values: str) -> None:
        """Settings of the side bar, by their names; each field is left, so that the page takes it."""
        for name, value in values.items():
            self.page.locator(f"#setting-{name}").fill(value)
            self.page.keyboard.press("Tab")

    def begin(self, sample: str, model: str, **settings: str) -> Page:
        """Chooses a sample cluster and a model, and sets what is given. Returns the page."""
        self.choose("Sample cluster", sample)
        self.sees(f"{sample}: ")
        self.choose("Model", model)
        self.set(**settings)
        return self.page

    def search(self) -> None:
        """Presses Search, and waits for the end."""
        self.page.get_by_role("button", name="Search", exact=True).click()
        self.sees(re.compile(r"Done: [\d,]+ placements"))

    def sees(self, text: str | re.Pattern, timeout: float = PATIENCE_MS) -> None:
        try:
            self.page.get_by_text(text).filter(visible=True).first.wait_for(timeout=timeout)
        except TimeoutError:
            shown = " ".join(self.page.evaluate(SHOWN_JS).split())[:3000]
            raise AssertionError(
                f"{text!r} does not appear; the page complains {self.complaints}, shows: {shown}"
            ) from None

    def rests(self, part: Locator) -> None:
        """Until nothing is drawn any more and a part has kept its place for a second."""
        before, since = None, time.monotonic()
        deadline = since + PATIENCE_MS / 1000
        while time.monotonic() < since + 1.0:
            self.page.wait_for_function("Bokeh.documents[0].is_idle", timeout=PATIENCE_MS)
            box = part.bounding_box()
            if box != before:
                before, since = box, time.monotonic()
                assert since < deadline, "a part of the page does not come to rest"
            self.page.wait_for_timeout(50)

    def upload(self, button: str) -> Locator:
        """What takes the files of the button with this text."""
        return self.page.locator("label", has_text=button).locator("input[type=file]")

    def leave(self) -> None:
        """Closes the page; it must not have left the machine nor logged an error."""
        own = "/".join(self.page.url.split("/")[:3])
        self.page.context.close()
        assert self.requests
        outside = [u for u in self.requests if not u.startswith((own + "/", "data:", "blob:"))]
        assert outside == []
        assert self.complaints == [], "\n".join(self.complaints)
