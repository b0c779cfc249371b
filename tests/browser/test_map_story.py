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
FRANKFURT, TOKYO, CAPE_TOWN = (8.68, 50.11), (139.69, 35.68), (18.42, -33.92)


def spot(page, place: tuple[float, float]) -> list[float]:
    """Where a place is in the window."""
    return page.evaluate(_ON_SCREEN, list(place))


def press(page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).filter(visible=True).first.click()


def test_two_sites_and_a_link_are_drawn_planned_reloaded_and_undone(server, visit):
    one = visit(server.url)
    page = one.page
    press(page, "New map")
    one.sees("Began an empty cluster.")
    for place, name in ((FRANKFURT, "Frankfurt"), (TOKYO, "Tokyo")):
        page.mouse.click(*spot(page, place))
        one.sees(f"Added {name} with 1 × A100-80.")
    press(page, "Add")
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
    # A drag moves the site and leaves the map where it is.
    before = spot(page, TOKYO)
    start, end = spot(page, FRANKFURT), spot(page, CAPE_TOWN)
    page.mouse.move(start[0] - 40, start[1])
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=6)
    page.mouse.up()
    one.sees("Moved Frankfurt.")
    assert spot(page, TOKYO) == before
    page.keyboard.press("Control+z")
    one.sees("Undone: moved Frankfurt.")
    page.get_by_label("Model", exact=True).filter(visible=True).first.click()
    page.get_by_role("menuitem", name="tiny-gpt", exact=True).click()
    field = page.get_by_label("Budget (s)")
    field.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("3")
    page.keyboard.press("Tab")
    press(page, "Search")
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    page.wait_for_url(re.compile("draft="))
    page.reload()
    one.settle()
    one.tab("1 Cluster")
    one.sees("drawn: 2 devices on 2 hosts at 2 sites (2 × A100-80)")
    undo = page.get_by_role("button", name="Undo", exact=True)
    expect(undo).to_have_attribute("title", re.compile("Ctrl-Z: link (Tokyo|Frankfurt) → (Tokyo|Frankfurt)"))
    undo.click()
    one.sees("drawn: 2 devices on 2 hosts at 2 sites (2 × A100-80); links: 4 assumed.")
