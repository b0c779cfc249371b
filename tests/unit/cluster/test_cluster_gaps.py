"""Clusters where some devices have no link to each other: what is refused, what is said, what a plan may use."""

import json

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.formats.table_export import export_tables
from hetplanner.cluster.model import Cluster
from hetplanner.cluster.parts import name_parts, parts_of
from hetplanner.cost.check import check_plan
from hetplanner.cost.links import LinkTable
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plots.data.maps.links import link_matrix
from hetplanner.schema import checked
from hetplanner.simulator.simulation import simulate
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload


def without(cluster: Cluster, *pairs: tuple[str, str], both: bool = True):
    """The cluster as data, without the links between these sites."""
    gone = {*pairs, *((b, a) for a, b in pairs if both)}
    return cluster.model_dump() | {
        "site_links": tuple(k for k in cluster.site_links if (k.from_site, k.to_site) not in gone)
    }


def gapped(devices: int, *pairs: tuple[int, int]) -> Cluster:
    """One device at each site; no link between the sites of these numbers."""
    return checked(Cluster, without(small_cluster(devices), *((f"site-{a}", f"site-{b}") for a, b in pairs)), "gapped")


def test_a_disconnected_cluster_is_refused_with_its_parts_named():
    pairs = [(f"site-{a}", f"site-{b}") for a in (0, 1, 2) for b in (3, 4)]
    with pytest.raises(InvalidInput) as refusal:
        checked(Cluster, without(small_cluster(5), *pairs), "split.json")
    assert str(refusal.value) == (
        "split.json: disconnected: the devices fall into 2 parts without a link between them: site-0, site-1, site-2"
        " (3 devices) | site-3, site-4 (2 devices); add a site_links entry, symmetric, from 'site-0' to 'site-3'"
    )


def test_a_link_without_one_back_is_refused():
    data = without(small_cluster(3), ("site-0", "site-1"), both=False)
    with pytest.raises(InvalidInput, match="no link from device 'd0' to 'd1', only one the other way"):
        checked(Cluster, data, "one-way")


def test_parts_and_their_names():
    joined = np.eye(5, dtype=bool)
    joined[1, 2] = joined[2, 1] = joined[2, 4] = joined[4, 2] = True
    assert parts_of(joined) == [[1, 2, 4], [0], [3]]
    text = name_parts(parts_of(joined), ["A", "B", "B", "A", "C"], ["a", "b", "c", "d", "e"])
    assert text == "B, C (3 devices) | a at A (1 device) | d at A (1 device)"
    many = name_parts([[i] for i in range(9)], [f"s{i}" for i in range(9)], [f"d{i}" for i in range(9)])
    assert many.endswith("| … (9 parts)")


def test_a_gap_is_kept_by_files_and_shown_by_matrices():
    cluster = gapped(3, (0, 2))
    assert cluster_from_json(cluster_to_json(cluster)) == cluster
    assert cluster.has_gaps
    assert not small_cluster(3).has_gaps
    assert cluster.site_gaps() == (("site-0", "site-2", 1),)
    assert cluster.latency_s_DD[0, 2] == np.inf
    assert cluster.bandwidth_bytes_per_s_DD[0, 2] == 0
    with pytest.raises(KeyError, match="no link"):
        cluster.link("d0", "d2")
    matrix = link_matrix(cluster)
    assert np.isnan(matrix.value_DD[0, 2])
    assert matrix.sources[matrix.source_DD[0, 2]] == "no link"
    table = LinkTable.of(cluster)
    assert np.isfinite(table.latency_s_DD).all()
    assert np.isfinite(table.seconds_per_byte_DD).all()


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv", "site-json"])
def test_tables_refuse_what_they_cannot_say(tmp_path, form):
    with pytest.raises(InvalidInput, match="without a link"):
        export_tables(gapped(3, (0, 2)), tmp_path / form, form)


def test_inside_a_site_every_link_is_needed():
    data = small_cluster(2).model_dump()
    hosts = tuple(host | {"site": "site-0"} for host in data["hosts"])
    links = tuple(k for k in data["site_links"] if k["from_site"] != k["to_site"])
    with pytest.raises(InvalidInput, match=r"no link from device 'd0' to 'd1' \(2 pairs inside sites"):
        checked(Cluster, data | {"hosts": hosts, "site_links": links}, "one site")


def test_a_problem_whose_exclusions_split_the_cluster_is_refused():
    cluster = gapped(3, (0, 2))
    Problem(cluster=cluster, workload=tiny_workload(), constraints=Constraints(excluded=("d2",)))
    with pytest.raises(ValueError, match=r"constraints\.excluded: .* 2 parts .*site-0 \(1 device\) \| site-2"):
        Problem(cluster=cluster, workload=tiny_workload(), constraints=Constraints(excluded=("d1",)))


def test_a_plan_uses_only_links_that_exist():
    tied = tiny_workload(global_batch=16)
    untied = tied.replace(transformer=tied.transformer.replace(tie_embeddings=False))
    good = chain_plan((8,), (3, 6), cluster=gapped(3, (0, 2)), workload=untied)
    check_plan(good)
    assert simulate(good).end_s > 0
    # Stages 0 and 1 now lie on devices without a link.
    bad = chain_plan((8,), (3, 6), cluster=gapped(3, (0, 1)))
    with pytest.raises(Infeasible, match=r"no link between d0 \(site-0\) and d1 \(site-1\) for route 0 from stage 0"):
        check_plan(bad)
    text = json.dumps(plan_to_data(bad))
    with pytest.raises(InvalidInput, match=r"old\.json: no link between d0"):
        plan_from_json(text, "old.json")


def test_replicas_of_a_stage_must_reach_each_other():
    plan = chain_plan((4, 4), (5,), cluster=gapped(4, (2, 3)))
    with pytest.raises(Infeasible, match=r"no link between d2 .* and d3 .* for the reduction of stage 1"):
        check_plan(plan)


def test_tied_weights_need_a_link_between_their_stages():
    plan = chain_plan((8,), (3, 6), cluster=gapped(3, (0, 2)))
    with pytest.raises(Infeasible, match="for the reduction of tied"):
        check_plan(plan)
