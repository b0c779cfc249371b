"""Understanding a plan: what if, keeping plans, comparing them, and finding them again after a reload."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.plan.test_plan_story import metric
from tests.support.pages.served_dashboard import PATIENCE_MS

pytestmark = pytest.mark.browser


def test_what_if_then_two_plans_kept_compared_and_found_again(server_of_file, visit):
    one = visit(server_of_file.url)
    # The best plan of so small a model uses one device.
    page = one.begin("laptop_8_cities", "tiny-gpt", stages="4", replicas="2", budget_s="2")
    one.search()
    one.sees("Why this plan:")
    one.sees(re.compile(r"as a launcher places them"))
    one.sees("Bottleneck:")

    sharing = page.get_by_role("combobox", name="Devices in a group")
    sharing.select_option("2")
    one.sees("no host has 2 usable devices of one kind")
    sharing.select_option("as planned")
    page.get_by_label("Drop a device").select_option(index=2)
    one.sees(re.compile(r"against .* now"))
    one.sees("Bottleneck then:")
    one.sees("Tightest memory then:")
    page.get_by_label("Codec", exact=True).select_option("int8")
    one.sees("all links between stages: int8")
    one.sees(re.compile("quality not modelled: int8 on"))
    changed = metric(page, "what-if")

    keep_found, keep_changed = (page.get_by_role("button", name="Keep this plan").nth(n) for n in (1, 0))
    page.get_by_label("Name (optional)").fill("as found")
    keep_found.click()
    one.sees("Kept as as found.")
    page.get_by_label("Name (optional)").fill("without one")
    keep_changed.click()
    one.sees("Kept as without one.")
    table = page.locator("[data-comparison]")
    expect(table).to_contain_text("same place")
    expect(table.locator("thead")).to_contain_text("as found")
    expect(table).to_contain_text(changed)
    assert sorted(path.stem for path in (server_of_file.home / "plans").iterdir()) == ["as found", "without one"]

    page.wait_for_url(re.compile("kept=as.found.*without.one"))
    page.reload()
    one.settle()
    expect(page.locator("[data-comparison] thead")).to_contain_text("without one")
    one.sees("Bottleneck then:")
    assert metric(page, "what-if") == changed

    page.get_by_role("button", name="Plan again from here").click()
    expect(page.locator("[data-metric='what-if']")).to_have_count(0, timeout=PATIENCE_MS)
    page.wait_for_url(lambda url: "search=" in url and "whatif=" not in url)
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    late = visit(server_of_file.url)
    late.tab("2 Plan")
    late.sees("without one")
