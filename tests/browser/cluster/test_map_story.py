"""Drawing a cluster on the map, as a person would: two sites and a link, a plan of them, a reload, undo."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

_ON_SCREEN = """([longitude, latitude]) => {
  const fig = Bokeh.documents[0].get_model_by_name('editable-map')
  const view = Bokeh.index.find_one_by_id(fig.id), box = view.el.getBoundingClientRect()
  const x = 6378137 * longitude * Math.PI / 180
  const y = 6378137 * Math.log(Math.tan(Math.PI / 4 + latitude * Math.PI / 360))
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)]
}"""
_TYPES = """() => {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  return at?.getAttribute('aria-label') == 'Bandwidth'
}"""
FRANKFURT, TOKYO, CAPE_TOWN = (8.68, 50.11), (139.69, 35.68), (18.42, -33.92)


def spot(page, place: tuple[float, float]) -> list[float]:
    """Where a place is in the window."""
    return page.evaluate(_ON_SCREEN, list(place))


def press(page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).filter(visible=True).first.click()


# Where everything in the window beside the side bar stands that a person may press or type into, and the map.
_STANDING = """() => {
  const found = {}, seen = new Set()
  let left = 0
  const walk = (node) => {
    for (const child of node.children ?? []) {
      if (child.matches('[role=tab]') && !left) left = child.getBoundingClientRect().left
      if (child.matches('button, input, select') && child.checkVisibility({visibilityProperty: true})) {
        const box = child.getBoundingClientRect(), form = child.getRootNode().host?.className ?? ''
        const name = [form, child.tagName, child.getAttribute('aria-label') ?? child.textContent].join(' ')
        if (!seen.has(name)) found[name] = [box.left, box.top].map(Math.round)
        else delete found[name]  // of two alike none can be told from the other
        seen.add(name)
      }
      if (child.matches('canvas') && !('map' in found)) {
        const box = child.getBoundingClientRect()
        if (box.width > 300) found.map = [box.left, box.top, box.width, box.height].map(Math.round)
      }
      walk(child)
      if (child.shadowRoot) walk(child.shadowRoot)
    }
  }
  walk(document.body)
  return Object.fromEntries(Object.entries(found).filter(([_, at]) => at[0] >= left && at[1] < innerHeight))
}"""


class Hand:
    """Clicks and keys of a person on the map page, counted; nothing that stays may stand elsewhere after one."""

    def __init__(self, one) -> None:
        self.one, self.page, self.count = one, one.page, 0
        self.standing = self.page.evaluate(_STANDING)

    def did(self, clicks: int, until: str | re.Pattern) -> None:
        self.one.sees(until)
        self.count += clicks
        before, self.standing = self.standing, self.page.evaluate(_STANDING)
        assert len(before) > 12
        moved = {
            name: (at, self.standing[name])
            for name, at in before.items()
            if name in self.standing and self.standing[name] != at
        }
        assert moved == {}

    def presses(self, name: str, until: str | re.Pattern) -> None:
        press(self.page, name)
        self.did(1, until)

    def chooses(self, field: str, value: str, until: str | re.Pattern) -> None:
        """A click opens the list, another chooses."""
        self.page.get_by_label(field, exact=True).filter(visible=True).select_option(value)
        self.did(2, until)

    def clicks(self, place: tuple[float, float], until: str | re.Pattern) -> None:
        self.page.mouse.click(*spot(self.page, place))
        self.did(1, until)

    def drags(self, start: tuple[float, float], end: tuple[float, float], until: str | re.Pattern) -> None:
        drag(self.page, start, end)
        self.did(1, until)

    def types(self, key: str, until: str | re.Pattern) -> None:
        """One key and Enter."""
        self.page.keyboard.press(key)
        self.page.keyboard.press("Enter")
        self.did(2, until)


def drag(page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*spot(page, start))
    page.mouse.down()
    page.mouse.move(*spot(page, end), steps=6)
    page.mouse.up()


def test_three_sites_twelve_devices_and_three_links_are_drawn_in_a_few_clicks_and_nothing_moves(server_of_file, visit):
    one = visit(server_of_file.url)
    one.sees("From")  # the rest of the page is there
    hand = Hand(one)
    hand.presses("New map", "Began an empty cluster.")
    hand.chooses("How many devices a click adds", "4 ×", re.compile("Click: 4 × A100-80"))
    hand.clicks(FRANKFURT, "Added Frankfurt with 4 × A100-80.")
    for kind, place, name in (("T4", TOKYO, "Tokyo"), ("H100-SXM", CAPE_TOWN, "Cape Town")):
        hand.chooses("Kind of device that a click adds", kind, re.compile(f"Click: 4 × {kind}"))
        hand.clicks(place, f"Added {name} with 4 × {kind}.")
    hand.presses("Link", re.compile("Drag from one site to another"))
    sides = ((FRANKFURT, TOKYO, "Tokyo"), (TOKYO, CAPE_TOWN, "Cape Town"), (CAPE_TOWN, FRANKFURT, "Frankfurt"))
    typed = 0
    for number, (start, end, name) in enumerate(sides):
        hand.drags(start, end, re.compile(f"^Link .* ↔ {name}"))
        one.page.wait_for_function(_TYPES)
        hand.types(str(number + 2), re.compile(f": {number + 2} Gbit/s, "))
        typed += 2
    one.sees("drawn: 12 devices on 3 hosts at 3 sites (4 × A100-80, 4 × T4, 4 × H100-SXM)")
    one.sees(re.compile("9 specified"))
    assert hand.count <= 25
    assert hand.count - typed <= 15  # with bandwidths as the distance gives them


def test_two_sites_and_a_link_are_drawn_planned_reloaded_and_undone(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.page
    press(page, "New map")
    one.sees("Began an empty cluster.")
    for place, name in ((FRANKFURT, "Frankfurt"), (TOKYO, "Tokyo")):
        page.mouse.click(*spot(page, place))
        one.sees(f"Added {name} with 1 × A100-80.")
    press(page, "Select")
    one.sees("Name of the site")  # what was added last is selected
    page.keyboard.down("Shift")
    page.mouse.click(*spot(page, FRANKFURT))
    page.keyboard.up("Shift")
    form = page.locator(".controls").filter(has_text="Both ways")
    form.get_by_label("Bandwidth").fill("fast")
    press(page, "Set link")
    one.sees(re.compile("must be a number with a unit"))
    form.get_by_label("Bandwidth").fill("2 Gbit/s")
    form.get_by_label("One-way latency").fill("100 ms")
    press(page, "Set link")
    one.sees("2 specified")
    one.sees("drawn: 2 devices on 2 hosts at 2 sites (2 × A100-80)")
    # A drag moves the site, alone where no others are selected, and leaves the map where it is.
    page.keyboard.press("Escape")
    one.sees(re.compile("^Nothing. Click a site"))
    before = spot(page, TOKYO)
    page.mouse.move(*spot(page, CAPE_TOWN))
    drag(page, FRANKFURT, CAPE_TOWN)
    one.sees("Moved Frankfurt.")
    assert spot(page, TOKYO) == before
    page.keyboard.press("Control+z")
    one.sees("Undone: moved Frankfurt.")
    one.choose("Model", "tiny-gpt")
    one.set(budget_s="1")
    one.search()
    page.wait_for_url(re.compile("draft="))
    page.reload()
    one.settle()
    one.tab("1 Cluster")
    one.sees("drawn: 2 devices on 2 hosts at 2 sites (2 × A100-80)")
    undo = page.get_by_role("button", name="Undo", exact=True)
    expect(undo).to_have_attribute("title", re.compile("Ctrl-Z: link (Tokyo|Frankfurt) → (Tokyo|Frankfurt)"))
    undo.click()
    one.sees("drawn: 2 devices on 2 hosts at 2 sites (2 × A100-80); links: 4 assumed.")
