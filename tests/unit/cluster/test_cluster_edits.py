"""Edits of devices, hosts and sites: what is new, what stays, and what the links do."""

import pytest

from hetplanner.cluster.distance import INSIDE_SITE, distance_link
from hetplanner.cluster.edits import (
    add_devices,
    copy_site,
    delete_devices,
    delete_sites,
    devices_at,
    free_site_name,
    move_site,
    rename_site,
)
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cluster.link_edits import LinkEnds, set_link
from hetplanner.cluster.model import Cluster, Site
from hetplanner.cluster.places import nearest_place, place_named, places
from hetplanner.errors import InvalidInput
from tests.support.plans.factories import sites_cluster, small_cluster

FRANKFURT = Site(name="Frankfurt", latitude=50.11, longitude=8.68)
TOKYO = Site(name="Tokyo", latitude=35.68, longitude=139.69)


def drawn() -> Cluster:
    return add_devices(add_devices(None, "T4", 1, FRANKFURT), "A100-80", 8, TOKYO, per_host=4)


def between(cluster: Cluster, start: str, end: str):
    return next(k for k in cluster.site_links if (k.from_site, k.to_site) == (start, end))


def test_the_first_device_makes_a_cluster():
    cluster = add_devices(None, "t4", 1, FRANKFURT)
    assert [d.id for d in cluster.devices] == ["frankfurt-0"]
    assert cluster.devices[0].kind == "T4"
    assert cluster_from_json(cluster_to_json(cluster)) == cluster


def test_a_whole_site_has_hosts_with_links_inside_and_assumed_ones_to_others():
    cluster = drawn()
    assert [h.id for h in cluster.hosts if h.site == "Tokyo"] == ["tokyo-host-0", "tokyo-host-1"]
    assert [d.host for d in cluster.devices[1:]] == ["tokyo-host-0"] * 4 + ["tokyo-host-1"] * 4
    assert cluster.link("tokyo-0", "tokyo-3").bandwidth == 300e9  # NVLink of an A100
    assert cluster.link("tokyo-0", "tokyo-4").bandwidth == INSIDE_SITE[1]
    assert cluster.link("frankfurt-0", "tokyo-0") == distance_link(FRANKFURT, TOKYO)
    assert cluster.link("tokyo-0", "frankfurt-0").source == "assumed"
    assert cluster_from_json(cluster_to_json(cluster)) == cluster


def test_the_last_host_may_have_fewer_devices_and_one_alone_needs_no_link():
    cluster = add_devices(None, "T4", 5, FRANKFURT, per_host=2)
    assert [d.host[-1] for d in cluster.devices] == list("00112")
    assert [k.host[-1] for k in cluster.host_links] == list("01")


def test_devices_join_a_site_under_free_names():
    cluster = add_devices(drawn(), "V100-16", 2, FRANKFURT)
    assert devices_at(cluster, ["Frankfurt"]) == ("frankfurt-0", "frankfurt-1", "frankfurt-2")
    assert len(cluster.sites) == 2
    assert len(cluster.site_links) == len(drawn().site_links)
    less = delete_devices(cluster, ["frankfurt-1"])
    assert devices_at(add_devices(less, "T4", 1, FRANKFURT), ["Frankfurt"]) == (
        "frankfurt-0", "frankfurt-2", "frankfurt-1",
    )  # fmt: skip


def test_a_second_host_in_a_site_of_one_gets_the_link_it_needs():
    alone = small_cluster(2).replace(site_links=[k for k in small_cluster(2).site_links if k.from_site != k.to_site])
    cluster = add_devices(alone, "T4", 1, alone.sites[0])
    assert cluster.link("d0", "site-0-0").source == "assumed"


@pytest.mark.parametrize(
    ("kind", "count", "per_host", "words"),
    [
        ("A9000", 1, 1, "kind: 'A9000' is not in the catalog"),
        ("T4", 0, 1, "count: must be from 1 to 4095"),
        ("T4", 4096, 1, "count: must be from 1 to 4095"),
        ("T4", 4, 0, "devices per host: must be from 1"),
    ],
)
def test_what_cannot_be_added_is_said(kind, count, per_host, words):
    with pytest.raises(InvalidInput, match=words):
        add_devices(add_devices(None, "T4", 1, FRANKFURT), kind, count, TOKYO, per_host=per_host)


