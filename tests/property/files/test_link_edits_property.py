"""Whatever is edited in whatever order: links not named stay, the file reads back, symmetric is symmetric."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.link_edits import LinkEnds, fill_from_distance, make_symmetric, own_link, remove_link, set_link
from tests.support.plans.factories import sites_cluster

BASE = sites_cluster([2, 1, 2])
SITES = [site.name for site in BASE.sites]

site_ends = st.builds(LinkEnds, st.just("site"), st.sampled_from(SITES), st.sampled_from(SITES))
device_ends = st.permutations(BASE.device_ids).map(lambda ids: LinkEnds("device", ids[0], ids[1]))
edits = st.lists(
    st.tuples(
        st.one_of(site_ends, device_ends),
        st.floats(0, 1e6),
        st.floats(1, 1e15),
        st.sampled_from(["specified", "assumed"]),
        st.booleans(),
    ),
    max_size=6,
)


def edited(changes):
    cluster = BASE
    for ends, latency, bandwidth, source, symmetric in changes:
        cluster = set_link(
            cluster,
            ends,
            latency_s=latency,
            bandwidth_bytes_per_s=bandwidth,
            source=source,
            symmetric=symmetric,
        )
    return cluster


def link_table(cluster):
    rows = {("site", k.from_site, k.to_site): k for k in cluster.site_links}
    return rows | {("device", k.from_device, k.to_device): k for k in cluster.device_links}


@settings(max_examples=60, deadline=None)
@given(edits)
def test_only_named_links_change_and_all_say_how_they_are_known(changes):
    cluster = edited(changes)
    named = {tuple(way) for ends, *_, symmetric in changes for way in ((ends, ends.turned) if symmetric else (ends,))}
    before, after = link_table(BASE), link_table(cluster)
    assert after.keys() == before.keys() | named
    for pair, link in after.items():
        if pair not in named:
            assert link is before[pair]
        else:
            assert link.replaces is not None
    if changes:
        ends, latency, bandwidth, source, _ = changes[-1]
        last = own_link(cluster, ends)
        assert (last.latency, last.bandwidth, last.source) == (latency, bandwidth, source)
    assert cluster_from_json(cluster_to_json(cluster)) == cluster


@settings(max_examples=60, deadline=None)
@given(edits)
def test_symmetric_is_symmetric_never_faster_and_done_once(changes):
    cluster = edited(changes)
    after = make_symmetric(cluster)
    np.testing.assert_array_equal(after.latency_s_DD, after.latency_s_DD.T)
    np.testing.assert_array_equal(after.bandwidth_bytes_per_s_DD, after.bandwidth_bytes_per_s_DD.T)
    np.testing.assert_array_equal(after.latency_s_DD, np.maximum(cluster.latency_s_DD, cluster.latency_s_DD.T))
    slower_DD = np.minimum(cluster.bandwidth_bytes_per_s_DD, cluster.bandwidth_bytes_per_s_DD.T)
    np.testing.assert_array_equal(after.bandwidth_bytes_per_s_DD, slower_DD)
    assert make_symmetric(after) is after


@settings(max_examples=40, deadline=None)
@given(edits, device_ends, st.floats(0, 1e6), st.floats(1, 1e15))
def test_an_override_removed_leaves_what_was_there(changes, ends, latency, bandwidth):
    cluster = edited([change for change in changes if change[0].per == "site"])
    own = set_link(cluster, ends, latency_s=latency, bandwidth_bytes_per_s=bandwidth)
    assert remove_link(own, ends) == cluster


@settings(max_examples=40, deadline=None)
@given(edits)
def test_filling_leaves_what_a_person_gave(changes):
    cluster = edited(changes)
    filled = fill_from_distance(cluster, scope="assumed")
    for pair, link in link_table(filled).items():
        old = link_table(cluster)[pair]
        assert link is old or (old.source, link.source) == ("assumed", "assumed")
        assert pair[0] == "site" or link is old
