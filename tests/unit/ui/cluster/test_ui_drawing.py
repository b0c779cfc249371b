"""Drawing on the map: gestures, the forms, and what they do to the cluster and to what is planned for."""

import types
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_to_json
from hetplanner.cluster.generators import r10
from hetplanner.plots.coastline import degrees, mercator
from hetplanner.plots.data.maps.gestures import Gesture, gesture_of
from hetplanner.plots.data.maps.maps import MAX_DOTS, dot_columns, ring_places, site_columns
from hetplanner.plots.data.maps.site_links import MAX_LINES, drawn_pairs, line_width, site_pairs
from hetplanner.plots.live import EditableMap
from hetplanner.plots.theme import OTHER_COLOUR, kind_colour
from hetplanner.ui.cluster.models.drafts import DraftStore
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import small_cluster

SAMPLES = Path(__file__).resolve().parents[4] / "sample_clusters"


def new_app(store: DraftStore | None = None) -> PlannerApp:
    service = types.SimpleNamespace(jobs=[], job=lambda _: None)
    return PlannerApp(LaunchGuard("ABCD-EFGH-JKMN"), service, SAMPLES, drafts=store or DraftStore())


@pytest.fixture
def app():
    return new_app()


@pytest.fixture
def empty(app):
    app.drawing.begin_empty()
    return app


def tap(app, longitude, latitude, site="", **more):
    x, y = mercator(longitude, latitude)
    app.drawing.act(Gesture("tap", site, x=float(x), y=float(y), reach=more.pop("reach", 0.0), **more))


def names(app):
    return [s.name for s in app.cluster.cluster.sites] if app.cluster.cluster is not None else []


def complaints(app):
    return [text for kind, text in app.session.notices if kind != "success"]


# -- gestures -------------------------------------------------------------------------------------


def test_two_taps_draw_two_sites_whose_link_is_then_set(empty):
    empty.drawing.kind = "H100-SXM"
    tap(empty, 8.7, 50.1)
    tap(empty, 139.7, 35.7)
    assert names(empty) == ["Frankfurt", "Tokyo"]
    assert [d.kind for d in empty.cluster.cluster.devices] == ["H100-SXM"] * 2
    tap(empty, 0, 0, "Frankfurt", shift=True)
    assert empty.drawing.selected == ("Tokyo", "Frankfurt")
    assert empty.drawing.set_link("2 Gbit/s", "100 ms")
    assert empty.cluster.cluster.link("tokyo-0", "frankfurt-0").latency == 0.1
    assert empty.cluster.cluster.link("frankfurt-0", "tokyo-0").source == "specified"
    assert len(empty.plan.problem().cluster.devices) == 2
    assert complaints(empty) == []


def test_a_tap_at_a_site_adds_to_it_also_if_the_page_does_not_show_it_yet(empty):
    tap(empty, 8.7, 50.1)
    tap(empty, 8.7, 50.1, "Frankfurt")
    tap(empty, 8.8, 50.1, reach=50_000.0)
    assert names(empty) == ["Frankfurt"]
    tap(empty, 8.8, 50.1, reach=5.0)
    tap(empty, -110, -40)
    assert names(empty) == ["Frankfurt", "Frankfurt 2", "40°S 110°W"]
    assert len(empty.cluster.cluster.devices) == 5


def test_without_adding_a_tap_selects_and_releases(app):
    tap(app, 0, 0, "Ohio")
    assert app.drawing.selected == ("Ohio",)
    tap(app, 0, 0, "Oregon")
    tap(app, 0, 0, "Tokyo", shift=True)
    tap(app, 0, 0, "Seoul", shift=True)
    assert app.drawing.selected == ("Oregon", "Tokyo", "Seoul")
    tap(app, 0, 0, "Tokyo", shift=True)
    tap(app, 0, 0, shift=True)
    assert app.drawing.selected == ("Oregon", "Seoul")
    tap(app, 0, 0)
    assert app.drawing.selected == ()
    assert app.cluster.editor.undo_words == ""