def test_moving_a_site_takes_along_the_links_that_the_formula_gave():
    cluster = set_link(
        add_devices(drawn(), "T4", 1, Site(name="Oslo", latitude=59.91, longitude=10.75)),
        LinkEnds("site", "Frankfurt", "Oslo"),
        bandwidth_bytes_per_s=1e8,
    )
    moved = move_site(cluster, "Frankfurt", -33.92, 18.42)
    assert (moved.sites[0].latitude, moved.sites[0].longitude) == (-33.92, 18.42)
    assert between(moved, "Frankfurt", "Tokyo").latency > between(cluster, "Frankfurt", "Tokyo").latency
    assert between(moved, "Tokyo", "Frankfurt").when == between(moved, "Frankfurt", "Tokyo").when
    assert between(moved, "Frankfurt", "Oslo") == between(cluster, "Frankfurt", "Oslo")
    assert between(moved, "Tokyo", "Oslo") == between(cluster, "Tokyo", "Oslo")
    assert move_site(moved, "Frankfurt", -33.92, 18.42) is moved
    with pytest.raises(InvalidInput, match="latitude"):
        move_site(cluster, "Frankfurt", 91.0, 0.0)
    with pytest.raises(InvalidInput, match="there is no 'Rome'"):
        move_site(cluster, "Rome", 0.0, 0.0)


def test_renaming_a_site_keeps_everything_else():
    cluster = rename_site(drawn(), "Tokyo", "Edo")
    assert [s.name for s in cluster.sites] == ["Frankfurt", "Edo"]
    assert (cluster.latency_s_DD == drawn().latency_s_DD).all()
    with pytest.raises(InvalidInput, match="already taken"):
        rename_site(cluster, "Edo", "Frankfurt")


@pytest.mark.parametrize("cluster", [drawn(), mixed_gpus(3), sites_cluster([3, 2])], ids=["drawn", "mixed", "sites"])
def test_a_copy_is_as_the_site_inside_and_linked_by_distance(cluster):
    name = cluster.sites[-1].name
    twin = Site(name="Twin", latitude=0.0, longitude=0.0)
    copied = copy_site(cluster, name, twin)
    old, new = devices_at(cluster, [name]), devices_at(copied, ["Twin"])
    assert len(new) == len(old)
    rows = [[copied.device_index(d) for d in ids] for ids in (old, new)]
    assert [copied.devices[r].kind for r in rows[0]] == [copied.devices[r].kind for r in rows[1]]
    for matrix_DD in (copied.latency_s_DD, copied.bandwidth_bytes_per_s_DD):
        inside = [matrix_DD[r][:, r] for r in rows]
        assert (inside[0] == inside[1]).all()
    assert copied.link(old[0], new[0]).source == "assumed"
    assert cluster_from_json(cluster_to_json(copied)) == copied
    assert delete_sites(copied, ["Twin"]) == cluster


def test_deleting_leaves_nothing_empty_behind():
    cluster = drawn()
    less = delete_devices(cluster, ["tokyo-4", "tokyo-5", "tokyo-6", "tokyo-7"])
    assert [h.id for h in less.hosts] == ["frankfurt-0", "tokyo-host-0"]
    assert [k.host for k in less.host_links] == ["tokyo-host-0"]
    assert [s.name for s in delete_sites(cluster, ["Tokyo"]).sites] == ["Frankfurt"]
    assert delete_sites(cluster, ["Tokyo", "Frankfurt"]) is None
    with pytest.raises(InvalidInput, match="there is no device 'x'"):
        delete_devices(cluster, ["x"])


def test_a_site_without_devices_can_go_too():
    cluster = drawn().replace(sites=(*drawn().sites, Site(name="Empty", latitude=0.0, longitude=0.0)))
    assert delete_sites(cluster, ["Empty"]) == drawn()


def test_what_would_cut_others_off_is_refused():
    chain = small_cluster(3)
    links = [k for k in chain.site_links if {k.from_site, k.to_site} != {"site-0", "site-2"}]
    chain = chain.replace(site_links=tuple(links))
    with pytest.raises(InvalidInput, match="disconnected"):
        delete_sites(chain, ["site-1"])


def test_free_names_of_sites():
    assert free_site_name(None, "Tokyo") == "Tokyo"
    assert free_site_name(drawn(), "Tokyo") == "Tokyo 2"


# -- places ---------------------------------------------------------------------------------------


def test_places_are_found_by_name_region_and_coordinates():
    assert place_named("frankfurt").longitude == 8.68
    assert place_named("eu-central-1").name == "Frankfurt"
    assert place_named("são paulo") == place_named("Sao Paulo")
    here = place_named("52.5, -13")
    assert (here.name, here.latitude, here.longitude) == ("", 52.5, -13.0)
    with pytest.raises(InvalidInput, match="did you mean Frankfurt"):
        place_named("Frankfrt")
    with pytest.raises(InvalidInput, match="latitude must be within"):
        place_named("95, 10")


def test_the_list_of_places_is_sound():
    names = [p.name for p in places()]
    assert len(names) == len(set(names)) > 150
    for place in places():
        Site(name=place.name, latitude=place.latitude, longitude=place.longitude)
        if place.name not in ("Ireland", "Dublin"):  # one point, two names in use
            assert nearest_place(place.latitude, place.longitude).name == place.name


def test_the_nearest_place_is_found_across_the_date_line_or_not_at_all():
    assert nearest_place(50.0, 8.6).name == "Frankfurt"
    assert nearest_place(-36.9, -185.2).name == "Auckland"
    assert nearest_place(-40.0, -110.0) is None
