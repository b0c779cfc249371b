"""How the dashboard answers, draws, and what it costs; in headless Chromium, against a server of its own.

    python tests/benchmarks/usage/bench_ui.py [actions] [frames] [cpu] [memory] [startup] [pages] [loads]
        [--devices 64,512] [--repeats 3] [--seconds 20] [--minutes 30] [--loads 50,200,1000] [--by client]
        [--pages first] [-o report.json]

actions: from click to the frame that shows the answer, while a search runs (limits 300 ms at 64 devices, 600 at 512).
frames: frames a second of every page while a search and a run stream (limit 30). cpu: of the server, three sessions
watching one run (limit 20 % of a core). memory: of the server while three sessions watch for `--minutes` (flat: under
0.2 MiB a minute in the second half). startup: from the start of the server, and from a visit, to a page that answers
(limits 6 and 4 s; a reload with a plan, too). pages: requests that leave the machine and errors on the console, on
every page in both themes.
loads: memory, files, threads and child processes of the server at rest after so many page loads, by a client that
sends what a browser sends, or `--by chromium` (limit: 50 MiB more after the last number than after the first).

Chromium draws in software and shares the machine's cores with server, search and run: pessimistic numbers. The run is
`tests/support/runs/streamed_run.py`, which writes what a run writes and computes nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.edits import add_devices
from hetplanner.cluster.formats.cluster_files import cluster_to_json, load_cluster
from hetplanner.cluster.model import Cluster
from hetplanner.ui.shell.models.session import PAGES
from tests.benchmarks.usage.ui_actions import actions, button, show, stop_search
from tests.benchmarks.usage.ui_loads import grown, with_browser, with_client
from tests.benchmarks.usage.ui_page import REPOSITORY, chromium, latency_ms, opened, outside, sees, settle
from tests.support.pages.served_dashboard import Server, Visit

SEARCH_S = 55
"""Longest search without the right to launch is a minute."""
LIMIT_MS = {64: 300.0, 512: 600.0}
PAGE_S = 4.0
MIB = 2**20


@dataclass
class Report:
    """Rows of a table, printed as they come."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, name: str, value: float | None, unit: str, limit: float, *, least: bool = False) -> None:
        """A measured value; `least`: the limit is the least that is wanted, not the most."""
        good = value is not None and (value >= limit if least else value <= limit)
        shown = "no answer" if value is None else f"{value:,.1f} {unit}"
        print(
            f"{what:9} {name:46} {shown:>16}   {'≥' if least else '≤'} {limit:g}   {'' if good else 'MISSED'}",
            flush=True,
        )
        self.rows.append({"what": what, "name": name, "value": value, "unit": unit, "limit": limit, "good": good})


