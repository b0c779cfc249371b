"""Drawing a cluster in a notebook's cell: gestures and widgets, and the cluster that comes of them."""

import itertools
import sys

import pytest

import hetplanner as hp
from hetplanner.errors import InvalidInput
from hetplanner.plots.coastline import mercator
from hetplanner.plots.data.maps.gestures import Gesture
from hetplanner.ui.notebook import draw_cell
from hetplanner.ui.notebook.draw_cell import Drawing
from tests.support.plans.factories import small_cluster

COUNTS = itertools.count(1)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_cell, "ready", lambda: None)


def tap(drawing: Drawing, longitude: float, latitude: float, site: str = "", **more: object) -> None:
    """As the map tells it, through its source."""
    x, y = mercator(longitude, latitude)
    gesture = Gesture("tap", site, x=float(x), y=float(y), **more)
    told = {name: [value] for name, value in gesture._asdict().items()} | {"count": [next(COUNTS)]}
    for _ in range(2):  # as a notebook's front end does
        drawing._map._heard("data", {}, told)


def test_clicks_draw_sites_and_their_link_is_set_in_its_fields() -> None:
    drawing = hp.draw()
    with pytest.raises(InvalidInput, match="nothing is drawn yet"):
        _ = drawing.cluster
    drawing._choices["kind"].value = "H100-SXM"
    drawing._choices["count"].value = 4
    tap(drawing, 8.7, 50.1)
    tap(drawing, 139.7, 35.7)
    assert [site.name for site in drawing.cluster.sites] == ["Frankfurt", "Tokyo"]
    assert [device.kind for device in drawing.cluster.devices] == ["H100-SXM"] * 8
    tap(drawing, 8.7, 50.1, "Frankfurt", shift=True)
    assert drawing._link_row.layout.display == ""
    drawing._fields["bandwidth"].value, drawing._fields["latency"].value = "2 Gbit/s", "100 ms"
    drawing._set.click()
    link = drawing.cluster.link("tokyo-0", "frankfurt-0")
    assert (link.latency, link.source) == (0.1, "specified")
    assert repr(drawing) == "Drawing(8 devices at 2 sites.)"


def test_a_given_cluster_is_shown_and_changes_are_taken_back() -> None:
    cluster = small_cluster(3)
    drawing = hp.draw(cluster)
    assert drawing.cluster is cluster
    assert drawing._buttons["undo"].disabled
    drawing._place.value = "Lagos"
    drawing._add.click()
    assert drawing.cluster.sites[-1].name == "Lagos"
    drawing._buttons["undo"].click()
    assert drawing.cluster == cluster
    assert drawing._link_row.layout.display == "none"


def test_what_is_refused_is_said_until_the_next_act() -> None:
    drawing = hp.draw(small_cluster(3))
    drawing._place.value = "no <such> place"
    drawing._add.click()
    assert "no &lt;such&gt; place" in drawing._words.value
    drawing._place.value = "Lagos"
    drawing._add.click()
    assert "such" not in drawing._words.value


def test_the_cell_shows_a_widget_and_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = hp.draw()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert shown["text/plain"] == "Drawing(nothing yet)"
    monkeypatch.setitem(sys.modules, "jupyter_bokeh", None)
    with pytest.raises(InvalidInput, match="the extra `notebook`"):
        hp.draw()