def test_a_drag_moves_a_site_and_names_are_those_of_the_sample_no_more(app):
    x, y = mercator(-50.0, -10.0)
    app.drawing.act(Gesture("drag", "Oregon", x=float(x), y=float(y)))
    site = app.cluster.cluster.sites[0]
    assert (site.latitude, site.longitude) == (-10.0, -50.0)
    assert app.cluster.sample == "(drawn or imported)"
    app.drawing.act(Gesture("key", "undo"))
    assert app.cluster.sample == "dtfm_5_worldwide"
    app.drawing.act(Gesture("key", "redo"))
    assert app.cluster.cluster.sites[0] == site
    app.drawing.act(Gesture("drag", "Atlantis"))
    assert "there is no 'Atlantis'" in complaints(app)[-1]


def test_names_that_a_browser_made_up_do_nothing(app):
    tap(app, 0, 0, "<b>Atlantis</b>")
    tap(app, 0, 0, "Atlantis", shift=True)
    app.drawing.act(Gesture("tap", device="<b>gpu</b>"))
    assert app.drawing.selected == ()
    assert (app.cluster.editor.words, app.cluster.editor.undo_words) == ("", "")


def test_keys_delete_and_release(app):
    tap(app, 0, 0, "Ohio")
    app.drawing.act(Gesture("key", "delete"))
    assert "Ohio" not in names(app)
    assert app.drawing.selected == ()
    app.drawing.act(Gesture("key", "delete"))  # nothing is selected: nothing happens
    app.drawing.act(Gesture("key", "reformat"))
    assert len(names(app)) == 7
    app.drawing.mode = "add"
    app.drawing.act(Gesture("key", "escape"))
    assert app.drawing.mode == "select"


def test_the_last_site_leaves_an_empty_map_that_says_what_to_do(empty):
    tap(empty, 8.7, 50.1)
    empty.drawing.delete_selected()
    assert empty.cluster.cluster is None
    empty.drawing.mode = "select"
    assert empty.drawing.hint.startswith("Nothing is drawn yet")
    assert (len(empty.cluster.device_rows()), empty.cluster.summary, empty.drawing.about_selected) == (0, "", "")
    empty.plan.start()
    assert complaints(empty)[-1].startswith("cluster: draw one")
    empty.drawing.copy_selected()
    empty.cluster.editor.undo()
    assert names(empty) == ["Frankfurt"]


def test_the_device_table_keeps_its_columns_whatever_is_drawn(app):
    """A browser's table that is still being built fails on new columns."""
    kinds = app.cluster.device_rows().dtypes.to_dict()
    app.drawing.begin_empty()
    assert app.cluster.device_rows().dtypes.to_dict() == kinds
    tap(app, 8.7, 50.1)
    assert app.cluster.device_rows().dtypes.to_dict() == kinds
    assert list(app.cluster.device_rows()["bandwidth out"]) == ["–"]
    tap(app, 139.7, 35.7)
    rows = app.cluster.device_rows()
    assert rows.dtypes.to_dict() == kinds
    assert "–" not in set(rows["bandwidth out"])


TAP = {name: [value] for name, value in Gesture("tap", "Ohio", "", 1.0, 2.0, True, 3.0)._asdict().items()}


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"kind": ["tap"]},
        {name: [] for name in Gesture._fields},
        TAP | {"kind": ["launch"]},
        TAP | {"kind": [["tap"]]},
        TAP | {"x": ["?"]},
        TAP | {"y": [float("nan")]},
        TAP | {"reach": [10**400]},
    ],
)
def test_what_is_no_gesture_is_dropped(columns):
    assert gesture_of(columns) is None


def test_taps_at_the_end_of_the_map_are_refused(empty):
    empty.drawing.act(Gesture("tap", x=0.0, y=1e9))
    assert empty.cluster.cluster is None
    assert "map: it ends at 85°" in complaints(empty)[-1]


