"""What is drawn stays inside the window and inside its box, at all widths, in both themes, with a current plan."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from hetplanner.cluster.formats.cluster_files import cluster_to_json
from tests.support.pages.served_dashboard import REPOSITORY, Visit
from tests.support.plans.factories import sites_cluster

pytestmark = pytest.mark.browser

WIDTHS = {"light": (900, 1280, 1920, 2560), "dark": (900, 1920)}
"""Dark, the same boxes have other colours: the narrowest and a usual width tell."""
PAGES = {
    "1 Cluster": "Links, row to column",
    "2 Plan": "Why this plan",
    "3 Simulate": "at its simulated peak",
    "4 Run": "No run yet",
    "5 Export": "Download plan.json",
}
"""What each shows last."""
LOOK_MS = 20_000
# Every element that can be seen, through shadow roots: words that are cut, controls outside the window, legends that
# stand over what follows their figure. Figures and legends follow the width once the machine comes to it: one looks
# until nothing is found and everything has kept its place between two looks. A run's page never rests: there, a second
# is enough.
CUT_JS = """async (most_ms) => {
  const look = () => {
    const found = [], places = []
    const seen = (e) => e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true})
    const name = (e) => `${e.tagName} ${e.className?.baseVal ?? e.className} "${e.textContent.trim().slice(0, 40)}"`
    const own = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim())
    const scrolls = (e) => {
      for (; e; e = e.assignedSlot ?? e.parentNode ?? null) {
        if (e instanceof ShadowRoot) e = e.host
        if (!(e instanceof Element)) continue
        if (/auto|scroll/.test(getComputedStyle(e).overflowX) && e !== document.scrollingElement) return true
      }
      return false
    }
    const walk = (root) => {
      for (const e of root.querySelectorAll("*")) {
        if (e.shadowRoot) walk(e.shadowRoot)
        if (["STYLE", "SCRIPT", "OPTION", "PRE"].includes(e.tagName) || !seen(e)) continue
        const box = e.getBoundingClientRect()
        if (!box.width || !box.height || box.bottom < -1000) continue
        places.push(box.left, box.top, box.width, box.height)
        const style = getComputedStyle(e)
        const hides = style.overflowX !== "visible" && !/auto|scroll/.test(style.overflowX)
        const slides = /auto|scroll/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1
        if (slides && e.clientHeight > innerHeight / 2) found.push(`slides sideways: ${name(e)}`)
        if (own(e) && hides && e.scrollWidth > e.clientWidth + 1) found.push(`cut: ${name(e)}`)
        const acts = /^(BUTTON|INPUT|SELECT|TEXTAREA)$/.test(e.tagName) && e.type !== "file"
        if ((acts || own(e)) && (box.right > innerWidth + 1 || box.left < -1) && !scrolls(e))
          found.push(`outside: ${name(e)} ${Math.round(box.left)} to ${Math.round(box.right)}`)
      }
    }
    walk(document)
    for (const model of Bokeh.documents.flatMap((one) => [...one._all_models.values()])) {
      const figure = model.type === "Figure" ? Bokeh.index.find_one_by_id(model.id) : null
      if (figure && seen(figure.el) && figure.layout.bbox.width !== figure.bbox.width)
        found.push(`figure: ${figure.layout.bbox.width} wide in ${figure.bbox.width}`)
      const legend = model.type === "Legend" ? Bokeh.index.find_one_by_id(model.id) : null
      if (!legend || !seen(legend.el)) continue
      const over = legend.el.getBoundingClientRect().bottom - legend.plot_view.el.getBoundingClientRect().bottom
      if (over > 1) found.push(`legend: ${legend.el.textContent.slice(0, 60)} by ${Math.round(over)}`)
    }
    const wide = document.scrollingElement.scrollWidth
    if (wide > innerWidth + 1) found.push(`page: ${wide} wide`)
    return [found, places.join()]
  }
  const frame = () => new Promise(requestAnimationFrame)
  const pause = () => new Promise(done => setTimeout(done, 100))
  let before = null
  for (const began = performance.now(); ;) {
    await pause().then(frame).then(frame)
    const [found, places] = look(), took = performance.now() - began
    const rests = Bokeh.documents[0].is_idle && (places === before || took > 1000)
    if (rests && !found.length || took > most_ms) return found
    before = places
  }
}"""

# Where everything stands that one can click, by its name.
CONTROLS_JS = """() => {
  const found = {}
  const walk = (root) => {
    for (const e of root.querySelectorAll("*")) {
      if (e.shadowRoot) walk(e.shadowRoot)
      if (!/^(BUTTON|INPUT|TEXTAREA)$/.test(e.tagName) || e.type === "file") continue
      const box = e.getBoundingClientRect()
      const inSight = box.width && box.bottom > 0 && box.top < innerHeight
      if (!inSight || !e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true})) continue
      const name = e.ariaLabel || e.textContent.trim() || e.id
      if (name) found[name] = [Math.round(box.left), Math.round(box.top)]
    }
  }
  walk(document)
  return found
}"""


WATCH_JS = f"""() => {{
  const look = {CONTROLS_JS}, found = []
  let before = look()
  const watch = setInterval(() => {{
    const now = look()
    for (const name of Object.keys(before).filter((name) => name in now))
      if (before[name].some((at, i) => Math.abs(at - now[name][i]) > 1))
        found.push(`${{name}}: ${{before[name]}} to ${{now[name]}}`)
    before = now
  }}, 100)
  window.moved = () => {{ clearInterval(watch); return found }}
}}"""
"""Notes what moves, and from where to where, until `moved` is asked."""


def moved(page: Page, until: Locator) -> list[str]:
    """What moved while one waited."""
    page.evaluate(WATCH_JS)
    until.filter(visible=True).first.wait_for()
    page.wait_for_timeout(2000)  # what comes with the end, and a moment after it
    return page.evaluate("moved()")


def test_nothing_that_one_can_click_moves_when_a_search_ends(server, visit):
    one = visit(server.url)
    page = one.page
    page.set_viewport_size({"width": 900, "height": 1000})  # where texts have the most lines
    shape = page.get_by_text(re.compile(r"^4 × 4: .* auto: "))
    one.set(stages="4", replicas="4", budget_s="1")
    page.get_by_role("button", name="Search", exact=True).click()
    one.rests(page.get_by_role("button", name="Rehearse here"))
    assert not moved(page, shape)
    front = page.get_by_role("button", name="Find the front")
    front.scroll_into_view_if_needed()
    one.rests(front)
    front.click()
    assert not moved(page, page.get_by_text(re.compile(r"\d+ plans, none beaten in both")))
    page.get_by_role("button", name="Cheaper").click()
    one.sees(re.compile(r"pipelines? on \d+ devices"))
    page.get_by_role("button", name="Search", exact=True).click()
    shape.first.wait_for(state="hidden")
    assert not moved(page, shape)


def test_no_page_and_no_dialog_is_cut_or_outside_the_window(server, visit):
    one = visit(server.url)
    page = one.page
    one.set(stages="8", replicas="8", budget_s="1")
    one.search()
    one.sees("The choice that gains most is made first")

    @contextmanager
    def dialog() -> Iterator[None]:
        one.tab("4 Run")
        page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
        one.sees("Launch the rehearsal?")
        yield
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").wait_for(state="hidden")

    assert_whole(one, {name: tab(one, name) for name in PAGES} | {"dialog": dialog}, WIDTHS)


def test_a_large_cluster_is_whole(server, visit):
    one = visit(server.url)
    text = cluster_to_json(sites_cluster([64] * 8)).encode()
    one.upload("Import files").set_input_files({"name": "512.json", "mimeType": "application/json", "buffer": text})
    one.sees("sites: 512 devices on 512 hosts at 8 sites")
    places = {"1 Cluster": tab(one, "1 Cluster"), "2 Plan": tab(one, "2 Plan", "Idle")}
    assert_whole(one, places, {"light": (900, 1920), "dark": (900,)})


def test_no_section_of_a_run_is_cut_or_outside_the_window(own_server, visit):
    command = [sys.executable, str(REPOSITORY / "tests/support/runs/streamed_run.py"), str(own_server.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            one = visit(own_server.url)
            one.tab("4 Run")
            one.sees("Throughput")
            sections = one.page.get_by_role("group").filter(has_text="All\u00a0runs").get_by_role("button")
            expect(sections).to_have_count(8)
            places = {section.inner_text(): behind(section) for section in sections.all()}
            assert_whole(one, places, dict.fromkeys(WIDTHS, (900, 1920)))
        finally:
            running.kill()


Place = Callable[[], AbstractContextManager[None]]


def behind(button: Locator) -> Place:
    """What a click opens."""

    @contextmanager
    def place() -> Iterator[None]:
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        yield

    return place


def tab(one: Visit, name: str, shown: str | None = None) -> Place:
    """A page, once it is filled: by what it shows last, or by other words."""

    @contextmanager
    def place() -> Iterator[None]:
        one.tab(name)
        one.sees(shown or PAGES[name])
        yield

    return place


def assert_whole(one: Visit, places: Mapping[str, Place], widths: Mapping[str, Sequence[int]]) -> None:
    """Nothing is cut or outside the window in any of the places, at all widths of a theme."""
    broken: dict[str, list[str]] = {}
    for theme in widths:
        order = widths[theme]
        for name, place in places.items():
            with place():
                for width in order:
                    one.page.set_viewport_size({"width": width, "height": 1000})
                    found = one.page.evaluate(CUT_JS, LOOK_MS)
                    broken |= {f"{theme}, {width}, {name}": found} if found else {}
            order = order[::-1]  # the next place opens at the width of this one
        if theme == "light":
            one.page.get_by_role("button", name="Toggle theme").click()
            one.page.wait_for_function("Bokeh.documents[0].roots().some(({data}) => data?.dark_theme)")
    assert not broken, "\n".join(f"{where}:\n  " + "\n  ".join(found) for where, found in broken.items())
