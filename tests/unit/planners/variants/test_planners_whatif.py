"""What-if: a plan under changes, against numbers computed apart and against hand-made plans."""

import json
from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.codecs.spec import Codec
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.whatif import ChangeCodec, ChangeLink, Changes, DropDevice, WhatIf, evaluate_changes
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
INT8 = Codec(name="int8")


def after(plan, *changes) -> WhatIf:
    return evaluate_changes(plan, Changes(changes=changes))


def step_s(plan) -> float:
    return estimate_plan(plan).step_s


@pytest.fixture(scope="module")
def world():
    """64 devices at 8 sites in rank order, 8 × 8."""
    cluster = load_cluster(SAMPLES / "dtfm_5_worldwide.json")
    problem = Problem(cluster=cluster, workload=preset("gpt3-xl"), constraints=Constraints(stages=8, replicas=8))
    return make_planner("rank-order").solve(problem, seed=0, budget="1 evaluations").plan


def test_without_changes_nothing_changes():
    plan = chain_plan([8, 8], [3])
    found = after(plan)
    assert found.plan.estimate == estimate_plan(plan)
    assert found.notes == ()


# -- links ----------------------------------------------------------------------------------------


def test_a_link_is_changed_both_ways_and_forgets_where_it_was_known_from():
    plan = chain_plan([8, 8], [3])
    found = after(plan, ChangeLink(sites=("site-0", "site-2"), bandwidth=1e3))
    cluster = found.plan.problem.cluster
    for one, two in (("d0", "d2"), ("d2", "d0")):
        assert cluster.link(one, two).bandwidth == 1e3
        assert cluster.link(one, two).latency == plan.problem.cluster.link(one, two).latency
        assert cluster.link(one, two).source == "assumed"
    assert cluster.link("d0", "d1") == plan.problem.cluster.link("d0", "d1")
    by_hand = plan.problem.replace(cluster=cluster)
    assert found.plan.estimate.step_s == step_s(plan.replace(problem=by_hand)) > step_s(plan)


def test_overrides_of_single_pairs_follow_their_sites():
    plan = chain_plan([8, 8], [3])
    cluster = plan.problem.cluster
    override = {"from_device": "d0", "to_device": "d2", "latency": 1.0, "bandwidth": 5e3}
    slow = cluster.replace(device_links=(override,))
    plan = plan.replace(problem=plan.problem.replace(cluster=slow))
    found = after(plan, ChangeLink(sites=("site-2", "site-0"), latency=0.5))
    assert found.plan.problem.cluster.link("d0", "d2").latency == 0.5
    assert found.plan.problem.cluster.link("d0", "d2").bandwidth == 5e3


def test_links_inside_a_site_leave_those_inside_a_host_alone():
    cluster = mixed_gpus(0)
    host = next(h for h in cluster.hosts if sum(d.host == h.id for d in cluster.devices) > 1)
    one, two = [d.id for d in cluster.devices if d.host == host.id][:2]
    problem = Problem(cluster=cluster, workload=preset("gpt3-xl"))
    plan = make_planner("rank-order").solve(problem, seed=0, budget="1 evaluations").plan
    found = after(plan, ChangeLink(sites=(host.site, host.site), latency=0.9))
    assert found.plan.problem.cluster.link(one, two) == cluster.link(one, two)


def test_unknown_sites_and_missing_links_are_refused():
    plan = chain_plan([8, 8], [3])
    with pytest.raises(InvalidInput, match="no site 'nowhere' in small"):
        after(plan, ChangeLink(sites=("nowhere", "site-0"), latency=1.0))
    with pytest.raises(InvalidInput, match="one of the two must be given"):
        Changes.of([{"do": "link", "sites": ["site-0", "site-1"]}])


# -- codecs ---------------------------------------------------------------------------------------


def test_a_codec_everywhere_is_allowed_and_shortens_slow_messages():
    plan = chain_plan([8, 8], [3], cluster=small_cluster(4, bandwidth="1 Mbit/s"))
    found = after(plan, ChangeCodec(codec=INT8))
    assert "int8" in found.plan.problem.constraints.codecs
    assert {(k.from_device, k.to_device, k.role) for k in found.plan.link_codecs} == {
        ("d0", "d2", "activation"), ("d2", "d0", "gradient"), ("d1", "d3", "activation"), ("d3", "d1", "gradient"),
    }  # fmt: skip
    assert found.plan.estimate.step_s < step_s(plan)
    back = after(found.plan, ChangeCodec(codec=Codec()))
    assert back.plan.link_codecs == ()
    assert back.plan.estimate.step_s == pytest.approx(step_s(plan))


def test_a_codec_on_one_link_leaves_the_others_dense():
    plan = chain_plan([8, 8], [3])
    found = after(plan, ChangeCodec(sites=("site-2", "site-0"), codec=Codec(name="topk", ratio=200.0)))
    assert {(k.from_device, k.to_device) for k in found.plan.link_codecs} == {("d0", "d2"), ("d2", "d0")}
    assert found.plan.problem.constraints.max_ratio == 200.0
    with pytest.raises(InvalidInput, match="sends no messages between site-0 and site-1"):
        after(plan, ChangeCodec(sites=("site-0", "site-1"), codec=INT8))