def test_clicks_at_a_site_fill_its_newest_host_of_that_kind(empty):
    empty.drawing.param.update(count=4, per_host=8, kind="T4")
    tap(empty, 8.7, 50.1)
    tap(empty, 8.7, 50.1, "Frankfurt")
    cluster = empty.cluster.cluster
    assert [len(cluster.hosts), len(cluster.devices), len(cluster.host_links)] == [1, 8, 1]
    tap(empty, 8.7, 50.1, "Frankfurt")
    empty.drawing.kind = "V100-16"
    tap(empty, 0, 0, device="frankfurt-0")  # its dot stands beside the site: no device is excluded
    cluster = empty.cluster.cluster
    assert [d.host for d in cluster.devices][8:] == ["frankfurt-host-1"] * 4 + ["frankfurt-host-2"] * 4
    assert empty.cluster.editor.excluded == ()
    assert cluster.link("frankfurt-8", "frankfurt-11").latency < 1e-4
    assert complaints(empty) == []


def test_a_drag_from_site_to_site_links_them_and_their_line_is_deleted_alone(app):
    app.drawing.act(Gesture("link", "Ohio", other="Tokyo"))
    assert (app.drawing.ends, app.drawing.selected) == (("Ohio", "Tokyo"), ())
    assert app.cluster.editor.undo_words == ""  # there is a link already
    assert app.drawing.set_link("3", "40")
    link = app.cluster.cluster.link("ohio-0", "tokyo-0")
    assert (link.bandwidth, link.latency, link.source) == (3e9 / 8, 0.04, "specified")
    app.drawing.act(Gesture("key", "delete"))
    assert app.drawing.ends == ()
    assert len(names(app)) == 8
    assert not any({k.from_site, k.to_site} == {"Ohio", "Tokyo"} for k in app.cluster.cluster.site_links)
    app.drawing.mode = "link"
    tap(app, 0, 0, "Ohio")
    tap(app, 0, 0, "Tokyo")  # two clicks are a link too
    assert app.cluster.cluster.link("ohio-0", "tokyo-0").source == "assumed"
    app.drawing.act(Gesture("key", "escape"))
    tap(app, 0, 0, "Ohio", other="Seoul")
    assert app.drawing.ends == ("Ohio", "Seoul")
    tap(app, 0, 0, "Ohio", other="Atlantis")
    assert app.drawing.ends == ()
    assert complaints(app) == []


def test_a_box_selects_sites_that_move_align_copy_and_go_together(app):
    (west, south), (east, north) = mercator(-15.0, 45.0), mercator(15.0, 60.0)
    app.drawing.act(Gesture("box", x=float(east), y=float(south), x2=float(west), y2=float(north)))
    assert set(app.drawing.selected) == {"Ireland", "London", "Frankfurt"}
    places = {s.name: (s.latitude, s.longitude) for s in app.cluster.cluster.sites}
    up, across = places["London"]
    x, y = mercator(across + 5, up + 1)
    app.drawing.act(Gesture("drag", "London", x=float(x), y=float(y)))
    moved = {s.name: (s.latitude, s.longitude) for s in app.cluster.cluster.sites}
    assert moved["Ireland"] == pytest.approx((places["Ireland"][0] + 1, places["Ireland"][1] + 5), abs=1e-3)
    assert moved["Tokyo"] == places["Tokyo"]
    app.drawing.align_selected("latitude")
    here = [s.latitude for s in app.cluster.cluster.sites if s.name in app.drawing.selected]
    assert len(set(here)) == 1
    app.drawing.copy_selected()
    assert len(app.drawing.selected) == 3
    assert len(app.cluster.cluster.devices) == 64 + 24
    app.drawing.delete_selected()
    assert len(names(app)) == 8
    assert app.cluster.editor.undo_words == "deleted 3 sites"


