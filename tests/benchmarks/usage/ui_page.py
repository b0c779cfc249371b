"""A dashboard in headless Chromium, measured from inside: when an answer is seen, how many frames are drawn."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.pages.find_browser import find_browser
from tests.support.pages.served_dashboard import PATIENCE_MS, Visit

REPOSITORY = Path(__file__).parents[3]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    # Three pages side by side are three windows in sight, not two that sleep.
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
]  # fmt: skip
SIZE = {"width": 1600, "height": 1000}
ANSWER_MS = 15_000

# `arm` waits for an answer: from the last key, button or change before it, to the frame after the one that shows it.
SCRIPT = """
window.bench = (() => {
  // Looking must cost little: it happens in the thread that is measured. So only when something may have changed.
  const LOOK_MS = 100, REST_MS = 30
  const WATCHED = {subtree: true, childList: true, characterData: true, attributes: true}
  let looked = 0, changed = true
  const note = records => {
    changed = true
    for (const {type, target} of records) if (type === "childList") texts.delete(target.getRootNode())
  }
  const watcher = new MutationObserver(note)
  const roots = [document]
  watcher.observe(document, WATCHED)
  const attach = Element.prototype.attachShadow
  Element.prototype.attachShadow = function (options) {
    const root = attach.call(this, options)
    roots.push(root)
    watcher.observe(root, WATCHED)
    return root
  }
  const visible = element => element?.checkVisibility({visibilityProperty: true})
  const here = () => roots.filter(root => root === document || root.host.isConnected)
  // Texts of a root are collected again only if its tree has changed, and never those of its style sheets.
  const texts = new Map()
  const texts_of = root => {
    const found = []
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) {
      if (!["SCRIPT", "STYLE"].includes(walker.currentNode.parentNode.nodeName)) found.push(walker.currentNode)
    }
    texts.set(root, found)
    return found
  }
  function* nodes() {
    for (const root of here()) yield* texts.get(root) ?? texts_of(root)
  }
  const shown = ({parentNode: at}) => visible(at?.host ?? at)
  const sees = text => {
    for (const node of nodes()) if (node.data.includes(text) && shown(node)) return true
    return false
  }
  const first = pattern => {
    for (const node of nodes()) {
      const found = node.data.match(pattern)
      if (found && shown(node)) return found[1]
    }
    return null
  }
  const deep = selector => here().flatMap(root => [...root.querySelectorAll(selector)])
  const models = type => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === type)
  const sizes = () => models("ColumnDataSource").map(s => s.get_length() ?? 0)
  const colours = () => JSON.stringify(models("LinearAxis").map(a => a.axis_label_text_color))
  let begun = null
  const start = () => { begun = performance.now() }
  for (const kind of ["pointerdown", "keydown", "change", "drop"]) window.addEventListener(kind, start, true)
  let answer = null
  const arm = (code, limit) => {
    const test = new Function("was", `return (${code})`)
    const was = {colours: colours(), sizes: sizes()}
    begun = null
    answer = new Promise((resolve, reject) => {
      const armed = performance.now()
      const look = () => {
        const now = performance.now()
        if (now - armed > limit) return resolve(null)
        if (begun !== null && now - looked > (changed ? REST_MS : LOOK_MS)) {
          changed = false
          looked = now
          note(watcher.takeRecords())
          if (test(was)) return requestAnimationFrame(() => resolve(performance.now() - begun))
        }
        requestAnimationFrame(look)
      }
      look()
    })
  }
  const frames = seconds => new Promise(resolve => {
    const times = []
    const note = now => {
      times.push(now)
      if (now - times[0] < 1000 * seconds) requestAnimationFrame(note)
      else {
        const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b)
        const at = share => gaps[Math.min(gaps.length - 1, Math.floor(share * gaps.length))]
        resolve({frames_per_s: 1000 * gaps.length / (now - times[0]), p99_ms: at(0.99), longest_ms: at(1)})
      }
    }
    requestAnimationFrame(note)
  })
  return {visible, sees, first, deep, models, sizes, colours, start, arm, answer: () => answer, frames}
})()
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium without a profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield browser
        browser.close()


def opened(browser: Browser, url: str, *, watched: bool = True) -> Visit:
    """A page in a context of its own, ready to use; requests and complaints are noted.

    Args:
        watched: answers can be waited for from inside, which slows the making of the page by some 0.3 s.
    """
    page = browser.new_context(viewport=SIZE).new_page()
    page.set_default_timeout(PATIENCE_MS)  # the machine may be busy; what is measured has a clock of its own
    one = Visit(page)
    page.on("request", lambda r: one.requests.append(r.url))
    page.on("console", lambda m: one.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: one.complaints.append(e.stack or str(e)))
    if watched:
        page.add_init_script(SCRIPT)
    return one.open(url)


def outside(visit: Visit) -> list[str]:
    """Requests that left the server."""
    own = "/".join(visit.page.url.split("/")[:3])
    return sorted({u for u in visit.requests if not u.startswith((own + "/", "data:", "blob:"))})


def settle(page: Page) -> None:
    """Until nothing more is drawn."""
    page.wait_for_function("Bokeh.documents[0].is_idle", timeout=PATIENCE_MS)
    page.wait_for_timeout(300)


def latency_ms(page: Page, seen: str, do: Callable[[Page], Any]) -> float | None:
    """From the last event of `do` to the frame that shows its answer; None if that did not come.

    Args:
        seen: JavaScript that is true once the answer shows; `was` has what was drawn before.
        do: acts as a person would.
    """
    page.evaluate(f"bench.arm({json.dumps(seen)}, {ANSWER_MS})")
    do(page)
    found = page.evaluate("bench.answer()")
    return None if found is None else float(found)


def sees(text: str) -> str:
    """JavaScript: the text can be seen."""
    return f"bench.sees({json.dumps(text)})"