def test_a_codec_in_reductions_keeps_what_it_loses():
    plan = chain_plan([8, 8], [3], cluster=small_cluster(4, bandwidth="1 Mbit/s"))
    found = after(plan, ChangeCodec(of="reductions", codec=INT8))
    assert all(stage.reduce_codec == INT8 and stage.error_feedback for stage in found.plan.stages)
    assert found.plan.estimate.step_s < step_s(plan)


# -- dropped devices ------------------------------------------------------------------------------


def test_an_idle_device_is_not_missed():
    plan = chain_plan([8, 8], [3], cluster=small_cluster(5))
    found = after(plan, DropDevice(device="d4"))
    assert found.plan.estimate.step_s == pytest.approx(step_s(plan))
    assert found.notes == ("d4 was idle: nothing changes",)
    assert found.plan.problem.constraints.excluded == ("d4",)


def test_an_idle_device_takes_the_place_with_its_codecs():
    plan = chain_plan([8, 8], [3], cluster=small_cluster(5))
    plan = after(plan, ChangeCodec(codec=INT8)).plan
    found = after(plan, DropDevice(device="d0"))
    assert found.plan.stages[0].replicas[0] == ("d4",)
    assert found.plan.ranks == ("d4", "d1", "d2", "d3")
    assert {k.from_device for k in found.plan.link_codecs} == {"d1", "d2", "d3", "d4"}
    assert found.plan.estimate.step_s == pytest.approx(plan.estimate.step_s)
    assert found.notes == ("d4, idle so far, replaces d0",)


def test_without_idle_ones_the_best_of_the_ways_is_taken(world):
    device = world.stages[3].replicas[5][0]
    found = after(world, DropDevice(device=device))
    assert device not in found.plan.ranks
    assert sum(route.micro_batches for route in found.plan.routes) == 1024
    check_plan(found.plan)
    # No worse than what anybody would think of first: its pipeline ends, and 7 pipelines share the work.
    assert found.plan.estimate.step_s <= step_s(world) * 8 / 7 * 1.05
    assert found.plan.estimate.step_s > step_s(world)
    assert device in found.notes[0]


@pytest.mark.parametrize(
    ("plan", "words", "left"),
    [
        (
            chain_plan([8, 8, 8], [1], cluster=sites_cluster([6], inside=("100 Gbit/s", "1 us"))),
            "the other replicas of stage 0 do the work of d0",
            [2, 3],
        ),
        # One replica has nothing to reduce over slow links.
        (
            chain_plan([8, 8], [3], cluster=sites_cluster([2, 2], between=("1 Gbit/s", "1 ms"))),
            "the pipeline of d0 ends, so 1 more device is idle; the others do its share",
            [1, 1],
        ),
    ],
)
def test_others_take_the_work_over_or_the_pipeline_ends_whichever_is_faster(plan, words, left):
    found = after(plan, DropDevice(device="d0"))
    assert found.notes == (words,)
    assert [len(stage.replicas) for stage in found.plan.stages] == left
    assert sum(route.micro_batches for route in found.plan.routes) == sum(r.micro_batches for r in plan.routes)


def test_two_devices_go_one_after_the_other(world):
    gone = [world.stages[0].replicas[0][0], world.stages[4].replicas[2][0]]
    found = after(world, *(DropDevice(device=d) for d in gone))
    assert not set(gone) & set(found.plan.ranks)
    assert len(found.notes) == 2
    wanted = found.plan.problem.constraints
    assert wanted.excluded == tuple(gone)
    assert (wanted.stages, wanted.replicas) == (8, None), "63 devices do not fill 8 × 8: a search is free to choose"


def test_a_pipeline_that_cannot_go_on_says_why():
    plan = chain_plan([16], [3])
    with pytest.raises(Infeasible, match="without d0 this plan cannot go on: it serves the only replica of its stage"):
        after(plan, DropDevice(device="d0"))
    with pytest.raises(InvalidInput, match="'ghost' is no usable device"):
        after(plan, DropDevice(device="ghost"))


# -- data -----------------------------------------------------------------------------------------


def test_changes_and_answers_travel_as_plain_data(world):
    changes = Changes(
        changes=(
            DropDevice(device=world.ranks[0]),
            ChangeLink(sites=("Tokyo", "London"), bandwidth=1.25e7, latency=0.1),
            ChangeCodec(codec=Codec(name="topk", ratio=8.0)),
        )
    )
    again = Changes.of(json.loads(json.dumps(changes.to_data())))
    assert again == changes
    found = evaluate_changes(world, changes)
    assert WhatIf.from_data(json.loads(json.dumps(found.to_data())), world, again) == found


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("drop", "what if"),
        ([{"do": "explode"}], "what if: changes"),
        ([{"do": "drop", "device": "x" * 500}], "what if: changes"),
        ([{"do": "link", "sites": ["a", "b"], "latency": "1e308 s"}], "latency"),
        ([{"do": "link", "sites": ["a"], "latency": "1 s"}], "sites"),
        ([{"do": "codec", "codec": {"name": "zip"}}], "codec"),
        ([{"do": "codec", "codec": {"name": "powersgd"}}], "for reductions only"),
        ([{"do": "drop", "device": "d"}] * 1000, "what if: changes"),
    ],
)
def test_bad_changes_are_refused_with_their_place(data, words):
    with pytest.raises(InvalidInput, match=words):
        Changes.of(data)
