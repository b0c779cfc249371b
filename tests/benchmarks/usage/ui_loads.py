"""Page loads without end: what each leaves in the server after it was closed."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from playwright.sync_api import Browser

from hetplanner.ui.shell.models.session import PAGES
from tests.benchmarks.usage.ui_actions import show
from tests.benchmarks.usage.ui_page import opened
from tests.support.pages.page_client import PageClient, models
from tests.support.pages.served_dashboard import Server
from tests.support.processes.own_loop import finish

MIB = 2**20
AT_ONCE = 4
"""Pages that a client has open at a time."""
EXPIRED_S = 75.0
"""From the last page's end: sessions expire within 35 s; what they leave is freed within 30 s more."""


@dataclass(frozen=True)
class Held:
    """What a server holds of the machine, at rest."""

    loads: int
    rss_mib: float
    uss_mib: float
    files: int
    threads: int
    children: int

    def __str__(self) -> str:
        return (
            f"{self.loads:5} loads: RSS {self.rss_mib:6.1f} MiB, USS {self.uss_mib:6.1f} MiB,"
            f" {self.files} files, {self.threads} threads, {self.children} child processes"
        )


def held(server: Server, loads: int) -> Held:
    """Reads a server's process."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    memory = process.memory_full_info()
    children = len(process.children(recursive=True))
    return Held(loads, memory.rss / MIB, memory.uss / MIB, process.num_fds(), process.num_threads(), children)


async def _load(server: Server, cookie: str, all_pages: bool) -> None:
    client = await PageClient(server.url, cookie).open()
    if all_pages:
        tabs = next(m for m in models(client.roots) if m.get("attributes", {}).get("class_name") == "Choice")
        for name in (*PAGES[1:], PAGES[0]):
            await client.send(tabs["id"], name)
    await client.close()


async def _many(server: Server, cookie: str, count: int, all_pages: bool) -> None:
    rest = iter(range(count))

    async def one_after_another() -> None:
        for _ in rest:
            await _load(server, cookie, all_pages)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


def with_client(server: Server, cookie: str = "", all_pages: bool = True) -> Callable[[int], None]:
    """Loads by `PageClient`: what a browser sends, not what it draws.

    Args:
        all_pages: visits every page of the dashboard; else the first alone.
    """
    return lambda count: finish(_many(server, cookie, count, all_pages))


def with_browser(server: Server, browser: Browser) -> Callable[[int], None]:
    """Loads by Chromium, each in a context of its own, reloaded, with two pages visited."""

    def load(count: int) -> None:
        for number in range(count // 2):
            visit = opened(browser, server.url)
            show(visit.page, PAGES[1 + number % (len(PAGES) - 1)])
            visit.page.reload()
            visit.page.wait_for_function("Bokeh.documents.length && Bokeh.documents[0].is_idle")
            visit.page.context.close()

    return load


def grown(server: Server, load: Callable[[int], None], counts: list[int]) -> list[Held]:
    """Loads pages; what the server holds after so many, each time at rest."""
    found, done = [], 0
    for count in counts:
        began_s = time.monotonic()
        load(count - done)
        took_s, done = time.monotonic() - began_s, count
        time.sleep(EXPIRED_S)
        found.append(held(server, count))
        print(f"          {found[-1]} ({took_s:.0f} s)", flush=True)
    return found
