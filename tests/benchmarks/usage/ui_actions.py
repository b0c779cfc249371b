"""What a person does on the pages, and by what the answer is known: `bench_ui.py actions` times each.

A new page is opened without a word here; a new action needs a line in `actions`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from playwright.sync_api import Locator, Page, TimeoutError

from tests.benchmarks.usage.ui_page import sees

SECTIONS = {
    "timeline": "Timeline",
    "network": "Network",
    "hosts": "Hosts",
    "swarm": "Swarm",
    "events": "Events & logs",
    "text": "Text",
    "runs": "All runs",
    "progress": "Progress",
}


@dataclass(frozen=True)
class Action:
    """Something to do.

    Attributes:
        name: for the table.
        page: where it is done.
        seen: JavaScript, true once the answer shows; a function of the page where it depends on what is shown before.
        do: the deed; the clock starts with its last key, click or change.
        prepare: what comes before it and is not timed.
    """

    name: str
    page: str
    seen: str | Callable[[Page], str]
    do: Callable[[Page], object]
    prepare: Callable[[Page], object] = lambda page: None


def shows(name: str) -> str:
    """JavaScript: a page is in sight."""
    return f"bench.deep('.page-{name}').some(e => bench.visible(e) && e.offsetHeight > 50)"


def tab(page: Page, name: str) -> Locator:
    return page.get_by_role("tab", name=re.compile(rf"^\d+ {name}$", re.IGNORECASE))


def show(page: Page, name: str) -> None:
    """Opens a page and waits until it shows."""
    tab(page, name).click()
    page.wait_for_function(shows(name), timeout=60_000)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True).filter(visible=True).first


def typed(page: Page, label: str, text: str) -> None:
    """Types into a field of the side bar, and leaves it."""
    field = page.get_by_label(label, exact=True).filter(visible=True).first
    field.fill(text)
    field.press("Tab")


def num_devices(page: Page) -> int:
    """Of the cluster that is shown."""
    return int(page.evaluate(r"bench.first(/: (\d+) devices on/)"))


def one_more(page: Page) -> str:
    return sees(f" {num_devices(page) + 1} devices on")


def one_less(page: Page) -> str:
    return sees(f" {num_devices(page) - 1} devices on")


def on_the_sea(page: Page) -> None:
    """Clicks into the South Atlantic."""
    drawn = page.locator(".bk-Figure").filter(visible=True).first
    box = drawn.bounding_box()
    assert box is not None
    page.wait_for_timeout(500)  # two clicks within 250 ms are a double tap
    drawn.click(position={"x": 0.5 * box["width"], "y": 0.85 * box["height"]})


def start_adding(page: Page) -> None:
    if page.get_by_role("button", name="Add", exact=True).get_attribute("aria-pressed") != "true":
        button(page, "Add").click()
        page.wait_for_timeout(500)


def fill_site(page: Page) -> None:
    page.get_by_label("Place", exact=True).filter(visible=True).first.fill("-30, -20")
    page.get_by_label("Devices", exact=True).filter(visible=True).first.fill("1")


def cell(page: Page) -> Locator:
    """The bandwidth from the first site to the second."""
    return page.get_by_role("textbox", name=re.compile("^bandwidth .+ → ")).filter(visible=True).nth(1)


def other_bandwidth(page: Page) -> None:
    """Types another number into the table, and Enter."""
    field = cell(page)
    field.fill("123 Mbit/s" if "321" in field.input_value() else "321 Mbit/s")
    field.press("Enter")


def other_bandwidth_words(page: Page) -> str:
    return sees(": 123 Mbit/s." if "321" in cell(page).input_value() else ": 321 Mbit/s.")


def choose(page: Page, name: str, **option: str | int) -> None:
    """Another value of a list; its change does not leave the component it happens in, so the clock is started here."""
    field = page.get_by_label(name, exact=True).filter(visible=True).first.element_handle()
    page.evaluate("bench.start()")
    field.select_option(**option)


def drop_device(page: Page) -> None:
    choose(page, "Drop a device", index=2)


def other_codec(page: Page) -> None:
    now = page.get_by_label("Between stages", exact=True).filter(visible=True).first.input_value()
    choose(page, "Between stages", label="as planned" if now == "int8" else "int8")


def section(name: str) -> str:
    """JavaScript: a section of the Run page is in sight."""
    return f"bench.deep('.section-{name}').some(e => bench.visible(e) && e.offsetHeight > 50)"


def timeline(page: Page) -> None:
    button(page, "Timeline").click()
    page.wait_for_function(section("timeline"), timeout=60_000)


def toggle_theme(page: Page) -> None:
    page.get_by_role("button", name="Toggle theme").click()


def settled(page: Page) -> None:
    page.wait_for_timeout(2000)


def stop_search(page: Page) -> None:
    if button(page, "Stop").is_enabled():
        with suppress(TimeoutError):  # it has ended by itself in the meantime
            button(page, "Stop").click(timeout=5_000)
        page.wait_for_function(f"{sees('Stopped')} || {sees('Done: ')}", timeout=60_000)


def actions(pages: list[str]) -> Iterator[Action]:
    """All actions on these pages, in an order in which each finds what it needs: a plan, a search, a run."""
    wrong = "bench.deep('.field.wrong').length > 0"
    yield Action("map: add a device by a click", "cluster", one_more, on_the_sea, start_adding)
    yield Action("map: undo", "cluster", one_less, lambda p: button(p, "Undo").click())
    yield Action("map: redo", "cluster", one_more, lambda p: button(p, "Redo").click())
    yield Action("map: undo again", "cluster", one_less, lambda p: button(p, "Undo").click())
    yield Action("map: add a whole site", "cluster", one_more, lambda p: button(p, "Add site").click(), fill_site)
    yield Action("map: undo the site", "cluster", one_less, lambda p: button(p, "Undo").click())
    yield Action("links: type a bandwidth", "cluster", other_bandwidth_words, other_bandwidth)
    yield Action("settings: a wrong number", "cluster", wrong, lambda p: typed(p, "Stages", "-1"))
    yield Action("settings: the right one", "cluster", f"!({wrong})", lambda p: typed(p, "Stages", "8"))
    for name in [*pages[1:], pages[0]]:
        yield Action(f"open page {name}", name, shows(name), lambda p, name=name: tab(p, name).click())
    metric = "bench.deep('[data-metric=what-if]').some(bench.visible)"
    yield Action("what if: drop a device", "plan", metric, drop_device)
    yield Action("what if: clear", "plan", f"!({metric})", lambda p: button(p, "Clear").click())
    yield Action("simulate: another codec", "simulate", sees("Derived:"), other_codec)
    yield Action("simulate: back to it", "simulate", f"!({sees('Derived:')})", other_codec)
    for name, label in SECTIONS.items():
        yield Action(f"run: open {label}", "run", section(name), lambda p, label=label: button(p, label).click())
    yield Action("run: pause the timeline", "run", sees("Follow"), lambda p: button(p, "Pause").click(), timeline)
    yield Action("run: follow it again", "run", sees("Pause"), lambda p: button(p, "Follow").click())
    ended = f"{sees('stopping …')} || {sees('Stopped')}"
    yield Action("search: stop", "plan", ended, lambda p: button(p, "Stop").click())  # of a search just begun
    yield Action("search: start", "plan", f"!({ended})", lambda p: button(p, "Search").click(), stop_search)
    theme = "bench.colours() !== was.colours"
    yield Action("theme: dark", "cluster", theme, toggle_theme, settled)
    yield Action("theme: light", "cluster", theme, toggle_theme, settled)
