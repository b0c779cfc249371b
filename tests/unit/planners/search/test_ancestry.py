"""Where the best placement of a search comes from: told, kept, drawn."""

import json

import pytest

import hetplanner as hp
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.search.ancestry import Ancestor, Birth, ancestors_of
from hetplanner.plots.data.search.ancestry import birth_columns, descent_lines
from tests.support.plans.factories import tiny_workload

SEED_A, SEED_B = (Birth.of("seed", value, 10, (4, 2)) for value in (9.0, 8.0))
CROSSED = Birth.of("crossed", 7.0, 50, (4, 2), (SEED_A, SEED_B))
BEST = Birth.of("annealed", 5.0, 50, (3, None), (CROSSED,))


def small_problem(devices: int, objective: str = "step-time") -> Problem:
    shape = Constraints(stages=4, replicas=devices // 4)
    cluster = mixed_gpus(0, num_devices=devices)
    return Problem(cluster=cluster, workload=tiny_workload(), objective=objective, constraints=shape)


def search(problem, **settings):
    return make_planner("evolution", {"chain": 300, **settings}).solve(problem, seed=3, budget="40000 evaluations")


@pytest.mark.parametrize("objective", ["step-time", "cost", "dtfm"])
def test_a_search_tells_the_parents_of_its_best_placement(objective):
    problem = small_problem(16, objective)
    found = search(problem)
    ancestry = found.ancestry
    assert ancestry == search(problem).ancestry
    assert {one.way for one in ancestry} <= {"seed", "annealed", "crossed"}
    assert ancestry[-1].value == min(one.value for one in ancestry)
    for k, one in enumerate(ancestry):
        assert len(one.parents) == {"seed": 0, "annealed": 1, "crossed": 2}[one.way]
        assert all(parent < k for parent in one.parents)
        assert all(ancestry[parent].evaluations <= one.evaluations <= found.evaluations for parent in one.parents)
        if one.way == "annealed":
            assert one.value < ancestry[one.parents[0]].value
    children = {parent for one in ancestry for parent in one.parents}
    assert children == set(range(len(ancestry) - 1)), "every other one is a parent"
    again = [Ancestor.from_data(json.loads(json.dumps(one.to_data()))) for one in ancestry]
    assert again == list(ancestry)


def test_islands_tell_no_parents():
    found = search(small_problem(8), islands=2)
    assert found.ancestry == ()
    with pytest.raises(InvalidInput, match="tells of no parents; use planner evolution with one island"):
        hp.plots.ancestry(found)


def test_parents_stand_before_children_even_at_the_same_count():
    found = ancestors_of(BEST)
    assert [one.way for one in found] == ["seed", "seed", "crossed", "annealed"]
    assert found[-1].parents == (2,)
    assert (found[2].shape, found[3].shape) == ("4 × 2", "3 × unlike")
    assert ancestors_of(None) == ()


def test_of_many_ancestors_the_latest_are_told():
    birth = Birth.of("seed", 1000.0, 0, (2, 2))
    for count in range(1, 5000):
        birth = Birth.of("annealed", 1000.0 - 0.1 * count, count, (2, 2), (birth,))
    found = ancestors_of(birth, most=100)
    assert [one.evaluations for one in found] == list(range(4900, 5000))
    assert found[0].parents == ()
    assert [one.parents for one in found[1:]] == [(k,) for k in range(99)]


def test_marks_and_lines_are_drawn_of_each_birth():
    ancestry = ancestors_of(BEST)
    columns = birth_columns(ancestry, "step-time")
    assert columns["value"] == [9.0, 8.0, 7.0, 5.0]
    assert columns["text"] == ["9 s", "8 s", "7 s, from 9 s and 8 s", "5 s, from 7 s"]
    lines = descent_lines(ancestry)
    assert [xs.tolist() for xs in lines["xs"]] == [[10.0, 50.0], [10.0, 50.0], [50.0, 50.0]]
    assert [ys.tolist() for ys in lines["ys"]] == [[9.0, 7.0], [8.0, 7.0], [7.0, 5.0]]