def test_of_many_links_those_set_by_hand_and_the_slowest_are_drawn(app):
    app.drawing.selected = ("Ohio", "Virginia")
    app.drawing.set_link("100 Gbit/s", "1 ms")  # the fastest: it is drawn as it was set by hand
    cluster = app.cluster.cluster
    pairs, words = drawn_pairs(cluster)
    assert words.startswith(f"{MAX_LINES} of 28 links are drawn")
    assert {pairs[0].start, pairs[0].end} == {"Ohio", "Virginia"}
    slowest = sorted(pair.bandwidth for pair in site_pairs(cluster))[: MAX_LINES - 1]
    assert [pair.bandwidth for pair in pairs[1:]] == slowest
    assert line_width(pairs[0].bandwidth) > line_width(pairs[1].bandwidth) > line_width(1.0) == 1.0
    assert len(drawn_pairs(cluster, ["Tokyo"], ("Ohio", "Virginia"))[0]) == 8
    large = r10(0, num_devices=1024)
    world = EditableMap(lambda _: None)
    world.show(large)
    assert len(world.label_source.data["text"]) <= MAX_LINES


# -- verbs ----------------------------------------------------------------------------------------


def test_a_whole_site_comes_from_one_form(app):
    assert app.drawing.add_site("paris", "A100-80", 8, 4)
    cluster = app.cluster.cluster
    assert names(app)[-1] == "Paris"
    assert app.drawing.about_selected == "8 × A100-80 on 2 hosts at 48.86°, 2.35°"
    assert app.drawing.add_site("Paris", "T4", 1, 1)
    assert app.drawing.add_site("10, 20", "T4", 1, 1)
    assert len(app.cluster.cluster.sites) == len(cluster.sites) + 1
    assert len(app.cluster.cluster.devices) == 64 + 10
    assert app.cluster.editor.words == "added 1 × T4 in 10°N 20°E"


@pytest.mark.parametrize(
    ("place", "kind", "count", "per_host", "field", "words"),
    [
        ("Frankfrt", "T4", 1, 1, "place", "did you mean Frankfurt"),
        ("", "T4", 1, 1, "place", "give a city"),
        ("<img src=x>", "T4", 1, 1, "place", "is not in the list"),
        ("Paris", "A9000", 1, 1, "kind", "is not in the catalog"),
        ("Paris", "T4", 0, 1, "count", "from 1 to 1024, got 0"),
        ("Paris", "T4", 2.5, 1, "count", "whole number"),
        ("Paris", "T4", 1e308, 1, "count", "from 1 to 1024"),
        ("Paris", "T4", float("nan"), 1, "count", "got nan"),
        ("Paris", "T4", 8, 0, "per_host", "from 1 to 1024"),
    ],
)
def test_what_the_form_refuses_is_said_at_its_field(app, place, kind, count, per_host, field, words):
    before = app.cluster.cluster
    assert not app.drawing.add_site(place, kind, count, per_host)
    assert list(app.drawing.site_errors) == [field]
    assert words in app.drawing.site_errors[field]
    assert app.cluster.cluster is before
    assert app.drawing.add_site("Paris", "T4", 1, 1)
    assert app.drawing.site_errors == {}


def test_a_copy_is_selected_and_can_be_renamed(app):
    tap(app, 0, 0, "Tokyo")
    app.drawing.copy_selected()
    assert app.drawing.selected == ("Tokyo copy",)
    app.drawing.rename_selected("Osaka")
    assert app.drawing.selected == ("Osaka",)
    assert app.cluster.cluster.device_ids[-1] == "tokyo-copy-7"
    app.drawing.rename_selected("Oregon")
    assert "already taken" in app.drawing.site_errors["rename"]
    assert app.drawing.selected == ("Osaka",)


