"""Links on the Cluster page: choosing, typing, tables; what is refused is said beside its field."""

import pytest

from hetplanner.cluster.distance import DEFAULT_FORMULA
from hetplanner.cluster.generators import r10
from hetplanner.cluster.link_edits import LinkEnds, link_in_force, remove_link, set_link
from hetplanner.cluster.model import Device
from hetplanner.errors import InvalidInput
from hetplanner.ui.cluster.models.drafts import DraftStore
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.cluster.models.link_tables import MAX_TABLE_SITES, LinkTables
from hetplanner.ui.cluster.models.links import LinksModel, formula_fields, typed_number
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.session import Session
from tests.support.plans.factories import sites_cluster, small_cluster

GBIT_S = 1e9 / 8
PAIR = LinkEnds("site", "site-0", "site-1")


def model(cluster=None):
    editor = Editor(DraftStore())
    editor.begin(cluster or sites_cluster([2, 2, 1]))
    return LinksModel(Session(LaunchGuard("some-launch-token")), editor)


def held(links, ends=PAIR):
    return link_in_force(links.cluster, ends)


def test_a_click_chooses_the_sites_and_shows_what_holds():
    links = model()
    assert "Click a cell" in links.about
    links.choose_devices("d0", "d3")
    assert links.selected == PAIR
    assert (links.start, links.end) == ("site-0", "site-1")
    assert (links.bandwidth, links.latency) == ("50 Mbit/s", "20 ms")
    assert links.about == "assumed."
    links.choose_devices("d0", "d0")
    links.choose_devices("d0", "unknown")
    assert links.selected == PAIR


def test_set_to_devices_a_click_chooses_these_two():
    links = model()
    links.per = "device"
    links.choose_devices("d0", "d3")
    assert links.selected == LinkEnds("device", "d0", "d3")
    assert not links.is_own
    assert "these two devices alone" in links.about
    links.bandwidth = "2"
    assert links.submit()
    assert links.is_own
    assert held(links, links.selected).bandwidth == 2 * GBIT_S
    links.choose(PAIR)
    assert links.num_overrides == 2
    assert "2 links of single devices between them stand above it" in links.about
    assert links.remove_overrides()
    assert links.cluster.device_links == ()
    assert links.num_overrides == 0


def test_a_host_with_a_link_of_its_own_is_chosen_as_such():
    two = small_cluster(2)
    links = model(two.replace(devices=(*two.devices, Device(id="d2", kind="CPU generic", host="host-0"))))
    links.choose_devices("d0", "d2")
    assert links.selected == LinkEnds("site", "site-0", "site-0")
    links.per, links.start = "host", "host-0"
    assert links.selected == LinkEnds("host", "host-0", "host-0")
    links.bandwidth, links.latency = "900 GB/s", "0"
    assert links.submit()
    links.choose(None)
    links.per = "site"
    links.choose_devices("d0", "d2")
    assert links.selected == LinkEnds("host", "host-0", "host-0")
    assert links.remove()
    assert not links.is_own


def test_typing_both_ends_chooses_and_unknown_ones_are_explained():
    links = model()
    links.start = "site-2"
    assert links.selected is None
    links.end = "site-0"
    assert links.selected == LinkEnds("site", "site-2", "site-0")
    links.end = "Mars"
    assert links.selected is None
    assert "there is no site 'Mars'" in links.errors["ends"]
    assert not links.submit()
    assert "there is no site 'Mars'" in links.errors["ends"]


def test_a_form_handed_in_for_other_ends_does_not_give_them_the_old_numbers():
    links = model()
    before = links.cluster
    links.choose(LinkEnds("site", "site-0", "site-0"))
    assert links.enter("site-0", "site-1", links.bandwidth, links.latency)
    assert links.cluster is before
    assert (links.selected, links.bandwidth) == (PAIR, "50 Mbit/s")
    assert links.enter("site-1", "site-2", "2", links.latency)
    assert held(links, LinkEnds("site", "site-1", "site-2")).bandwidth == 2 * GBIT_S
    assert held(links, LinkEnds("site", "site-1", "site-2")).latency == 0.02
    assert not links.enter("site-1", "Mars" * 99, "3", "4")
    assert "no site 'MarsMars" in links.errors["ends"]
    assert links.enter("site-0", "site-1", "1 Mbit/s", "1 s")
    assert not links.enter("site-0", "site-1", "1 Mbit/s", "never")
    assert links.latency == "never"


