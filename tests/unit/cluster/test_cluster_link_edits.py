"""Edits of links: what changes, what stays, and what every link says about itself afterwards."""

import numpy as np
import pytest

from hetplanner.cluster.distance import INSIDE_SITE, DistanceFormula, distance_km, distance_link, fitted_formula
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.generators import r10
from hetplanner.cluster.link_edits import (
    LinkEnds,
    fill_from_distance,
    link_in_force,
    make_symmetric,
    overrides_between,
    own_link,
    remove_link,
    remove_overrides,
    set_link,
)
from hetplanner.cluster.model import Device, Host, HostLink, Site
from hetplanner.errors import InvalidInput
from tests.support.plans.factories import sites_cluster, small_cluster

GBIT_S = 1e9 / 8
BETWEEN = LinkEnds("site", "site-0", "site-1")
ONE_PAIR = LinkEnds("device", "d0", "d2")


def cluster():
    return sites_cluster([2, 2, 1])


def refused(act, *args, **options) -> str:
    with pytest.raises(InvalidInput) as caught:
        act(*args, **options)
    return str(caught.value)


def test_a_link_between_sites_holds_for_all_their_devices_and_remembers():
    before = cluster()
    after = set_link(before, BETWEEN, bandwidth_bytes_per_s=GBIT_S, when="today")
    assert (after.bandwidth_bytes_per_s_DD[:2, 2:4] == GBIT_S).all()
    assert (after.bandwidth_bytes_per_s_DD[2:4, :2] == GBIT_S).all()
    np.testing.assert_array_equal(after.latency_s_DD, before.latency_s_DD)
    link = own_link(after, BETWEEN)
    assert (link.source, link.when, link.replaces) == ("specified", "today", "assumed: 50 Mbit/s, 20 ms")
    again = set_link(after, BETWEEN, latency_s=0.001, source="assumed", symmetric=False)
    assert own_link(again, BETWEEN).replaces == link.replaces
    assert own_link(again, BETWEEN.turned) == own_link(after, BETWEEN.turned)
    kept = [k for k in before.site_links if {k.from_site, k.to_site} != {"site-0", "site-1"}]
    assert [k for k in again.site_links if {k.from_site, k.to_site} != {"site-0", "site-1"}] == kept
    assert cluster_from_json(cluster_to_json(again)) == again


def test_published_numbers_do_not_outlive_the_link_they_belong_to():
    before = r10(0)
    ends = LinkEnds("site", before.sites[0].name, before.sites[1].name)
    assert own_link(before, ends).published is not None
    link = own_link(set_link(before, ends, latency_s=0.5), ends)
    assert link.published is None
    assert link.replaces == "measured, published 2022: 790 Mbit/s, 67 ms"


def test_what_changes_nothing_is_the_same_cluster():
    before = set_link(cluster(), BETWEEN, bandwidth_bytes_per_s=GBIT_S)
    assert set_link(before, BETWEEN, bandwidth_bytes_per_s=GBIT_S, when="later") is before
    measured = r10(0)
    ends = LinkEnds("site", measured.sites[0].name, measured.sites[1].name)
    assert set_link(measured, ends, latency_s=own_link(measured, ends).latency) is measured
    assert make_symmetric(before) is before
    assert fill_from_distance(before) is before


def test_one_pair_of_devices_stands_above_its_sites_until_removed():
    before = cluster()
    after = set_link(before, ONE_PAIR, latency_s=0.5, symmetric=False)
    assert link_in_force(after, ONE_PAIR).latency == 0.5
    assert link_in_force(after, ONE_PAIR).bandwidth == link_in_force(before, ONE_PAIR).bandwidth
    assert link_in_force(after, ONE_PAIR.turned) == link_in_force(before, ONE_PAIR.turned)
    assert len(after.device_links) == 1
    assert overrides_between(after, "site-1", "site-0") == after.device_links
    assert overrides_between(after, "site-0", "site-2") == ()
    assert overrides_between(before, "site-0", "site-1") == ()
    assert remove_link(after, ONE_PAIR) == before
    assert remove_overrides(after, "site-0", "site-1") == before
    assert remove_overrides(after, "site-0", "site-2") is after


def test_a_link_inside_a_host():
    two = small_cluster(2)
    box = two.replace(devices=(*two.devices, Device(id="d2", kind="CPU generic", host="host-0")))
    ends = LinkEnds("host", "host-0", "host-0")
    assert own_link(box, ends) is None
    assert "host-0" in refused(set_link, box, ends, latency_s=0.0)
    after = set_link(box, ends, latency_s=0.0, bandwidth_bytes_per_s=1e9)
    assert isinstance(after.links[-1], HostLink)
    assert after.latency_s_DD[0, 2] == 0
    assert remove_link(after, ends) == box


def test_of_two_rules_for_a_pair_one_is_left():
    before = cluster()
    doubled = before.replace(site_links=(*before.site_links, own_link(before, BETWEEN).replace(latency=0.7)))
    after = set_link(doubled, BETWEEN, latency_s=0.3)
    assert sum((k.from_site, k.to_site) == ("site-0", "site-1") for k in after.site_links) == 1
    assert after.latency_s_DD[0, 2] == 0.3


