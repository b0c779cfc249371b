"""Devices pinned to stages: refused where no plan can honour them, kept by every planner that says so."""

import pytest

from hetplanner.cli.problem import pins
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cost.check import check_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.schema import checked
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload

HONOUR = [name for name in planner_names() if planner_type(name).honours_pins]


def problem(pinned, devices=9, objective="step-time", **constraints):
    return Problem(
        cluster=mixed_gpus(3, num_devices=devices, num_sites=3),
        workload=preset("tiny-gpt", global_batch=16),
        objective=objective,
        constraints=Constraints(pinned=pinned, **constraints),
    )


def stage_of(plan):
    return {device: s for s, stage in enumerate(plan.stages) for replica in stage.replicas for device in replica}


@pytest.mark.parametrize("name", HONOUR)
@pytest.mark.parametrize("budget", ["20000 evaluations", "0 s"])
def test_pinned_devices_serve_their_stages(name, budget):
    pinned = {"gpu-4": 1, "gpu-0": 0, "gpu-2": 1}
    size = {"devices": 5} if name == "exhaustive" else {}
    plan = make_planner(name).solve(problem(pinned, stages=2, replicas=2, **size), budget=budget).plan
    assert pinned.items() <= stage_of(plan).items()
    check_plan(plan)


@pytest.mark.parametrize("objective", ["step-time", "cost"])
def test_a_free_shape_has_room_for_them(objective):
    pinned = {"gpu-4": 2, "gpu-5": 2, "gpu-0": 0}
    result = make_planner("evolution").solve(problem(pinned, objective=objective), budget="30000 evaluations")
    assert pinned.items() <= stage_of(result.plan).items()
    assert len(result.plan.stages) >= 3
    assert result.lower_bound <= result.value


def test_the_optimum_under_pins_is_found_and_is_no_better_than_without():
    pinned = {"gpu-3": 0, "gpu-1": 1}
    bound, free = problem(pinned, devices=5, stages=2, replicas=1), problem({}, devices=5, stages=2, replicas=1)
    best = make_planner("exhaustive").solve(bound, budget=Budget()).value
    found = make_planner("evolution", {"finalists": 1}).solve(bound, budget="100000 evaluations")
    assert found.value == pytest.approx(best, rel=1.1e-3)
    assert best > make_planner("exhaustive").solve(free, budget=Budget()).value


@pytest.mark.parametrize("name", [n for n in planner_names() if n not in HONOUR])
def test_other_planners_refuse_pins_in_one_line(name):
    objective = planner_type(name).objectives[0]
    with pytest.raises(InvalidInput, match=r"cannot keep devices pinned .* choose planner evolution"):
        make_planner(name).solve(problem({"gpu-0": 0}, objective=objective, stages=2, replicas=2))


def test_the_published_objective_pins_nothing():
    with pytest.raises(InvalidInput, match="cannot keep devices pinned"):
        make_planner("evolution").solve(problem({"gpu-0": 0}, objective="dtfm", stages=2, replicas=2))


@pytest.mark.parametrize(
    ("constraints", "law"),
    [
        ({"pinned": {"gpu-99": 0}}, "unknown device"),
        ({"pinned": {"gpu-0": 0}, "excluded": ("gpu-0",)}, "excluded too"),
        ({"pinned": {"gpu-0": 2}, "stages": 2}, "must be below 2"),
        ({"pinned": {"gpu-0": 4}}, "must be below 4"),
        ({"pinned": {"gpu-0": 0, "gpu-1": 0}, "replicas": 1}, "2 devices are pinned to stage 0"),
        ({"pinned": {"gpu-0": -1}}, "greater than or equal to 0"),
    ],
)
def test_pins_that_no_plan_can_honour_are_refused(constraints, law):
    data = {"cluster": small_cluster(3), "workload": tiny_workload(), "constraints": constraints}
    cluster = small_cluster(3)
    data["cluster"] = cluster.replace(devices=tuple(d.replace(id=f"gpu-{i}") for i, d in enumerate(cluster.devices)))
    with pytest.raises(InvalidInput, match=law) as refusal:
        checked(Problem, data, "plan")
    assert "pinned" in str(refusal.value)


def test_too_many_devices_for_one_stage_are_refused_before_the_search():
    with pytest.raises(InvalidInput, match=r"constraints.pinned: needs 4 stages and 3 replicas"):
        make_planner("evolution").solve(problem({"gpu-0": 3, "gpu-1": 3, "gpu-2": 3}, devices=6))


def test_a_plan_that_breaks_its_pins_is_refused():
    plan = make_planner("evolution").solve(problem({}, stages=2, replicas=2), budget="0 s").plan
    device = plan.stages[0].replicas[0][0]
    broken = plan.problem.replace(constraints=plan.problem.constraints.replace(pinned={device: 1}))
    with pytest.raises(InvalidInput, match="is pinned to stage 1 but serves stage 0"):
        check_plan(plan.replace(problem=broken))


def test_pins_survive_the_plan_file():
    import json

    plan = make_planner("evolution").solve(problem({"gpu-0": 1}, stages=2, replicas=2), budget="0 s").plan
    assert plan_from_json(json.dumps(plan_to_data(plan))) == plan


def test_the_command_line_reads_pins():
    assert pins("d3=0, d4=1") == {"d3": 0, "d4": 1}
    assert pins("") == {}
    for text in ("d3", "d3=", "=1", "d3=x", "d3=-1"):
        with pytest.raises(InvalidInput, match="--pin"):
            pins(text)
    with pytest.raises(InvalidInput, match="twice"):
        pins("d3=0,d3=1")