def test_an_edit_holds_both_ways_says_specified_and_is_undone():
    links = model()
    before = links.cluster
    links.choose(PAIR)
    links.bandwidth, links.latency = " 1,5 Gbit/s ", "7"
    assert links.submit()
    for ends in (PAIR, PAIR.turned):
        link = held(links, ends)
        assert (link.bandwidth, link.latency, link.source) == (1.5 * GBIT_S, 0.007, "specified")
    assert links.editor.undo_words == "link site-0 → site-1: 1.5 Gbit/s, 7 ms"
    assert "Before it was edited: assumed: 50 Mbit/s, 20 ms." in links.about
    assert links.counts == {"measured": 0, "specified": 2, "assumed": 7}
    links.editor.undo()
    assert links.cluster == before
    assert (links.selected, links.bandwidth) == (PAIR, "50 Mbit/s")


def test_one_way_and_assumed_if_so_chosen():
    links = model()
    links.choose(PAIR)
    links.symmetric, links.source, links.latency = False, "assumed", "1 s"
    assert links.submit()
    assert held(links).latency == 1
    assert held(links).source == "assumed"
    assert held(links, PAIR.turned).latency == 0.02


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("bandwidth", "fast", "must be a number with a unit, as in '1.12 Gbit/s', got"),
        ("bandwidth", "0", "must be above 0"),
        ("bandwidth", "1 Gbps", "did you mean Gbit/s?"),
        ("bandwidth", "1e308", "must be"),
        ("latency", "-1", "must be 0 or more"),
        ("latency", "nan", "must be"),
        ("latency", "7 km", "must be a number with a unit, as in '67 ms', got '7 km'"),
        ("latency", "<b>" * 100, "must be a number"),
    ],
)
def test_a_bad_number_is_explained_at_its_field_and_changes_nothing(field, text, why):
    links = model()
    before = links.cluster
    links.choose(PAIR)
    setattr(links, field, text)
    assert not links.submit()
    assert list(links.errors) == [field]
    assert why in links.errors[field]
    assert links.errors[field].isprintable()
    assert links.cluster is before
    setattr(links, field, "1 Mbit/s" if field == "bandwidth" else "1 ms")
    assert links.submit()
    assert links.errors == {}


def test_a_blank_number_stays_as_it_is_unless_there_is_none():
    links = model(remove_link(sites_cluster([1, 1, 1]), LinkEnds("site", "site-1", "site-2")))
    assert links.enter("site-0", "site-1", " ", "9")
    assert (held(links).latency, held(links).bandwidth) == (0.009, GBIT_S / 20)
    assert (links.bandwidth, links.latency) == ("50 Mbit/s", "9 ms")
    assert not links.enter("site-1", "site-2", "", "9")
    assert "must be a number with a unit, as in '1.12 Gbit/s', got ''" in links.errors["bandwidth"]


def test_what_would_cut_devices_off_is_refused():
    links = model(sites_cluster([1, 1]))
    links.choose(PAIR)
    assert not links.remove()
    assert "disconnected" in links.errors["link"]
    assert links.is_own


def test_nothing_chosen_and_no_cluster():
    links = model()
    assert not links.submit()
    assert not links.remove()
    assert not links.remove_overrides()
    assert "choose two sites" in links.errors["ends"]
    links.editor.begin(None)
    assert not links.fill()
    assert "there is no cluster yet" in links.errors["formula"]
    assert not links.fit_formula()
    assert links.counts == {"measured": 0, "specified": 0, "assumed": 0}
    assert links.names("site") == []


def test_a_selection_that_is_gone_is_dropped():
    links = model()
    links.choose(LinkEnds("site", "site-0", "site-2"))
    links.editor.apply(sites_cluster([2, 2]), "deleted site-2")
    assert links.selected is None


def test_filling_by_the_formula_with_constants_typed_or_fitted():
    links = model(r10(0))
    assert links.fill()
    assert links.session.notice == ("info", "No link to fill.")
    assert links.fit_formula()
    assert links.formula != DEFAULT_FORMULA
    assert links.type_constants({name: str(value) for name, value in formula_fields(DEFAULT_FORMULA).items()})
    assert formula_fields(links.formula) == formula_fields(DEFAULT_FORMULA)
    assert links.type_constants({"ends_s": "2,5"})
    assert links.formula.ends_s == pytest.approx(0.0025)
    for name, text in (("most_bytes_per_s", "0"), ("ends_s", "nan"), ("ends_s", "x" * 99), ("s_per_km", "1e308")):
        assert not links.type_constants({name: text})
        assert "a constant must be a number from" in links.errors["formula"]
    links.scope = "all"
    assert links.fill()
    assert links.counts["measured"] == 0
    links.editor.undo()
    assert links.counts["measured"] == 90