def test_what_is_refused_says_where_and_why():
    one = cluster()
    assert "bandwidth: must be above 0" in refused(set_link, one, BETWEEN, bandwidth_bytes_per_s=0.0)
    assert "latency: must be from" in refused(set_link, one, BETWEEN, latency_s=1e308)
    assert "there is no site 'Mars'" in refused(set_link, one, LinkEnds("site", "Mars", "site-0"), latency_s=1.0)
    assert "no link to itself" in refused(set_link, one, LinkEnds("device", "d0", "d0"), latency_s=1.0)
    assert "between its own devices" in refused(link_in_force, one, LinkEnds("host", "h0-0", "h0-1"))
    assert "no link of its own to remove" in refused(remove_link, one, ONE_PAIR)
    alone = remove_link(remove_link(one, LinkEnds("site", "site-2", "site-2")), BETWEEN)
    assert link_in_force(alone, BETWEEN) is None
    assert "give both bandwidth and latency" in refused(set_link, alone, BETWEEN, latency_s=1.0)
    far = LinkEnds("site", "site-0", "site-2")
    assert "disconnected" in refused(remove_link, alone, far)
    assert "only one the other way" in refused(remove_link, one, far, symmetric=False)


def test_distance_and_its_formula():
    london, tokyo = (Site(name=n, latitude=a, longitude=b) for n, a, b in (("L", 51.5, -0.12), ("T", 35.7, 139.7)))
    assert distance_km(london, tokyo) == pytest.approx(9560, rel=0.005)
    assert distance_km(london, london) == 0
    link = distance_link(london, tokyo)
    km = distance_km(london, tokyo)
    assert link.latency == pytest.approx(2e-3 + 1.5 * km / 200_000, rel=5e-3)
    assert link.bandwidth * link.latency == pytest.approx(5e6, rel=1e-2)
    assert distance_link(london, london.replace(name="near")).bandwidth == GBIT_S
    assert "km: latency = 2 ms + 7.5 ms per 1000 km; bandwidth = 40 Mbit / latency, at most 1 Gbit/s" in link.when
    assert distance_link(london, london).latency == INSIDE_SITE[0]
    assert DistanceFormula(ends_s=0.0).bandwidth_bytes_per_s(0.0) == GBIT_S
    assert "bandwidth: must be above 0" in refused(distance_link, london, tokyo, DistanceFormula(most_bytes_per_s=0.0))


def test_filling_touches_what_it_is_told_to():
    one = remove_link(cluster(), BETWEEN)
    one = set_link(one, LinkEnds("site", "site-0", "site-2"), latency_s=0.4)
    missing = fill_from_distance(one)
    assert own_link(missing, BETWEEN).source == "assumed"
    assert own_link(missing, BETWEEN).replaces is None
    assert missing.site_links[: len(one.site_links)] == one.site_links
    assumed = fill_from_distance(one, scope="assumed")
    assert own_link(assumed, LinkEnds("site", "site-0", "site-2")).latency == 0.4
    assert own_link(assumed, LinkEnds("site", "site-1", "site-2")).replaces == "assumed: 50 Mbit/s, 20 ms"
    assert own_link(assumed, LinkEnds("site", "site-1", "site-1")).bandwidth == GBIT_S
    everything = fill_from_distance(one, scope="all")
    assert own_link(everything, LinkEnds("site", "site-0", "site-2")).source == "assumed"
    assert fill_from_distance(everything, scope="all") is everything


def test_constants_of_a_clusters_own_measurements():
    assert fitted_formula(cluster()) is None
    measured = r10(0)
    formula = fitted_formula(measured)
    errors = [
        abs(formula.latency_s(km) / k.latency - 1)
        for k in measured.site_links
        if k.from_site != k.to_site
        for km in [distance_km(*(s for s in measured.sites if s.name in (k.from_site, k.to_site)))]
    ]
    assert np.median(errors) < 0.2
    assert formula.most_bytes_per_s == max(k.bandwidth for k in measured.site_links if k.from_site != k.to_site)


def test_both_ways_alike_takes_the_slower():
    one = set_link(cluster(), BETWEEN, latency_s=0.5, symmetric=False)
    one = set_link(one, BETWEEN.turned, bandwidth_bytes_per_s=1e3, symmetric=False)
    one = set_link(one, LinkEnds("device", "d0", "d4"), latency_s=0.001, symmetric=False)
    after = make_symmetric(one)
    assert after.latency_s_DD[0, 2] == after.latency_s_DD[2, 0] == 0.5
    assert after.bandwidth_bytes_per_s_DD[0, 2] == after.bandwidth_bytes_per_s_DD[2, 0] == 1e3
    assert own_link(after, BETWEEN).source == "assumed"
    assert own_link(after, BETWEEN).replaces == "assumed: 50 Mbit/s, 20 ms"
    # The faster override gives way to what the sites' link says back; that one stays as it is.
    assert after.latency_s_DD[0, 4] == after.latency_s_DD[4, 0] == 0.02
    assert len(after.device_links) == 1


def test_ends_in_words():
    assert BETWEEN.text == "site-0 → site-1"
    assert LinkEnds("site", "a", "a").text == "inside a"
    assert LinkEnds("host", "a", "a").text == "inside host a"


def test_a_site_of_one_device_may_stay_without_an_inside_link():
    one = cluster()
    more = one.replace(
        sites=(*one.sites, Site(name="new", latitude=1.0, longitude=2.0)),
        hosts=(*one.hosts, Host(id="hn", site="new")),
    )
    filled = fill_from_distance(more)
    assert own_link(filled, LinkEnds("site", "new", "new")).bandwidth == INSIDE_SITE[1]
    assert own_link(filled, LinkEnds("site", "site-0", "new")) is not None
