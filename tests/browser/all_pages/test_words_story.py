"""Every "?" of a page shows its words in full: inside the window, and nothing stands over them."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

UNCOVERED_JS = """words => {
  const box = words.getBoundingClientRect(), root = words.getRootNode()
  const inside = box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight
  const corners = [[box.left + 9, box.top + 9], [box.right - 9, box.top + 9], [box.left + 9, box.bottom - 9]]
  return inside && corners.every(([x, y]) => words.contains(root.elementFromPoint(x, y)))
}"""


def test_the_words_behind_every_mark_can_be_read(server, visit):
    one = visit(server.url)
    for width, tab, least in ((900, "2 Plan", 8), (1280, "2 Plan", 8), (1280, "3 Simulate", 4)):
        one.page.set_viewport_size({"width": width, "height": 800})
        one.tab(tab)
        expect(one.page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        one.sees("Idle")
        of_plan = one.page.get_by_text("the best plan so far appears here").filter(visible=True)
        expect(of_plan).to_have_count(int(tab == "2 Plan"))  # the page before stays until the new one is drawn
        marks = one.page.get_by_role("button", name="What is ").filter(visible=True)
        expect(marks.nth(least - 1)).to_be_visible()
        for mark in marks.all():
            mark.click()
            words = one.page.locator(".words:popover-open")
            expect(words).to_have_text(mark.get_attribute("title"))
            assert words.evaluate(UNCOVERED_JS), (width, tab, mark.get_attribute("aria-label"))
            one.page.keyboard.press("Escape")
            expect(words).to_have_count(0)
