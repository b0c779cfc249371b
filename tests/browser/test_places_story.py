"""Searches are places to go back to, and a plan that was taken from the front is there after a reload."""

import re

import pytest
from playwright.sync_api import Page
from served_dashboard import PATIENCE_MS
from test_plan_story import budget, choose

pytestmark = pytest.mark.browser

NAMED = re.compile(r"\(plan ([0-9a-f]{8})\)\.")


def digest(page: Page) -> str:
    """Of the plan in hand."""
    found = NAMED.search(page.get_by_text(NAMED).filter(visible=True).first.inner_text(timeout=PATIENCE_MS))
    assert found is not None
    return found[1]


def shows(one, plan: str) -> None:
    one.sees(re.compile(rf"\(plan {plan}\)\."))


def searched(one) -> str:
    before = one.page.url
    one.page.get_by_role("button", name="Search", exact=True).click()
    one.page.wait_for_url(lambda url: "search=" in url and url != before)
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    return digest(one.page)


def test_back_shows_the_search_before_and_a_reload_the_plan_of_the_front(server, visit):
    one = visit(server.url)
    page = one.page
    choose(page, "Sample cluster", "laptop_8_cities")
    one.sees("laptop_8_cities: 8 devices")
    choose(page, "Model", "gpt2")
    one.sees("laptop_8_cities · gpt2")
    budget(page, "2")
    free = searched(one)
    stages = page.locator("#setting-stages")
    stages.fill("2")
    stages.press("Tab")
    one.sees("the settings ask for 2 stages")
    fixed = searched(one)
    assert fixed != free
    page.go_back()
    shows(one, free)
    page.go_forward()
    shows(one, fixed)

    page.get_by_role("button", name="Find the front").click()
    one.sees(re.compile(r"\d+ plans, none beaten in both"))
    page.get_by_role("button", name="Cheaper").click()
    page.get_by_role("button", name="Take this plan").click()
    one.sees(re.compile("Kept as gpt2 .* of the front"))
    page.wait_for_url(re.compile("shown="))
    taken = digest(page)
    assert taken not in (free, fixed)
    page.reload()
    one.settle()
    shows(one, taken)
