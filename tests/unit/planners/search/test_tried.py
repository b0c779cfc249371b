"""The shapes that a search tried."""

import json

import pytest

from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.search.tried import TriedShape
from hetplanner.plots.data.curves import tried_columns
from tests.support.plans.factories import small_cluster, tiny_workload


def search(**constraints):
    task = Problem(cluster=small_cluster(6), workload=tiny_workload(), constraints=Constraints(**constraints))
    return make_planner("evolution").solve(task, budget="5000 evaluations")


def test_a_search_tells_what_each_shape_was_worth():
    found = search()
    values = [shape.value for shape in found.tried]
    assert values == pytest.approx(sorted(values), rel=1e-5)
    assert len({(s.stages, s.replicas) for s in found.tried}) == len(found.tried) > 5
    assert values[0] == pytest.approx(found.value, rel=0.05)
    stages, replicas = len(found.plan.stages), {len(stage.replicas) for stage in found.plan.stages}
    best = [s for s in found.tried if s.value <= found.value * 1.05]
    assert any(s.stages == stages and (s.replicas is None or {s.replicas} == replicas) for s in best)
    assert [TriedShape(**json.loads(json.dumps(s.to_data()))) for s in found.tried] == list(found.tried)


def test_a_fixed_shape_is_the_only_one():
    (only,) = search(stages=3, replicas=2).tried
    assert (only.stages, only.replicas, only.label) == (3, 2, "3 × 2")


def test_shapes_far_behind_the_best_are_counted_and_not_shown():
    tried = [TriedShape(2, 2, 1.0, 4), TriedShape(3, None, 2.0, 1), TriedShape(1, 1, 3.0, 0), TriedShape(1, 2, 1e9, 0)]
    columns, left_out = tried_columns(tried, "s")
    assert left_out == 1
    assert columns["kind"] == ["best", "annealed", "scored"]
    assert columns["shape"] == ["2 × 2", "3 × unlike", "1 × 1"]
    assert columns["text"] == ["1 s; 4 annealing runs", "2 s; 1 annealing run", "3 s; scored, not annealed"]
    assert tried_columns([], "s") == ({name: [] for name in columns}, 0)