def test_excluded_devices_reach_the_problem_and_come_back(app):
    app.drawing.act(Gesture("tap", device="oregon-0"))
    app.drawing.toggle(["oregon-1"])
    problem = app.plan.problem()
    assert problem.constraints.excluded == ("oregon-0", "oregon-1")
    assert len(problem.usable_devices) == 62
    assert app.cluster.used.count(False) == 2
    assert "2 devices excluded" in app.cluster.summary
    app.drawing.toggle(["oregon-0"])
    tap(app, 0, 0, "Oregon")
    assert app.drawing.about_selected.endswith("; 1 excluded")
    app.drawing.use_selected(False)
    assert len(app.plan.problem().constraints.excluded) == 8
    app.drawing.use_selected(True)
    assert app.plan.problem().constraints.excluded == ()
    app.cluster.editor.undo()
    assert len(app.plan.excluded) == 8
    assert app.cluster.editor.words == "Undone: included Oregon"


def test_devices_excluded_in_the_settings_are_so_on_the_map(app):
    app.plan.excluded = ["ohio-1"]
    assert app.cluster.editor.excluded == ("ohio-1",)
    app.cluster.editor.undo()
    assert app.plan.excluded == []


def test_with_every_device_excluded_nothing_can_be_planned(app):
    app.drawing.use(app.cluster.cluster.device_ids, False, "all")
    app.plan.start()
    assert complaints(app)[-1].startswith("cluster: every device is excluded")


def test_a_chosen_sample_and_an_import_can_be_undone(app):
    app.cluster.sample = "lab_2_sites_4"
    app.exchange.take_files({"mine.json": cluster_to_json(small_cluster(3)).encode()})
    assert app.cluster.editor.undo_words == "imported small"
    app.cluster.editor.undo()
    assert app.cluster.sample == "lab_2_sites_4"
    app.cluster.editor.undo()
    assert (app.cluster.sample, app.plan.cluster.name) == ("dtfm_5_worldwide", "dtfm_5_worldwide")


def test_a_reload_finds_the_drawing_and_two_pages_hear_of_each_other():
    store = DraftStore()
    first, second = new_app(store), new_app(store)
    first.drawing.add_site("Paris", "T4", 4, 1)
    second.restore("cluster", "", "", first.cluster.editor.draft_id)
    assert names(second)[-1] == "Paris"
    second.drawing.add_site("Rome", "T4", 1, 1)
    second.drawing.toggle(["rome-0"])
    first.drawing.add_site("Oslo", "T4", 1, 1)  # before the first page has seen the second's change
    assert names(first)[-3:] == ["Paris", "Rome", "Oslo"]
    assert first.cluster.editor.excluded == ("rome-0",)
    second.cluster.sync()
    assert second.session.notices[-1] == ("info", "Another page changed this cluster: added 1 × T4 in Oslo.")
    assert names(second) == names(first)
    assert second.plan.cluster is second.cluster.cluster
    third = new_app(store)
    third.restore("plan", "", "", "gone")
    assert third.session.page == "plan"
    assert "no longer has the cluster" in complaints(third)[-1]


# -- the figure -----------------------------------------------------------------------------------


def test_the_map_tells_gestures_and_shows_what_is_selected(app):
    heard = []
    world = EditableMap(heard.append)
    world.heard_source.data = TAP | {"count": [1]}
    world.heard_source.data = TAP | {"kind": ["launch"], "count": [2]}
    assert heard == [Gesture("tap", "Ohio", "", 1.0, 2.0, True, 3.0)]
    cluster = app.cluster.cluster
    world.show(cluster, ("ohio-0",), ("Ohio",))
    assert "Ohio · 7 of 8" in world.site_source.data["label"]
    assert world.dot_source.data["text"] == ["○"] + ["●"] * 7
    assert len(world.ring_source.data["x"]) == 1
    world.show(cluster, (), ("Ohio", "Tokyo"), ("Ohio", "Tokyo"), "link")
    assert world.mode_source.data["mode"] == ["link"]
    lines = world.line_source.data
    assert len(set(zip(lines["start"], lines["end"], strict=True))) == 13  # those of both sites
    marked = zip(lines["start"], lines["end"], lines["chosen"], strict=True)
    assert {frozenset(ends) for *ends, chosen in marked if chosen} == {frozenset(("Ohio", "Tokyo"))}
    assert world.left_out.startswith("13 of 28 links are drawn: those of the selected sites.")
    assert set(world.dot_source.data["id"]) == {""}  # blank rows
    world.put_back()
    world.show(None)
    assert world.site_source.data["name"] == world.ring_source.data["x"] == []
    assert "press Add" in world._note.text


