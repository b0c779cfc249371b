"""Local steps and error feedback as a plan's settings."""

import json

import pytest
from factories import chain_plan

from hetplanner.codecs.spec import Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.files import plan_from_json, plan_to_data
from hetplanner.plan.model import OuterOptimizer


def test_plan_files_from_before_local_steps_mean_the_same():
    plan = chain_plan([2, 2], [10])
    data = plan_to_data(plan)
    del data["local_steps"]
    assert "outer" not in data
    for stage in data["stages"]:
        del stage["error_feedback"]
    assert plan_from_json(json.dumps(data), "x.json") == plan
    assert not plan.is_local
    assert all(plan.synchronises_at(step) for step in range(5))


def test_replicas_synchronise_in_the_last_of_their_local_steps():
    plan = chain_plan([2, 2], [10]).replace(local_steps=3, outer=OuterOptimizer())
    assert plan.is_local
    assert [plan.synchronises_at(step) for step in range(7)] == [False, False, True, False, False, True, False]
    assert plan.replace(local_steps=1).is_local
    assert plan.replace(outer=None).is_local
    assert plan_from_json(json.dumps(plan_to_data(plan)), "x.json") == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(local_steps=0), "local_steps: must be greater"),
        (lambda d: d.update(local_steps=2.5), "local_steps"),
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
