"""The links part without a browser: messages of any shape, hidden pages, what is drawn when."""

from pathlib import Path

import pytest
from bokeh.events import Tap

from hetplanner.cluster.generators import r10j
from hetplanner.cluster.link_edits import LinkEnds, link_in_force, set_link
from hetplanner.ui.cluster.models.links import MAX_SINGLES
from hetplanner.ui.cluster.views.exchange import ExchangePart
from hetplanner.ui.cluster.views.links import LinksPart
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.cards import is_shown
from tests.support.plans.factories import sites_cluster, small_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
PAIR = LinkEnds("site", "site-0", "site-1")


@pytest.fixture
def app(tmp_path):
    one = PlannerApp(LaunchGuard("some-launch-token"), SearchService(), SAMPLES, tmp_path)
    one.cluster.editor.apply(sites_cluster([2, 1]), "drawn")
    return one


def press(controls, name, **values):
    controls._handle_msg({"name": name, "values": values})


def test_a_tap_chooses_and_the_form_edits(app):
    part = LinksPart(app)
    part._tapped(Tap(part.heat.figure, sx=0, sy=0, x=2.5, y=2.5))
    assert app.links.selected == PAIR
    assert part.heat.mark_source.data["left"] == [2.0]
    assert part._tables["bandwidth"].content["chosen"] == [0, 1]
    part._tapped(Tap(part.heat.figure, sx=0, sy=0, x=None, y=None))
    form = part._form._fields
    press(form, "symmetric", symmetric=False)
    press(form, "source", source="assumed")
    press(form, "source", source="invented")
    press(form, "set", start="site-0", end="site-1", bandwidth="3", latency="20 ms")
    link = link_in_force(app.links.cluster, PAIR)
    assert (link.bandwidth, link.source) == (3e9 / 8, "assumed")
    assert link_in_force(app.links.cluster, PAIR.turned).source == "assumed"
    assert link_in_force(app.links.cluster, PAIR.turned).replaces is None
    press(form, "latency", start="site-0", end="site-1", bandwidth="3", latency="late")
    field = next(item for item in form.items if item["name"] == "latency")
    assert "must be a number" in field["error"]
    press(part._form._per, "device")
    assert app.links.per == "device"
    press(form, "end", end="d0")
    press(form, "start", start="d2")
    assert app.links.selected == LinkEnds("device", "d2", "d0")
    press(form, "set", start="d2", end="d0", bandwidth="4", latency="20 ms")
    press(form, "remove")
    assert app.links.cluster.device_links == ()


def test_heat_map_changes_what_it_shows(app):
    part = LinksPart(app)
    press(part._what, "known")
    assert part.heat.what == "known"
    press(part._what, "price")
    assert part.heat.what == "known"


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"write": [0, 1]},
        {"write": [0], "texts": [["1"]]},
        {"write": ["0", 1], "texts": [["1"]]},
        {"write": [0, True], "texts": [["1"]]},
        {"write": [0, 10**30], "texts": [["1"]]},
        {"write": [-1, 0], "texts": [["1"]]},
        {"write": [0, 1], "texts": "1"},
        {"write": [0, 1], "texts": [None, 3]},
        {"write": [0, 1], "texts": [[{"a": 1}]]},
        {"choose": [0]},
        {"choose": [99, -3]},
    ],
)
def test_messages_of_another_shape_change_nothing(app, message):
    part = LinksPart(app)
    before = app.links.cluster
    part._tables["latency"]._handle_msg(message)
    assert app.links.cluster is before
    assert app.links.selected is None


def test_a_table_writes_shows_errors_and_is_drawn_when_its_page_comes(app):
    part = LinksPart(app)
    table = part._tables["latency"]
    table._handle_msg({"write": [0, 1], "texts": [["soon"]]})
    assert table.content["rows"][0][1][0] == "soon"
    assert "must be a number" in part._table_error.view.object
    app.session.page = "plan"
    shown = table.content
    app.cluster.editor.apply(sites_cluster([1, 1, 1]), "drawn")
    assert table.content is shown
    app.session.page = "cluster"
    assert table.content["names"] == ["site-0", "site-1", "site-2"]
    table._handle_msg({"choose": [2, 0]})
    assert app.links.selected == LinkEnds("site", "site-2", "site-0")


