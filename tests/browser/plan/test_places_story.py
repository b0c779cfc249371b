"""Searches are places to go back to, a plan that was taken from the front is there after a reload, and the start page
leads to all of them, also after a restart of the server."""

import re

import pytest
from playwright.sync_api import Page

from hetplanner.ui.cluster.models.draft_files import DraftFiles
from hetplanner.ui.cluster.models.drafts import Draft, Step
from tests.support.files.hostile import IMG, hostile_cluster
from tests.support.pages.served_dashboard import PATIENCE_MS

pytestmark = pytest.mark.browser

NAMED = re.compile(r"\(plan ([0-9a-f]{8})\)\.")


def digest(page: Page) -> str:
    """Of the current plan."""
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


def test_back_shows_the_search_before_and_a_reload_the_plan_of_the_front(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.begin("laptop_8_cities", "gpt2", budget_s="2")
    one.sees("laptop_8_cities · gpt2")
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

    one.leave()
    server_of_file.stop()
    leave_hostile_files(server_of_file.home)
    server_of_file.start()
    goes_back_from_the_start_page(visit(server_of_file.url), free, taken)


def selected(page: Page, title: str) -> None:
    page.get_by_role("tab", name=title, selected=True).wait_for()


def test_every_page_is_as_it_was_after_back_forward_reload_and_restart(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.begin("lab_2_sites_4", "tiny-gpt", stages="2", replicas="2", budget_s="1")
    plan = searched(one)
    one.tab("3 Simulate")
    one.sees(re.compile(r"busiest \d+ of \d+ links in use"))
    page.get_by_label("Schedule", exact=True).filter(visible=True).first.select_option("gpipe")
    one.sees("schedule 1f1b → gpipe")
    one.tab("4 Run")
    page.get_by_role("button", name="All runs").click()
    page.wait_for_url(re.compile("section=runs"))
    one.tab("5 Export")
    one.sees("Download plan.json")

    for title in ("4 Run", "3 Simulate", "2 Plan", "1 Cluster"):
        page.go_back()
        selected(page, title)
    for title in ("2 Plan", "3 Simulate", "4 Run", "5 Export"):
        page.go_forward()
        selected(page, title)
    page.reload()
    one.settle()
    is_as_it_was(one, plan)
    page.wait_for_url(re.compile("page=export"))
    address = page.url
    one.leave()
    server_of_file.stop()
    server_of_file.start()
    is_as_it_was(visit(address), plan)


def is_as_it_was(one, plan: str) -> None:
    page = one.page
    selected(page, "5 Export")
    shows(one, plan)
    one.tab("4 Run")
    page.get_by_role("button", name="All runs", pressed=True).wait_for()
    one.tab("3 Simulate")
    one.sees("schedule 1f1b → gpipe")
    one.tab("2 Plan")
    shows(one, plan)
    one.tab("1 Cluster")
    one.sees("lab_2_sites_4: 4 devices")
    one.tab("5 Export")


def leave_hostile_files(home) -> None:
    files = DraftFiles(home)
    files.note(Draft(Step(hostile_cluster(), (), IMG)))
    files.flush()
    (home / "searches" / "0123456789ab.json").write_text("{")


def goes_back_from_the_start_page(one, searched: str, kept: str) -> None:
    page = one.page
    chooser = page.get_by_label("Sample cluster")
    before = chooser.bounding_box()
    entry = page.locator("button.entry")
    entry.filter(has_text=IMG).filter(has_text="4 devices").wait_for()
    one.sees("0123456789ab.json")
    one.sees("cannot be read")
    assert chooser.bounding_box() == before, "what is below does not move when entries come"
    assert page.evaluate("window.pwned") is None

    entry.filter(has_text="gpt2 on laptop_8_cities").filter(has_text="auto × auto").click()
    shows(one, searched)
    page.wait_for_url(re.compile("search="))
    page.go_back()
    page.get_by_role("tab", name="1 Cluster", selected=True).wait_for()
    entry.filter(has_text="of the front").focus()
    page.keyboard.press("Enter")
    shows(one, kept)
    one.tab("1 Cluster")
    entry.filter(has_text=IMG).click()
    one.sees("4 devices on 4 hosts at 4 sites")
    assert page.evaluate("window.pwned") is None

    page.get_by_role("button", name="Recent").click()
    entry.first.wait_for(state="hidden")
    page.reload()
    one.settle()
    fold = page.get_by_role("button", name="Recent")
    fold.wait_for()
    assert fold.get_attribute("aria-expanded") == "false"
    assert not entry.first.is_visible()
