"""What a problem or plan that does not fit is told: who lacks how much, and what one change helps."""

import re
from itertools import pairwise

import pytest

from hetplanner.cost.advice.feasibility import advise
from hetplanner.cost.check import check_plan, explain_infeasible
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload


def shrunk(plan, memory):
    return plan.replace(problem=with_memory(plan.problem, [memory] * len(plan.problem.cluster.devices)))


def with_memory(problem, memories):
    cluster = problem.cluster
    devices = tuple(d.replace(memory=float(m), reserve=0.0) for d, m in zip(cluster.devices, memories, strict=True))
    return problem.replace(cluster=cluster.replace(devices=devices))


def text_of(problem, stages=1, replicas=1):
    return str(explain_infeasible(problem, CostTables(problem), stages, replicas))


def test_a_plan_that_does_not_fit_names_the_devices_and_by_how_much():
    plan = chain_plan((8, 8), (5,), in_flight=[8, 8])
    needed = CostTables(plan.problem).stage_bytes(0, 5, 8, False)
    with pytest.raises(Infeasible) as refusal:
        check_plan(shrunk(plan, needed * 0.9))
    text = str(refusal.value)
    assert re.search(r"2 x CPU generic \(d0, d1\) are short by .* each \(need .*, have .*\)", text)
    assert text.endswith("recomputing activations would fit")
    check_plan(shrunk(plan, needed * 2))


@pytest.mark.parametrize(
    ("shares", "cut", "depth", "memory", "words"),
    [
        ((16,), 5, [16, 16], 1000e3, "; fewer micro-batches in flight would fit"),
        ((8, 8), 9, [1, 1], 950e3, "; another cut or placement would fit"),
        ((8, 8), 9, [1, 1], 1e3, "tensor parallelism"),
    ],
)
def test_a_plan_is_told_the_least_change_that_helps(shares, cut, depth, memory, words):
    """Two stages need 690 and 893 kB at least, each in two replicas and cut in the middle; cut at 9 it is 1,050 kB."""
    plan = chain_plan(shares, (cut,), in_flight=depth)
    recomputing = plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))
    with pytest.raises(Infeasible, match=words):
        check_plan(shrunk(recomputing, memory))


def test_many_devices_are_listed_by_kind():
    problem = Problem(cluster=small_cluster(64), workload=preset("llama-70b"), constraints=Constraints(replicas=8))
    text = text_of(with_memory(problem, [16e9] * 32 + [24e9] * 32))
    assert re.search(r"8 x CPU generic \(\w+, \w+, \w+ and 5 more\) are short by", text)
    assert len(text) < 1000
    assert "\n" not in text


def test_a_model_whose_layers_fit_nowhere_needs_groups_and_more_devices():
    problem = Problem(cluster=small_cluster(4), workload=preset("llama-70b"))
    text = text_of(with_memory(problem, [16e9] * 4))
    assert "largest layer alone needs" in text
    assert "tensor parallelism over 2 or more devices of a host (--tensor) together with more devices" in text


def test_enough_memory_in_all_but_too_little_in_one_device_needs_tensor_parallelism():
    problem = Problem(cluster=small_cluster(64), workload=preset("llama-70b"))
    text = text_of(with_memory(problem, [36e9] * 64).replace(constraints=Constraints(stages=16)))
    assert "more stages would help" in text
    stuck = with_memory(problem, [15e9] * 64).replace(constraints=Constraints(stages=16, replicas=4))
    advice = advise(CostTables(stuck))
    assert advice.problem is None
    assert "tensor parallelism" in advice.text


def test_one_device_more_is_said_so():
    """Three stages of this model need 504 kB each, four need 414 kB."""
    problem = Problem(cluster=small_cluster(3), workload=tiny_workload(layers=4, micro_batch=1))
    assert "1 more device like d0 (CPU generic)" in text_of(with_memory(problem, [450e3] * 3))
    make_planner("evolution").solve(with_memory(problem, [505e3] * 3), budget="0 s")


def test_a_baseline_whose_placement_does_not_fit_points_at_the_search_that_fits():
    problem = Problem(
        cluster=small_cluster(2), workload=tiny_workload(layers=4), constraints=Constraints(stages=2, replicas=1)
    )
    tables = CostTables(problem)
    ends = [0, int(tables.cuts[0]), tables.num_ops]
    # The first device holds nearly all of the model, the second its beginning alone.
    sizes = [tables.stage_bytes(a, b, 1, True) * 1.001 for a, b in pairwise(ends)][::-1]
    tight = with_memory(problem, sizes)
    with pytest.raises(Infeasible, match="planner evolution finds"):
        make_planner("rank-order").solve(tight)
    check_plan(make_planner("evolution").solve(tight, budget="0 s").plan)
