"""The right reducer in four kinds of networks; only those that are allowed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.model import Cluster, SiteLink
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.problem import Constraints
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.planners.choices.reducer import choose_reducer
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster

SAMPLE = str(Path(__file__).parents[4] / "sample_clusters" / "campus_3_sites_6.json")


def linked_sites(num_sites: int, is_fast) -> Cluster:
    """One device a site; 100 Mbit/s and 1 ms where two sites are joined well, else 1 Mbit/s and 100 ms."""
    cluster = small_cluster(num_sites)
    links = [
        SiteLink(from_site=a.name, to_site=b.name, latency=0.001, bandwidth=12.5e6)
        if i == j or is_fast(i, j)
        else SiteLink(from_site=a.name, to_site=b.name, latency=0.1, bandwidth=125e3)
        for i, a in enumerate(cluster.sites)
        for j, b in enumerate(cluster.sites)
    ]
    return cluster.replace(site_links=tuple(links))


NETWORKS = {
    "sharded-ps": small_cluster(6),  # all links alike
    "ring": linked_sites(6, lambda i, j: abs(i - j) in (1, 5)),  # neighbours alone are joined well
    "central-ps": linked_sites(6, lambda i, j: 3 in (i, j)),  # a star around the fourth
    # Several replicas in each of two sites, a slow way between, and hosts whose NICs all traffic has to pass.
    "hierarchical": sites_cluster((4, 4), between=("100 Mbit/s", "50 ms"), nic="200 Mbit/s"),
}


def replicated(cluster):
    """One stage, a replica on every device."""
    return chain_plan([1] * len(cluster.devices), [], cluster=cluster)


@pytest.mark.parametrize("expected", NETWORKS)
def test_each_network_gets_the_reducer_made_for_it(expected):
    plan = replicated(NETWORKS[expected])
    chosen = choose_reducer(plan, CostModel.of(plan.problem))
    assert chosen.reducer == expected
    # The simulator agrees: what the closed form chose is the fastest, event by event.
    measured = {name: summarise_trace(simulate(plan.replace(reducer=name))).step_s for name in REDUCER_NAMES}
    assert min(measured, key=measured.get) == expected
    assert estimate_plan(chosen).step_s == pytest.approx(measured[expected], rel=0.05)


def test_where_links_are_missing_the_reducer_does_without_them():
    neighbours = linked_sites(6, lambda i, j: True)
    kept = [k for k in neighbours.site_links if abs(int(k.from_site[-1]) - int(k.to_site[-1])) in (0, 1, 5)]
    plan = replicated(neighbours.replace(site_links=tuple(kept)))
    with pytest.raises(Infeasible, match=r"no link between d0 .* for the reduction of stage 0"):
        check_plan(plan)
    chosen = choose_reducer(plan, CostModel.of(plan.problem))
    assert chosen.reducer == "ring"
    check_plan(chosen)


def test_two_sites_exchange_the_bucket_once_each_way():
    plan = replicated(NETWORKS["hierarchical"]).replace(reducer="hierarchical")
    (group,) = reduction_groups(plan)
    site_M = group.members.site_M
    out = [group.transfer_bytes(t) for t in group.program if site_M[t.sender] == 0 and site_M[t.receiver] == 1]
    assert sum(out) == 4 * group.num_elements


def test_dollars_choose_what_leaves_the_sites_least():
    cluster = sites_cluster((3, 3))
    priced = cluster.replace(
        sites=tuple(site.replace(egress_usd_per_gb=5.0) for site in cluster.sites),
        devices=tuple(device.replace(price_usd_per_hour=0.01) for device in cluster.devices),
    )
    plan = replicated(priced)
    plan = plan.replace(problem=plan.problem.replace(objective="cost"))
    model = CostModel.of(plan.problem)
    chosen = choose_reducer(plan, model)
    usd = {n: estimate_plan(plan.replace(reducer=n), model=model).usd_per_mtoken for n in REDUCER_NAMES}
    assert chosen.reducer == min(usd, key=usd.get) == "hierarchical"


def test_only_allowed_reducers_are_chosen_and_others_refused():
    plan = replicated(NETWORKS["hierarchical"])
    limited = plan.replace(problem=plan.problem.replace(constraints=Constraints(reducers=("ring", "central-ps"))))
    chosen = choose_reducer(limited, CostModel.of(limited.problem))
    assert chosen.reducer == "central-ps"
    check_plan(chosen)
    with pytest.raises(InvalidInput, match=r"reducer: 'sharded-ps' is not among constraints.reducers \(ring, central"):
        check_plan(limited)


def test_an_older_plan_file_means_what_it_meant():
    plan = chain_plan([2, 2], [4])
    data = json.loads(json.dumps(plan_to_data(plan)))
    del data["reducer"], data["problem"]["constraints"]["reducers"]
    again = plan_from_json(json.dumps(data), "old.json")
    assert again.reducer == "sharded-ps"
    check_plan(again)
    assert estimate_plan(again) == estimate_plan(plan)


def test_the_command_line_limits_reducers():
    shape = ["--stages", "1", "--replicas", "3", "--evaluations", "0", "--json", "--global-batch", "12"]
    done = CliRunner().invoke(app, ["plan", SAMPLE, "tiny-gpt", *shape, "--reducers", "ring"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)["plan"]
    assert plan["reducer"] == "ring"
    assert plan["problem"]["constraints"]["reducers"] == ["ring"]
    refused = CliRunner().invoke(app, ["plan", SAMPLE, "tiny-gpt", *shape, "--reducers", "tree"])
    assert "plan: constraints.reducers[0]" in str(refused.exception)