@contextmanager
def serving() -> Iterator[Server]:
    """A server in a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def streaming(home: Path) -> Iterator[str]:
    """A run that streams into `home`; gives its id."""
    command = [sys.executable, str(REPOSITORY / "tests/support/runs/streamed_run.py"), str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def cluster_of(num_devices: int) -> Cluster:
    """The world-wide sample with as many more devices at every site as are wanted."""
    cluster = load_cluster(REPOSITORY / "sample_clusters" / "dtfm_5_worldwide.json")
    more, rest = divmod(num_devices - len(cluster.devices), len(cluster.sites))
    if more < 0 or rest:
        raise SystemExit(f"--devices: 64 and as many more for each of {len(cluster.sites)} sites, got {num_devices}")
    for site in cluster.sites:
        cluster = add_devices(cluster, cluster.devices[0].kind, more, site) if more else cluster
    return cluster


def give_cluster(visit: Visit, cluster: Cluster) -> None:
    """Imports a cluster as a file."""
    page = visit.page
    show(page, "cluster")
    body = cluster_to_json(cluster).encode()
    file = {"name": "bench.json", "mimeType": "application/json", "buffer": body}
    visit.upload("Import").set_input_files(file)
    page.wait_for_function(sees(f" {len(cluster.devices)} devices on"), timeout=60_000)
    settle(page)


def find_plan(page: Page) -> None:
    """A short search, so that there is a plan to look at."""
    page.get_by_label("Budget (s)").filter(visible=True).first.fill("3")
    page.keyboard.press("Tab")
    button(page, "Search").click()
    page.wait_for_function(sees("Done: "), timeout=240_000)


def keep_searching(page: Page) -> None:
    """Starts a search if none of this page is running."""
    start = button(page, "Search")
    if start.is_disabled():
        return
    page.get_by_label("Budget (s)").filter(visible=True).first.fill(str(SEARCH_S))
    page.keyboard.press("Tab")
    start.click()
    page.wait_for_function(sees(" s left"), timeout=120_000)


def measure_actions(browser: Browser, report: Report, asked: argparse.Namespace) -> None:
    for num_devices in asked.devices:
        with serving() as server, streaming(server.home):
            visit = opened(browser, server.url)
            page = visit.page
            if num_devices != 64:
                give_cluster(visit, cluster_of(num_devices))
            find_plan(page)
            for name in PAGES:
                show(page, name)  # every page has been visited once
            times: dict[str, list[float | None]] = {}
            for _ in range(asked.repeats):
                for action in actions(list(PAGES)):
                    if action.name == "search: stop":
                        stop_search(page)  # the running one might end by itself just now
                    if action.name != "search: start":
                        keep_searching(page)
                    if not action.name.startswith("open page"):
                        show(page, action.page)
                    action.prepare(page)
                    settle(page)
                    seen = action.seen if isinstance(action.seen, str) else action.seen(page)
                    found_ms = latency_ms(page, seen, action.do)
                    times.setdefault(action.name, []).append(found_ms)
                    print(f"          {action.name}: {found_ms and round(found_ms)} ms", flush=True)
            for name, found in times.items():
                known = [t for t in found if t is not None]
                value = statistics.median(known) if len(known) == len(found) else None
                limit = LIMIT_MS.get(num_devices, LIMIT_MS[512])
                report.add("actions", f"{name}, {num_devices} devices", value, "ms", limit)
            page.context.close()


def measure_frames(browser: Browser, report: Report, asked: argparse.Namespace) -> None:
    with serving() as server, streaming(server.home):
        page = opened(browser, server.url).page
        keep_searching(page)
        for name in PAGES:
            keep_searching(page)
            show(page, name)
            settle_a_while(page)
            found = page.evaluate(f"bench.frames({asked.seconds / 2})")
            report.add("frames", f"page {name}", found["frames_per_s"], "frames/s", 30, least=True)
            print(f"          longest frame {found['longest_ms']:.0f} ms, 99 % under {found['p99_ms']:.0f} ms")
        page.context.close()


def settle_a_while(page: Page) -> None:
    """A live page is never idle; late parts are sent within seconds."""
    page.wait_for_timeout(4000)


def rest(page: Page) -> None:
    """Until the pages that nobody has opened yet are made, too, on both sides."""
    page.wait_for_timeout(10_000)


def watching(browser: Browser, server: Server, count: int) -> list[Page]:
    """Pages that watch the run."""
    pages = []
    for _ in range(count):
        page = opened(browser, server.url).page
        show(page, "run")
        page.wait_for_function(sees("step "), timeout=60_000)
        pages.append(page)
    return pages


def measure_cpu(browser: Browser, report: Report, asked: argparse.Namespace) -> None:
    with serving() as server, streaming(server.home):
        pages = watching(browser, server, 3)
        pages[0].wait_for_timeout(25_000)  # until all pages and sections are made
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        before, began_s = process.cpu_times(), time.monotonic()
        pages[0].wait_for_timeout(1000 * asked.seconds)
        after, took_s = process.cpu_times(), time.monotonic() - began_s
        used_s = after.user + after.system - before.user - before.system
        report.add("cpu", "server, three sessions watching a run", 100 * used_s / took_s, "% of a core", 20)
        for page in pages:
            page.context.close()


def measure_memory(browser: Browser, report: Report, asked: argparse.Namespace) -> None:
    with serving() as server, streaming(server.home):
        pages = watching(browser, server, 3)
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        began_s, samples = time.monotonic(), []
        while (now_s := time.monotonic() - began_s) < 60 * asked.minutes:
            samples.append((now_s / 60, process.memory_info().rss / MIB))
            if len(samples) % 30 == 1:
                print(f"          {samples[-1][0]:5.1f} min: {samples[-1][1]:.0f} MiB", flush=True)
            pages[0].wait_for_timeout(2000)
        half = [s for s in samples if s[0] >= samples[-1][0] / 2]
        slope = statistics.linear_regression([t for t, _ in half], [m for _, m in half]).slope
        report.add(
            "memory", f"server, growth over minutes {half[0][0]:.0f} to {half[-1][0]:.0f}", slope, "MiB/min", 0.2
        )
        for page in pages:
            page.context.close()
        left = (process.memory_info().rss / MIB, len(process.children()))
        print(f"          pages closed: {left[0]:.0f} MiB, {left[1]} child processes")


def measure_startup(browser: Browser, report: Report, _: argparse.Namespace) -> None:
    began_s = time.monotonic()
    with serving() as server:
        listening_s = time.monotonic() - began_s
        report.add("startup", "the server listens", listening_s, "s", 6)
        for name in ("first page of the server", "second at once", "third, after a rest"):
            began_s = time.monotonic()
            visit = opened(browser, server.url, watched=False)
            report.add("startup", name, time.monotonic() - began_s, "s", PAGE_S)
            if name != "first page of the server":
                rest(visit.page)
        began_s = time.monotonic()
        visit.page.reload()
        visit.settle()
        report.add("startup", "reload", time.monotonic() - began_s, "s", PAGE_S)
        visit.page.get_by_role("button", name="Search", exact=True).click()
        visit.page.wait_for_url("**search=**")
        rest(visit.page)  # the search ends, too
        took_s = []
        for _once in range(3):
            rest(visit.page)
            began_s = time.monotonic()
            visit.page.reload()
            visit.settle()
            visit.sees("Step time")
            took_s.append(time.monotonic() - began_s)
        report.add("startup", "reload with a plan", statistics.median(took_s), "s", PAGE_S)


def measure_pages(browser: Browser, report: Report, _: argparse.Namespace) -> None:
    with serving() as server, streaming(server.home):
        visit = opened(browser, server.url)
        page = visit.page
        keep_searching(page)
        for theme in ("light", "dark"):
            for name in PAGES:
                before = len(visit.complaints)
                show(page, name)
                settle_a_while(page)
                report.add("pages", f"{name}, {theme}: console errors", len(visit.complaints) - before, "", 0)
                for text in visit.complaints[before:]:
                    print(f"          {text[:200]}")
            page.get_by_role("button", name="Toggle theme").click()
        report.add("pages", "requests that leave the machine", len(outside(visit)), "", 0)
        for url in outside(visit):
            print(f"          {url[:200]}")
        page.context.close()


def measure_loads(browser: Browser, report: Report, asked: argparse.Namespace) -> None:
    with serving() as server:
        load = (
            with_client(server, all_pages=asked.pages == "all")
            if asked.by == "client"
            else with_browser(server, browser)
        )
        found = grown(server, load, asked.loads)
        first, last = found[0], found[-1]
        name = f"server, {last.loads} page loads against {first.loads}"
        report.add("loads", f"{name}: RSS", last.rss_mib - first.rss_mib, "MiB", 50)
        report.add("loads", f"{name}: files", last.files - first.files, "", 0)
        report.add("loads", f"{name}: threads", last.threads - first.threads, "", 0)
        report.add("loads", f"{name}: child processes", last.children - first.children, "", 0)


MEASURES: dict[str, Callable[[Browser, Report, argparse.Namespace], None]] = {
    "startup": measure_startup,
    "pages": measure_pages,
    "actions": measure_actions,
    "frames": measure_frames,
    "cpu": measure_cpu,
    "memory": measure_memory,
    "loads": measure_loads,
}
SLOW = ("memory", "loads")


def numbers(text: str) -> list[int]:
    """Of a list with commas."""
    return [int(n) for n in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", choices=[[], *MEASURES], help=f"default: all but {' and '.join(SLOW)}")
    parser.add_argument("--devices", type=numbers, default=[64, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--loads", type=numbers, default=[50, 200, 400, 1000], help="rising")
    parser.add_argument("--by", choices=["client", "chromium"], default="client")
    parser.add_argument("--pages", choices=["all", "first"], default="all", help="that a client visits in one load")
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    report = Report()
    with chromium() as browser:
        for name in asked.what or [n for n in MEASURES if n not in SLOW]:
            MEASURES[name](browser, report, asked)
    if asked.out is not None:
        asked.out.write_text(json.dumps(report.rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["good"] for row in report.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
