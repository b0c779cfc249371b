"""CSV tables with names that begin like formulas: inert in a spreadsheet, the same names when read back."""

import csv
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_data
from hetplanner.cluster.formats.spreadsheet import guarded, unguarded
from hetplanner.cluster.formats.table_export import export_tables, tables_of
from hetplanner.cluster.formats.tables import cluster_from_folder
from hetplanner.cluster.formats.uploads import cluster_from_uploads
from hetplanner.cluster.model import DeviceLink
from hetplanner.planners.comparison import Comparison, ComparisonRow
from tests.support.plans.factories import chain_plan, small_cluster

FORMULAS = ("=HYPERLINK(0)", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=quoted", "''=twice", "\uff1dwide", "'plain")
BEGINNINGS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"


def strange_cluster():
    """Devices, hosts and sites called like formulas, in the south-west, where numbers are negative."""
    text = cluster_to_data(small_cluster(len(FORMULAS)))
    names = {f"{kind}{i}": name for kind in ("site-", "host-", "d") for i, name in enumerate(FORMULAS)}

    def renamed(value):
        if isinstance(value, dict):
            return {key: renamed(each) for key, each in value.items()}
        if isinstance(value, list):
            return [renamed(each) for each in value]
        return names.get(value, value) if isinstance(value, str) else value

    data = renamed(text)
    for site in data["sites"]:
        site |= {"latitude": -33.5, "longitude": -70.5}
    cluster = cluster_from_json(json.dumps(data), "strange")
    rule = DeviceLink(from_device=FORMULAS[0], to_device=FORMULAS[1], latency=0.5, bandwidth=1e6)
    return cluster.replace(device_links=(rule,))


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv"])
def test_tables_hold_no_formula_and_read_back_to_the_same_names(tmp_path, form):
    cluster = strange_cluster()
    files = tables_of(cluster, form)
    for name, content in files.items():
        if name.endswith(".csv"):
            for cell in (cell for row in csv.reader(content.decode().splitlines()) for cell in row):
                assert cell[:1] not in BEGINNINGS or cell == "" or re.fullmatch(r"-\d+(\.\d+)?", cell), (name, cell)
    assert b"-33.5" in files["devices.csv"], "numbers stay numbers"
    export_tables(cluster, tmp_path / "tables", form)
    again = cluster_from_folder(tmp_path / "tables")
    assert again.device_ids == cluster.device_ids == FORMULAS
    assert {site.name for site in again.sites} == set(FORMULAS)
    assert {host.id for host in again.hosts} == set(FORMULAS)
    assert again.link(FORMULAS[0], FORMULAS[1]).latency == 0.5
    assert again.link(FORMULAS[1], FORMULAS[0]).latency == 0.01


def test_the_page_reads_its_own_download_back():
    cluster = strange_cluster()
    assert cluster_from_uploads(tables_of(cluster, "site-csv")).device_ids == FORMULAS


@given(st.text(alphabet="'=+-@a\uff1d1 ", max_size=6))
def test_every_name_comes_back(name):
    assert unguarded(guarded(name)) == name
    assert guarded(name)[:1] not in "=+-@\uff1d" or name == ""


@pytest.mark.parametrize("cell", ["-33.5", "12", "", "'plain", "it's", "a=b"])
def test_numbers_and_plain_names_are_read_as_they_are(cell):
    assert unguarded(cell) == cell


def test_an_error_that_begins_with_a_strange_models_name_is_no_formula():
    rows = (ComparisonRow("random", 0, None, "=cmd: does not fit"), ComparisonRow("random", 1, None))
    table = Comparison(chain_plan([8, 8], [5]).problem, ("random",), (0, 1), "1 s", "random", rows).to_csv()
    assert [line.rpartition(",")[2] for line in table.splitlines()] == ["error", "'=cmd: does not fit", ""]
