"""A searched plan looked at span by span, changed, saved as derived, found again, exported; plan files opened."""

import json
import re
from pathlib import Path

import pytest

from hetplanner.planners.variants.derive import Derivation, derive_plan
from hetplanner.ui.export.model import plan_text
from tests.support.plans.factories import chain_plan

pytestmark = pytest.mark.browser


def field(page, label: str):
    return page.get_by_label(label, exact=True).filter(visible=True).first


def saved(page, button: str) -> bytes:
    """What a button of the first figure saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button, exact=True).filter(visible=True).first.click()
    return Path(download.value.path()).read_bytes()


def test_another_schedule_is_simulated_saved_exported_and_a_plan_file_opened(server, visit, tmp_path):
    one = visit(server.url)
    # The best plan of so small a model uses one device.
    page = one.begin("lab_2_sites_4", "tiny-gpt", stages="2", replicas="2", budget_s="1")
    one.search()
    one.tab("3 Simulate")
    one.sees(re.compile(r"busiest \d+ of \d+ links in use"))
    one.sees("Change a control to derive another plan")
    bars = page.evaluate(
        """() => [...Bokeh.documents[0]._all_models.values()]
             .filter(m => m.type == 'ColumnDataSource' && m.data.micro_batch && m.data.left)
             .reduce((n, m) => n + m.data.left.length, 0)"""
    )
    assert bars > 50
    field(page, "In flight, by stage").fill("7 7 7 7 7 7 7 7 7")
    page.keyboard.press("Enter")
    one.sees(re.compile("must be one number, or one for each of the"))
    field(page, "Schedule").select_option("gpipe")
    one.sees("schedule 1f1b → gpipe")
    one.sees(re.compile("against the plan|as good as the plan"))
    page.wait_for_url(re.compile("simulate="))
    page.reload()
    one.settle()
    one.sees("schedule 1f1b → gpipe")
    one.sees(re.compile("against the plan|as good as the plan"))
    assert saved(page, "PNG").startswith(b"\x89PNG")
    assert saved(page, "SVG").count(b"<path") > 50
    assert len(json.loads(saved(page, "Perfetto"))["traceEvents"]) > 50
    page.get_by_role("button", name="Save derived plan").click()
    one.sees("Run and Export use it")
    page.wait_for_url(re.compile("shown=.*derived"))
    page.reload()
    one.settle()
    one.tab("5 Export")
    one.sees(re.compile("by derived, seed 0 from plan [0-9a-f]{12}"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download plan.json").click()
    plan = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert (plan["schedule"], plan["provenance"]["planner"]) == ("gpipe", "derived")

    # Another plan comes as a file; a broken one is explained beside the button, and the first stays.
    give = one.upload("Open a plan file")
    text = plan_text(derive_plan(chain_plan([8, 8], [5]), Derivation()))
    give.set_input_files({"name": "<b>mine</b>.json", "mimeType": "application/json", "buffer": text.encode()})
    one.sees("test-gpt on small, 2 stages, 4 devices")
    one.sees("--nnodes=4 --rdzv-conf=rank=3")
    broken = json.loads(text)
    broken["stages"][1]["in_flight"] = 0
    give.set_input_files(
        {"name": "<img src=x>.json", "mimeType": "application/json", "buffer": json.dumps(broken).encode()}
    )
    one.sees("stages[1].in_flight")
    assert page.locator("img[src=x]").count() == 0
    one.sees("test-gpt on small, 2 stages, 4 devices")
    one.tab("3 Simulate")
    one.sees(re.compile(r"busiest \d+ of \d+ links in use"))
