"""Local steps and error feedback as a plan's settings."""

import itertools
import json

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.reducers.groups import groups_performed, reduction_groups
from tests.support.plans.factories import chain_plan


def test_plan_files_from_before_local_steps_mean_the_same():
    plan = chain_plan([2, 2], [10])
    data = plan_to_data(plan)
    del data["local_steps"], data["fragments"]
    assert "outer" not in data
    for stage in data["stages"]:
        del stage["error_feedback"]
    assert plan_from_json(json.dumps(data), "x.json") == plan
    assert not plan.is_local
    assert [plan.fragment_at(step) for step in range(5)] == [0] * 5
    assert plan.kinds_of_step == ((0, 1.0),)


def test_replicas_synchronise_in_the_last_of_their_local_steps():
    plan = chain_plan([2, 2], [10]).replace(local_steps=3, outer=OuterOptimizer())
    assert plan.is_local
    assert [plan.fragment_at(step) for step in range(7)] == [None, None, 0, None, None, 0, None]
    assert plan.replace(local_steps=1).is_local
    assert plan.replace(outer=None).is_local
    assert plan_from_json(json.dumps(plan_to_data(plan)), "x.json") == plan


@pytest.mark.parametrize(("steps", "fragments"), [(1, 1), (4, 2), (5, 3), (7, 7), (9, 4), (100, 8)])
def test_every_fragment_has_its_turn_once_in_a_round(steps, fragments):
    plan = chain_plan([2, 2], [10]).replace(local_steps=steps, fragments=fragments)
    for first in range(3):
        turns = [plan.fragment_at(step) for step in range(first, first + steps)]
        assert sorted(f for f in turns if f is not None) == list(range(fragments))
    assert plan.fragment_at(steps - 1) == 0
    at = [step for step in range(2 * steps) if plan.fragment_at(step) is not None]
    gaps = {two - one for one, two in itertools.pairwise(at)}
    assert max(gaps) - min(gaps) <= 1, "spread evenly"
    kinds = plan.kinds_of_step
    assert [plan.fragment_at(step) for step, _ in kinds] == [*range(fragments), *[None] * (fragments < steps)]
    assert sum(share for _, share in kinds) == pytest.approx(1.0)


def test_fragments_cut_a_stages_bucket():
    plan = chain_plan([2, 2], [5]).replace(local_steps=8)
    whole = {g.stages: g for g in reduction_groups(plan)}
    parts = [g for g in reduction_groups(plan.replace(fragments=3)) if not g.tied]
    for s in range(2):
        own = [g for g in parts if g.stages == (s,)]
        assert [g.fragment for g in own] == [0, 1, 2]
        assert [g.first_element for g in own] == [0, *itertools.accumulate(g.num_elements for g in own[:-1])]
        assert sum(g.num_elements for g in own) == whole[s,].num_elements
        assert max(g.num_elements for g in own) - min(g.num_elements for g in own) <= 1
    tied = [g for g in reduction_groups(plan.replace(fragments=3)) if g.tied and not g.every_step]
    assert [(g.fragment, g.num_elements) for g in tied] == [(0, whole[0, 1].num_elements)]


def test_what_a_rank_has_reduced_tells_its_groups():
    plan = chain_plan([2, 2], [5]).replace(local_steps=8, fragments=3)
    groups = reduction_groups(plan)
    names = {
        count: [groups[g].name for g in groups_performed(plan, groups, 0, count) or ()] for count in (0, 1, 2, 3, 4)
    }
    pipeline = "tied embedding of ranks 0, 2"
    assert names == {
        0: [],
        1: [pipeline],
        2: [pipeline, "stage 0 fragment 1"],
        3: [pipeline, "stage 0 fragment 0", "tied embedding"],
        4: [],
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(local_steps=0), "local_steps: must be greater"),
        (lambda d: d.update(local_steps=2.5), "local_steps"),
        (lambda d: d.update(fragments=0), "fragments: must be greater"),
        (lambda d: d.update(fragments=2), "fragments: must be at most local_steps 1.*got 2"),
        (lambda d: d.update(outer={"learning_rate": 0.0}), r"outer\.learning_rate: must be greater"),
        (lambda d: d.update(outer={"momentum": 1.0}), r"outer\.momentum: must be less"),
        (lambda d: d.update(outer={"name": "adam"}), r"outer\.name: unknown field"),
        (lambda d: d["stages"][0].update(error_feedback="maybe"), r"stages\[0\]\.error_feedback"),
    ],
)
def test_nonsense_in_a_plan_file_is_refused(change, words):
    data = json.loads(json.dumps(plan_to_data(chain_plan([2, 2], [10]))))
    change(data)
    with pytest.raises(InvalidInput, match=words):
        plan_from_json(json.dumps(data), "x.json")


def test_topk_reduces_only_where_the_error_is_fed_back():
    stage = chain_plan([2, 2], [10]).stages[0]
    with pytest.raises(InvalidInput, match="topk would drop gradients for good"):
        stage.replace(reduce_codec=Codec(name="topk", ratio=10.0))
    kept = stage.replace(reduce_codec=Codec(name="topk", ratio=10.0), error_feedback=True)
    assert kept.reduce_codec.ratio == 10.0
