"""The first search of an installation, and the replay of a search, in headless Chromium.

`python tests/benchmarks/usage/bench_replay.py` prints: from Search to the first point and to the first better one,
without compiled kernels, after a short look and after the page said that they are ready; how many moments a second a
replay of 200 shows.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.benchmarks.usage.ui_page import FLAGS, SIZE
from tests.support.pages.find_browser import find_browser
from tests.support.pages.served_dashboard import Server, Visit

LONG_MS = 600_000
LOOK_MS = 8_000
"""A person looks at the page for so long before the first search; kernels take longer."""
CURVE = """() => [...Bokeh.documents[0]._all_models.values()]
  .find(m => m.type == 'ColumnDataSource' && m.data.best && m.data.median)"""
BETTER = f"least => {{ const best = ({CURVE})()?.data.best ?? []; return best.length > 0 && best.at(-1) < least }}"
# The moments of a search are stretched to so many: each is shown as if it were another.
STRETCH = """most => {
  const slider = [...Bokeh.documents[0]._all_models.values()].find(m => m.name == 'replay')
  const source = [...Bokeh.documents[0]._all_models.values()].find(m => m.type == 'ColumnDataSource' && m.data.depth)
  const old = source.data, n = old.depth.length
  const rows = Array.from({length: most}, (_, i) => Math.floor(i * (n - 1) / (most - 1)) ^ (i % 2 && n > 1 ? 1 : 0))
  const data = Object.fromEntries(Object.keys(old).map(k => [k, rows.map(i => old[k][Math.min(i, n - 1)])]))
  source.setv({data}, {sync: false})
  return [n, slider.end]
}"""
REPLAY = """() => new Promise(done => {
  const models = [...Bokeh.documents[0]._all_models.values()]
  const slider = models.find(m => m.name == 'replay'), toggle = models.find(m => m.label == 'Replay' && 'active' in m)
  const state = () => Object.values(globalThis.__hetplanner_replay)[0]
  const grid = models.find(m => m.type == 'ColumnDataSource' && m.data.replica && m.data.text_dark)
  let frames = 0, drawn = 0, last = null
  const before = state().shown, start = performance.now()
  toggle.active = true
  const look = () => {
    frames++
    if (slider.value !== last) { last = slider.value; drawn++ }
    if (toggle.active) requestAnimationFrame(look)
    else {
      const seconds = (performance.now() - start) / 1000
      done({seconds, shown: state().shown - before, per_s: (state().shown - before) / seconds,
            drawn_per_s: drawn / seconds, frames_per_s: frames / seconds})
    }
  }
  requestAnimationFrame(look)
})"""


def press_search(page: Page) -> dict[str, float]:
    """Seconds from the click to the first point, and to the first that is better."""
    page.get_by_role("button", name="Search", exact=True).click()
    start = time.monotonic()
    page.wait_for_function(BETTER, arg=float("1e300"), timeout=LONG_MS, polling=50)
    first_s = time.monotonic() - start
    least = page.evaluate(f"({CURVE})().data.best.at(0)")
    page.wait_for_function(BETTER, arg=least, timeout=LONG_MS, polling=50)
    return {"first_point_s": round(first_s, 2), "first_better_s": round(time.monotonic() - start, 2)}


def first_search(browser, wait: bool) -> dict[str, float]:
    """On an installation without compiled kernels; `wait`: until the page no longer prepares them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        server = Server(Path(folder))
        server.start()
        page = browser.new_context(viewport=SIZE).new_page()
        Visit(page).open(server.url)
        page.get_by_role("tab", name="Plan").click()
        found = {}
        if not wait:
            page.wait_for_timeout(LOOK_MS)
            found["preparing"] = page.get_by_text("Preparing kernels").filter(visible=True).first.inner_text()
        if wait:
            start = time.monotonic()
            page.get_by_text("Preparing kernels").filter(visible=True).first.wait_for(timeout=LONG_MS)
            page.get_by_text("Not searched yet.").filter(visible=True).first.wait_for(timeout=LONG_MS)
            found["preparing_s"] = round(time.monotonic() - start, 1)
        found |= press_search(page)
        page.context.close()
        server.stop()
        del os.environ["NUMBA_CACHE_DIR"]
    return found


def replay(browser, moments: int, shots: Path | None) -> dict[str, float]:
    """How fast a replay of so many moments goes."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.start()
        page = browser.new_context(viewport=SIZE).new_page()
        visit = Visit(page)
        page.on("console", lambda m: visit.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: visit.complaints.append(str(e)))
        visit.open(server.url)
        page.get_by_role("tab", name="Plan").click()
        for label in ("Stages", "Replicas"):
            field = page.get_by_label(label, exact=True).filter(visible=True)
            field.fill("8")
            field.press("Tab")
        press_search(page)
        page.get_by_text("Done:").filter(visible=True).first.wait_for(timeout=LONG_MS)
        page.get_by_text(re.compile(r"Moment \d+ of ")).first.wait_for(timeout=LONG_MS)
        if shots:
            page.screenshot(path=shots / "replay-end.png")
        kept = page.evaluate(STRETCH, moments)
        found = page.evaluate(REPLAY)
        if shots:
            page.evaluate(
                """() => { const s = [...Bokeh.documents[0]._all_models.values()].find(m => m.name == 'replay')
                s.setv({value: 3}, {sync: false}) }"""
            )
            page.wait_for_timeout(150)
            page.screenshot(path=shots / "replay-begin.png")
        page.context.close()
        server.stop()
    return {"kept": kept[0], **found, "complaints": visit.complaints}


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["cold", "waited", "replay"])
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--shots", type=Path)
    asked = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        if asked.only in (None, "cold"):
            print("first search, after a short look", json.dumps(first_search(browser, wait=False)), flush=True)
        if asked.only in (None, "waited"):
            print("first search, after waiting", json.dumps(first_search(browser, wait=True)), flush=True)
        if asked.only in (None, "replay"):
            print("replay", json.dumps(replay(browser, asked.moments, asked.shots)), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