def test_the_view_stays_while_one_edits_and_moves_to_another_cluster(app):
    world = EditableMap(lambda _: None)
    world.show(app.cluster.cluster)

    def view():
        return world.figure.x_range.start, world.figure.x_range.end

    before = view()
    app.drawing.add_site("Rome", "T4", 1, 1)
    world.show(app.cluster.cluster)
    assert view() == before
    app.drawing.add_site("Honolulu", "T4", 1, 1)  # out of sight
    world.show(app.cluster.cluster)
    assert view() != before
    before = view()
    world.show(small_cluster(3))
    assert view() != before
    world.show(None)
    whole = view()
    app.drawing.begin_empty()
    tap(app, 8.7, 50.1)
    world.show(app.cluster.cluster)
    assert view() == whole


def test_dots_stand_in_rings_and_are_bounded():
    places = np.array(ring_places(100, 20.0))
    away = np.hypot(*(places[:, None] - places[None]).T)
    np.fill_diagonal(away, 99)
    assert away.min() > 9
    assert np.hypot(*places.T).min() == pytest.approx(20)
    app = new_app()
    app.drawing.add_site("Paris", "T4", 500, 8)
    columns = dot_columns(app.cluster.cluster, ["Paris"], ["paris-1"])
    assert len(columns["id"]) == MAX_DOTS
    assert columns["used"][:2] == ["used", "excluded"]
    assert site_columns(app.cluster.cluster, ["paris-1"])["label"][-1] == "Paris · 499 of 500"


def test_kinds_keep_their_colour_and_aliases_share_it():
    assert kind_colour("H100") == kind_colour("H100-SXM") != kind_colour("T4")
    assert kind_colour("Abacus") == OTHER_COLOUR


def test_mercator_and_back():
    for longitude, latitude in ((8.68, 50.11), (-179.9, -80.0), (179.9, 0.0)):
        assert degrees(*map(float, mercator(longitude, latitude))) == pytest.approx((longitude, latitude))
    assert degrees(float(mercator(190.0, 0.0)[0]), 0.0)[0] == pytest.approx(-170)


# -- what traffic costs ---------------------------------------------------------------------------


def test_the_selected_site_shows_and_takes_what_its_traffic_costs(app):
    app.cluster.sample = "lab_2_sites_4"
    assert app.drawing.egress_fields == {}
    app.drawing.selected = ("Lab North",)
    assert app.drawing.egress_fields["about"] == "Traffic to other sites: unknown."
    app.drawing.price_selected("aws", "eu-central-1", "")
    shown = app.drawing.egress_fields
    assert (shown["provider"], shown["region"], shown["egress"]) == ("aws", "eu-central-1", "")
    assert "0.09 $/GB (" in shown["about"]
    assert "2022" in shown["about"]
    app.drawing.price_selected("aws", "eu-central-1", "0")
    assert app.drawing.egress_fields["about"] == "Traffic to other sites: 0 $/GB (stated in the cluster)."
    app.drawing.price_selected("aws", "eu-central-1", "much")
    assert "dollars a GB" in app.drawing.site_errors["egress"]
    app.drawing.price_selected("aws", "eu-central-1", "-1")
    assert app.drawing.site_errors["egress"]
    app.cluster.editor.undo()
    assert app.drawing.egress_fields["egress"] == ""
    assert complaints(app) == []
