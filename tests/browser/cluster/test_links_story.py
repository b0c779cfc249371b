"""Links: tables are imported, a cell of the heat map is clicked, its link edited and undone, bad values explained."""

import re

import pytest
from playwright.sync_api import expect

from hetplanner.cluster.formats.table_export import tables_of
from tests.support.plans.factories import sites_cluster

pytestmark = pytest.mark.browser


def typed(field, text: str) -> None:
    field.click()
    field.fill(text)
    field.press("Enter")


def test_tables_are_imported_a_link_is_clicked_edited_and_undone(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.page
    tables = tables_of(sites_cluster([2, 2, 2]), "csv")
    files = [{"name": name, "mimeType": "text/csv", "buffer": content} for name, content in tables.items()]
    give = one.upload("Import files")
    broken = files[0] | {"buffer": files[0]["buffer"].replace(b"0.05", b"slow", 1)}
    give.set_input_files([broken, *files[1:]])
    one.sees(re.compile(r"bandwidth_gbit_s.csv: row 'd0', column 'd2': must be a number, got 'slow'"))
    one.sees("dtfm_5_worldwide: 64 devices")
    give.set_input_files(files)
    one.sees("bandwidth_gbit_s: 6 devices on 6 hosts at 3 sites")

    figure = page.locator(".bk-Figure").filter(has=page.locator("canvas")).nth(1)
    figure.scroll_into_view_if_needed()
    one.rests(figure)
    box = figure.bounding_box()
    bandwidth = page.get_by_role("textbox", name="Bandwidth (Gbit/s)")
    page.mouse.click(box["x"] + box["width"] * 0.68, box["y"] + 30)
    expect(bandwidth).to_have_value("50 Mbit/s")
    one.sees("measured.")

    typed(bandwidth, "2 Gbps")
    one.sees("must be a number with a unit, as in '1.12 Gbit/s', got '2 Gbps'; did you mean Gbit/s?")
    typed(bandwidth, "2")
    expect(bandwidth).to_have_value("2 Gbit/s")
    one.sees(re.compile("Before it was edited: measured: 50 Mbit/s, 20 ms"))
    cell = page.get_by_label("bandwidth site-0 → site-2")
    expect(cell).to_have_value("2")
    expect(page.get_by_label("bandwidth site-2 → site-0")).to_have_value("2")
    page.get_by_role("button", name="Undo").click()
    expect(cell).to_have_value("0.05")
    expect(bandwidth).to_have_value("50 Mbit/s")

    latency = page.get_by_label("latency site-0 → site-1")
    typed(latency, "soon")
    one.sees("site-0 → site-1: must be a number with a unit, as in '67 ms', got 'soon'")
    typed(latency, "33")
    expect(page.get_by_label("latency site-1 → site-0")).to_have_value("33")
    one.sees("specified 2")
    page.get_by_label("Paste a file").fill(
        "\tsite-0\tsite-1\tsite-2\nsite-0\t1\t2\t3\nsite-1\t4\t5\t6\nsite-2\t7\t8\t9"
    )
    page.get_by_role("button", name="Import pasted text").click()
    expect(cell).to_have_value("3")
    page.wait_for_url(re.compile("draft="))
    page.reload()
    one.settle()
    expect(page.get_by_label("bandwidth site-2 → site-0")).to_have_value("7", timeout=30_000)


def test_refused_and_doubtful_files_say_why_beside_the_button(server_of_file, visit):
    one = visit(server_of_file.url)
    give = one.upload("Import files")
    texts = {
        "bandwidth.csv": ",a,b\na,,1\nb,1,\n",
        "latency.csv": ",a,b\na,,5\nb,5,\n",
        "devices.csv": "id,kind,site\na,T4,X\nb,T4,X\na,T4,X\n",
    }
    give.set_input_files([{"name": n, "mimeType": "text/csv", "buffer": t.encode()} for n, t in texts.items()])
    one.sees("devices.csv: devices: device 'a' is there 2 times; keep one row of it")
    doubtful = DOUBTFUL.encode()
    give.set_input_files({"name": "mine.json", "mimeType": "application/json", "buffer": doubtful})
    one.sees("mine.json: site_links[0].bandwidth: '1.12 GB/s' is 8.96 Gbit/s; if 1.12 Gbit/s was meant, write that")
    one.sees("doubtful: 1 device on 1 host at 1 site")


DOUBTFUL = """{"format": "hetplanner/cluster@1", "name": "doubtful",
 "devices": [{"id": "d", "kind": "T4", "site": "A"}],
 "sites": [{"name": "A", "latitude": 0, "longitude": 0}], "site_links": [{"from": "A", "to": "A", "latency": "1 ms",
 "bandwidth": "1.12 GB/s"}]}"""
