"""Plans of identical stages by runs: all of them are listed, and they hold what annealing cannot reach."""

from itertools import product

import numpy as np
import pytest

from hetplanner.cluster.generators import r10
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.dtfm.equal_runs import equal_run_layouts
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset


def counts_of(layout, class_of, stages):
    """Devices of every class, stage by stage."""
    return tuple(tuple(np.bincount(class_of[stage], minlength=3)) for stage in layout.reshape(stages, -1))


def test_every_plan_of_identical_stages_is_listed():
    members = [np.array([4, 1, 7]), np.array([0, 2, 3, 6]), np.array([5, 8])]
    class_of = np.empty(9, dtype=np.int64)
    for c, devices in enumerate(members):
        class_of[devices] = c
    listed = set()
    for batch in equal_run_layouts(members, 3, 3):
        for layout in batch:
            assert sorted(layout) == list(range(9))
            listed.add(counts_of(layout, class_of, 3))
    kinds = [k for k in product(range(4), repeat=3) if sum(k) == 3]
    for first, second, third in product(kinds, repeat=3):
        if tuple(np.add(np.add(first, second), third)) == (3, 4, 2):
            # In one direction or the other.
            assert {(first, second, third), (third, second, first)} & listed


def test_spare_devices_or_too_many_classes_list_nothing():
    assert not list(equal_run_layouts([np.arange(9)], 2, 4))
    assert not list(equal_run_layouts([np.array([d]) for d in range(20)], 4, 5))


def test_the_best_known_plan_of_scattered_spot_devices_is_found():
    problem = Problem(
        cluster=r10(2022),
        workload=preset("gpt3-xl"),
        objective="dtfm",
        constraints=Constraints(stages=8, replicas=8),
    )
    result = make_planner("evolution").solve(problem, budget="40000 evaluations")
    assert result.value == pytest.approx(62.71026, abs=1e-5)
