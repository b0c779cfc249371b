"""What is drawn stays inside the window and inside its box, at all widths, in both themes, with a plan in hand."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest
from factories import sites_cluster
from playwright.sync_api import Locator, Page, expect
from served_dashboard import REPOSITORY, Visit

from hetplanner.cluster.formats.cluster_files import cluster_to_json

pytestmark = pytest.mark.browser

WIDTHS = (900, 1280, 1920, 2560)
LOOKS = 20
# Every element that can be seen, through shadow roots: words that are cut, controls outside the window, legends that
# stand over what follows their figure.
CUT_JS = """() => {
  const found = []
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
  return found
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


def moved(page: Page, until: Locator) -> list[str]:
    """What moved while one waited, and from where to where."""
    found, before = [], page.evaluate(CONTROLS_JS)
    end = None
    while end is None or time.monotonic() < end:
        if end is None and until.filter(visible=True).count():
            end = time.monotonic() + 2.0  # what comes with the end, and a moment after it
        now = page.evaluate(CONTROLS_JS)
        for name in before.keys() & now.keys():
            if any(abs(a - b) > 1 for a, b in zip(before[name], now[name], strict=True)):
                found.append(f"{name}: {before[name]} to {now[name]}")
        before = now
        page.wait_for_timeout(100)
    return found


def test_nothing_that_one_can_click_moves_when_a_search_ends(server, visit):
    one = visit(server.url)
    page = one.page
    page.set_viewport_size({"width": 900, "height": 1000})  # where texts have the most lines
    shape = page.get_by_text(re.compile(r"^4 × 4: .* auto: "))
    for name, value in (("stages", "4"), ("replicas", "4"), ("budget_s", "2")):
        page.locator(f"#setting-{name}").fill(value)
        page.keyboard.press("Tab")
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


def test_nothing_is_cut_or_outside_the_window(server, visit):
    one = visit(server.url)
    page = one.page
    for name, value in (("stages", "8"), ("replicas", "8"), ("budget_s", "1")):
        page.locator(f"#setting-{name}").fill(value)
        page.keyboard.press("Tab")
    page.get_by_role("button", name="Search", exact=True).click()
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    one.sees("The choice that gains most is made first")
    pages = ("1 Cluster", "2 Plan", "3 Simulate", "4 Run", "5 Export")
    assert_whole(one, {name: behind(page.get_by_role("tab", name=name)) for name in pages}, WIDTHS)


def test_the_launch_dialog_and_a_large_cluster_are_whole(server, visit):
    one = visit(server.url)

    @contextmanager
    def dialog() -> Iterator[None]:
        one.tab("4 Run")
        one.page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
        one.sees("Launch the rehearsal?")
        yield
        one.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        one.page.get_by_role("dialog").wait_for(state="hidden")

    assert_whole(one, {"dialog": dialog}, WIDTHS)
    one.tab("1 Cluster")
    text = cluster_to_json(sites_cluster([64] * 8)).encode()
    one.upload("Import files").set_input_files({"name": "512.json", "mimeType": "application/json", "buffer": text})
    one.sees("sites: 512 devices on 512 hosts at 8 sites")
    pages = ("1 Cluster", "2 Plan")
    assert_whole(one, {name: behind(one.page.get_by_role("tab", name=name)) for name in pages}, (900, 1920))


def test_no_section_of_a_run_is_cut_or_outside_the_window(server, visit):
    command = [sys.executable, str(REPOSITORY / "tests" / "streamed_run.py"), str(server.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            one = visit(server.url)
            one.tab("4 Run")
            one.sees("Throughput")
            sections = one.page.get_by_role("group").filter(has_text="All\u00a0runs").get_by_role("button")
            expect(sections).to_have_count(8)
            assert_whole(one, {section.inner_text(): behind(section) for section in sections.all()}, (900, 1920))
        finally:
            running.kill()


Place = Callable[[], AbstractContextManager[None]]


def behind(button: Locator) -> Place:
    """What a click opens."""

    @contextmanager
    def place() -> Iterator[None]:
        button.click()
        yield

    return place


def assert_whole(one: Visit, places: Mapping[str, Place], widths: Sequence[int]) -> None:
    """Nothing is cut or outside the window in any of the places, at all widths, in both themes."""
    broken: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        for width in widths:
            one.page.set_viewport_size({"width": width, "height": 1000})
            for name, place in places.items():
                with place():
                    for _ in range(LOOKS):  # figures and legends follow the width once the machine comes to it
                        one.page.wait_for_timeout(1000)
                        found = one.page.evaluate(CUT_JS)
                        if not found:
                            break
                    else:
                        broken[f"{theme}, {width}, {name}"] = found
        one.page.get_by_role("button", name="Toggle theme").click()
        is_dark = "Bokeh.documents[0].roots().some(({data}) => data?.dark_theme)"
        one.page.wait_for_function(is_dark if theme == "light" else f"!{is_dark}")
    assert not broken, "\n".join(f"{where}:\n  " + "\n  ".join(found) for where, found in broken.items())
