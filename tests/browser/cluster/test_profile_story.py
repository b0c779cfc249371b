"""A measured profile: imported, used by kind and by the search, left out for another model, removed."""

import re

import pytest
from playwright.sync_api import expect

from hetplanner.profiles.files import profile_to_json
from hetplanner.workload.presets import preset
from tests.support.plans.profiles import made_collectives, profile_of

pytestmark = pytest.mark.browser


def test_a_profile_is_imported_used_left_out_for_another_model_and_removed(server, visit):
    one = visit(server.url)
    page = one.begin("laptop_8_cities", "tiny-gpt")
    one.sees("8 × CPU generic: catalog")
    give = one.upload("Import profile")
    rows = "".join(f"1,{layer},0.1,0.2\n" for layer in ("embedding", "block", "head"))
    table = {"name": "mine.csv", "mimeType": "text/csv"}
    table["buffer"] = f"micro_batch,layer,forward_s,backward_s\n{rows}".encode()
    give.set_input_files(table)
    one.sees("mine.csv: does not say what kind of device was measured; give it (kind of device")
    kind = page.get_by_role("textbox", name="Kind of device")
    kind.fill("CPU generic")
    kind.press("Tab")
    give.set_input_files(table)
    one.sees("8 × CPU generic: profile (extrapolated to micro-batch 2 from 1)")
    expect(page.get_by_text("Measured collectives").filter(visible=True)).to_have_count(0)
    measured = profile_of(preset("tiny-gpt"), "CPU generic").replace(collectives=made_collectives("CPU generic"))
    text = profile_to_json(measured)
    give.set_input_files({"name": "mine.json", "mimeType": "application/json", "buffer": text.encode()})
    one.sees("Source: a test")
    used = re.compile(r"8 × CPU generic: profile \(measured at micro-batch 2\)")
    one.sees(used)
    expect(page.get_by_role("cell", name="block × 6").first).to_be_visible()
    one.sees("Measured collectives")
    one.sees(re.compile("^Step times use them for the exchange in groups"))
    one.set(budget_s="0.5")
    one.search()
    one.sees(used)

    one.tab("1 Cluster")
    one.choose("Model", "gpt2")
    one.sees(re.compile("Not used: .* is of float32, the workload of float16; choose number format float32"))
    one.sees("8 × CPU generic: catalog")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download profile").click()
    assert download.value.path().read_text() == text
    page.get_by_role("button", name="Remove", exact=True).filter(visible=True).click()
    one.sees("hetplanner profile MODEL -o profile.json")
    for gone in ("Not used:", "Measured collectives"):
        expect(page.get_by_text(gone).filter(visible=True)).to_have_count(0)