def test_symmetric_says_if_there_was_nothing_to_do():
    links = model(set_link(sites_cluster([1, 1]), PAIR, latency_s=0.5, symmetric=False))
    assert links.make_symmetric()
    assert held(links, PAIR.turned).latency == 0.5
    assert links.make_symmetric()
    assert links.session.notice == ("info", "All links are symmetric already.")


def test_numbers_without_a_unit():
    assert typed_number("bandwidth", "0,5") == GBIT_S / 2
    assert typed_number("latency", "12") == 0.012
    with pytest.raises(InvalidInput, match=r"^must be a number"):
        typed_number("latency", "1,2,3")


# -- tables ---------------------------------------------------------------------------------------


def test_a_table_shows_numbers_how_they_are_known_and_the_chosen_cell():
    links = model()
    tables = LinkTables(links)
    links.choose(PAIR)
    content = tables.content("bandwidth")
    assert content["names"] == ["site-0", "site-1", "site-2"]
    assert content["chosen"] == [0, 1]
    assert content["rows"][0][1] == ["0.05", "assumed", "site-0 → site-1: 50 Mbit/s, 20 ms; assumed", ""]
    assert content["rows"][0][0][0] == "1"
    assert tables.content("latency")["rows"][0][1][0] == "20"
    tables.choose(2, 2)
    assert links.selected == LinkEnds("site", "site-2", "site-2")
    tables.choose(0, 99)
    assert links.selected == LinkEnds("site", "site-2", "site-2")


def test_a_cell_is_typed_and_a_bad_one_keeps_its_text():
    links = model()
    tables = LinkTables(links)
    assert tables.write("bandwidth", 0, 1, [["2"]])
    assert held(links, PAIR.turned).bandwidth == 2 * GBIT_S
    assert held(links).latency == 0.02
    assert links.editor.undo_words == "link site-0 → site-1: 2 Gbit/s"
    before = links.cluster
    assert not tables.write("latency", 0, 1, [["soon"]])
    assert links.cluster is before
    assert tables.content("latency")["rows"][0][1][0] == "soon"
    assert "must be a number" in tables.content("latency")["rows"][0][1][3]
    assert tables.content("bandwidth")["rows"][0][1][3] == ""
    assert tables.error_text.startswith("site-0 → site-1: must be a number")
    assert tables.write("latency", 0, 1, [["9"]])
    assert tables.error_text == ""


def test_a_pasted_block_is_one_step_and_holds_as_it_stands():
    links = model()
    tables = LinkTables(links)
    block = [["1", "2", "3", "beyond"], ["4", "5", "6"], ["7", "8", "9"], ["beyond"]]
    assert tables.write("latency", 0, 0, block)
    got = [[cell[0] for cell in row] for row in tables.content("latency")["rows"]]
    assert got == [["1", "2", "3"], ["4", "5", "6"], ["7", "8", "9"]]
    links.editor.undo()
    assert links.cluster == sites_cluster([2, 2, 1])
    assert not tables.write("latency", 1, 1, [["1", "x"], ["y", "2"]])
    assert set(tables.errors) == {("latency", 1, 2), ("latency", 2, 1)}
    assert links.cluster == sites_cluster([2, 2, 1])
    assert not tables.write("latency", 7, 7, [["1"]])


def test_a_blank_cell_is_no_link_as_long_as_all_stay_together():
    links = model()
    tables = LinkTables(links)
    assert tables.write("bandwidth", 0, 1, [[""]])
    assert held(links) is None
    assert "No link" in (links.choose(PAIR) or links.about)
    assert tables.content("bandwidth")["rows"][0][1][:2] == ["", ""]
    assert not tables.write("bandwidth", 0, 2, [[" "]])
    assert "disconnected" in tables.error_text
    assert not tables.write("bandwidth", 0, 1, [["1"]])
    assert "give both" in tables.error_text
    links.editor.undo()
    assert tables.error_text == ""
    gone = remove_link(links.cluster, PAIR)
    links.editor.apply(gone, "removed")
    assert tables.write("bandwidth", 0, 1, [[""]])


def test_singles_are_counted_and_large_tables_left_out():
    one = set_link(sites_cluster([2, 2, 1]), LinkEnds("device", "d0", "d2"), latency_s=0.1)
    tables = LinkTables(model(one))
    assert "1 links of single devices" in tables.content("latency")["rows"][0][1][2]
    many = LinkTables(model(small_cluster(MAX_TABLE_SITES + 1)))
    assert many.content("latency")["rows"] == []