def test_wide_tables_get_room_and_none_is_shown_without_sites(app):
    part = LinksPart(app)
    assert part._columns[0].styles["flex"] == "1 1 430px"
    app.cluster.editor.apply(small_cluster(12), "drawn")
    assert part._columns[0].styles["flex"] == "1 1 608px"
    app.cluster.editor.apply(small_cluster(41), "drawn")
    assert (is_shown(part._too_many.view), is_shown(part._pair)) == (True, False)
    app.cluster.editor.apply(None, "emptied")
    assert (is_shown(part._too_many.view), is_shown(part._pair)) == (False, False)


def test_links_of_single_devices_are_listed_and_chosen_by_a_click(app):
    part = LinksPart(app)
    listed = part._singles
    assert not is_shown(listed.view)
    ends = LinkEnds("device", "d0", "d2")
    app.cluster.editor.apply(set_link(sites_cluster([2, 1]), ends, latency_s=0.5, symmetric=False), "edited")
    assert is_shown(listed.view)
    assert [item["label"] for item in listed._rows.items] == ["d0 → d2: 50 Mbit/s, 500 ms, specified"]
    press(listed._rows, "link-0")
    assert app.links.selected == ends
    assert listed._rows.items[0]["pressed"]
    press(listed._rows, "link-7")
    cluster = r10j(0, num_devices=9)
    app.cluster.editor.apply(cluster, "opened")
    assert len(listed._rows.items) == MAX_SINGLES
    assert "The first 30 of 72." in listed._words.view.object
    sites = [cluster.site_of(d).name for d in cluster.device_ids[:2]]
    app.links.choose(LinkEnds("site", *sites))
    here = app.links.num_overrides
    assert len(listed._rows.items) == here < 72
    assert app.links.remove_overrides()
    assert app.links.num_singles == 72 - here


def test_filling_takes_what_stands_in_the_fields(app):
    filling = LinksPart(app).filling
    press(filling._fields, "scope", scope="all pairs of sites")
    press(filling._fields, "fill", ends_s="9", s_per_km="0", in_flight_bytes="40", most_bytes_per_s="1")
    assert link_in_force(app.links.cluster, PAIR).latency == pytest.approx(0.009)
    press(filling._fields, "ends_s", ends_s="x", s_per_km="0", in_flight_bytes="40", most_bytes_per_s="1")
    assert "a constant must be a number" in filling._fields.items[-1]["label"]
    press(filling._fields, "fit")
    assert "at least 3 measured" in filling._fields.items[-1]["label"]
    press(filling._fields, "alike")
    assert app.session.notice == ("info", "All links are symmetric already.")


def test_text_is_pasted_and_forms_follow_the_cluster(app):
    part = ExchangePart(app)
    part._text.value = "nonsense"
    press(part._options, "paste")
    assert "nonsense" not in part._file_error.view.object
    assert "must have a row of names" in part._text_error.view.object
    press(part._options, "kind", kind="Latency (ms)")
    press(part._options, "source", source="specified")
    press(part._options, "round_trip", round_trip=True)
    part._text.value = ",site-0,site-1\nsite-0,,8\nsite-1,8,"
    press(part._options, "paste")
    assert part._text.value == ""
    link = link_in_force(app.links.cluster, PAIR)
    assert (link.latency, link.source) == (0.004, "specified")
    press(part._forms, "form", form="Devices × devices (NPY)")
    assert part._tables.filename == "npy_tables.zip"
    press(part._forms, "form", form="/etc/passwd")
    assert part._tables.filename == "npy_tables.zip"
