"""A search that begins with a plan: never behind it, adapted where the problem differs, refused on another cluster."""

import json

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.formats.cluster_files import save_cluster
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cost.check import check_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload
from tests.unit.planners.baselines.test_swarm_planner import problem as one_site


def problem(seed=1, model="gpt2", devices=10, **fields):
    cluster = mixed_gpus(seed, num_devices=devices, num_sites=3)
    return Problem(cluster=cluster, workload=preset(model, global_batch=64), **fields)


def solve(task, name="evolution", budget="20000 evaluations", settings=None, **options):
    return make_planner(name, settings).solve(task, budget=budget, **options)


@pytest.mark.parametrize("budget", ["0 s", "1 evaluations", "300 evaluations"])
@pytest.mark.parametrize("starts", ["structured", "random"])
def test_the_result_is_never_behind_the_start(budget, starts):
    start = solve(problem(), budget="100000 evaluations").plan
    again = solve(problem(), budget=budget, settings={"starts": starts}, start=start, seed=5)
    assert again.value <= start.estimate.step_s * (1 + 1e-9)
    if budget != "0 s":
        assert simulate(again.plan).end_s <= simulate(start).end_s * (1 + 1e-9)


def test_a_ragged_start_and_one_of_an_unusual_shape_are_kept():
    task = one_site([1e9] * 5, memory=800e3)
    ragged = solve(task, "swarm").plan
    assert len({len(stage.replicas) for stage in ragged.stages}) > 1
    again = solve(task, budget="1000 evaluations", start=ragged)
    assert again.value <= ragged.estimate.step_s * (1 + 1e-9)
    shaped = solve(problem(constraints=Constraints(stages=3, replicas=2)), budget="5000 evaluations").plan
    free = solve(problem(), budget="0 s", start=shaped)
    assert free.value <= shaped.estimate.step_s * (1 + 1e-9)


def test_the_start_adapts_to_another_model_batch_shape_and_to_excluded_devices():
    start = solve(problem()).plan
    for task in (
        problem(model="gpt2-medium"),
        problem().replace(workload=preset("gpt2", global_batch=16)),
        problem(constraints=Constraints(stages=2, replicas=2)),
        problem(constraints=Constraints(excluded=(start.ranks[0],))),
        problem(constraints=Constraints(pinned={start.ranks[0]: 1})),
        problem(objective="cost"),
    ):
        plan = solve(task, budget="2000 evaluations", start=start).plan
        check_plan(plan)
        assert plan.problem == task


def test_a_start_of_which_nothing_is_left_is_refused():
    start = solve(problem(constraints=Constraints(stages=2, replicas=1))).plan
    out = Constraints(excluded=start.stages[1].replicas[0])
    with pytest.raises(InvalidInput, match=r"every device of stage 1 .* is excluded"):
        solve(problem(constraints=out), start=start)


def test_the_published_objective_starts_from_a_plan_of_its_shape():
    task = problem(objective="dtfm", constraints=Constraints(stages=2, replicas=4))
    start = solve(task, budget="50000 evaluations").plan
    again = solve(task, budget="1 evaluations", start=start, seed=3)
    assert again.value <= start.estimate.dtfm.total_s * (1 + 1e-9)
    with pytest.raises(InvalidInput, match="needs a plan of 4 stages x 2 replicas"):
        solve(task.replace(constraints=Constraints(stages=4, replicas=2)), start=start)


def changed(task, **devices):
    cluster = task.cluster
    new = tuple(
        d.replace(**devices[d.id.replace("-", "_")]) if d.id.replace("-", "_") in devices else d
        for d in cluster.devices
    )
    return task.replace(cluster=cluster.replace(devices=new))


def test_a_plan_of_another_cluster_is_refused_with_the_difference():
    task = problem()
    start = solve(task, budget="0 s").plan
    smaller = task.replace(cluster=task.cluster.replace(devices=task.cluster.devices[1:]))
    links = tuple(k.replace(latency=k.latency + 0.01) for k in task.cluster.site_links)
    cases = [
        (smaller, r"1 device \(gpu-0\) only in the plan"),
        (
            changed(task, gpu_3={"id": "gpu-new"}),
            r"\(gpu-3\) only in the plan; 1 device \(gpu-new\) only in the cluster",
        ),
        (changed(task, gpu_2={"efficiency": 0.9}), r"1 device \(gpu-2\) of another kind, host or site"),
        (task.replace(cluster=task.cluster.replace(site_links=links)), r"\d+ of 90 links differ, such as gpu-"),
        (problem(2, devices=30), r"another cluster \(mixed-gpus-1\)"),
    ]
    for other, words in cases:
        with pytest.raises(InvalidInput, match=words) as refusal:
            solve(other, start=start)
        assert "\n" not in str(refusal.value)


def test_the_order_of_devices_in_the_file_makes_no_other_cluster():
    task = problem()
    start = solve(task).plan
    turned = task.replace(cluster=task.cluster.replace(devices=task.cluster.devices[::-1]))
    assert solve(turned, budget="0 s", start=start).value <= start.estimate.step_s * (1 + 1e-9)


@pytest.mark.parametrize("name", [n for n in planner_names() if not planner_type(n).takes_start])
def test_other_planners_refuse_a_start(name):
    objective = planner_type(name).objectives[0]
    task = problem(objective=objective, constraints=Constraints(stages=2, replicas=2))
    start = solve(problem(constraints=Constraints(stages=2, replicas=2)), budget="0 s").plan
    with pytest.raises(InvalidInput, match="cannot start from a plan"):
        solve(task, name, start=start)


def test_the_command_line_starts_from_a_plan_file(tmp_path):
    cluster, plan = small_cluster(3), tmp_path / "plan.json"
    save_cluster(cluster, tmp_path / "cluster.json")
    task = Problem(cluster=cluster, workload=tiny_workload())
    save_plan(solve(task, budget="0 s").plan, plan)
    runner = CliRunner()
    common = ["plan", str(tmp_path / "cluster.json"), "tiny-gpt", "--evaluations", "100", "--json"]
    done = runner.invoke(app, [*common, "--start-from", str(plan), "--pin", "d1=0"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["plan"]
    assert ["d1"] in found["stages"][0]["replicas"]
    other = small_cluster(4)
    save_cluster(other, tmp_path / "cluster.json")
    refused = runner.invoke(app, [*common, "--start-from", str(plan)])
    assert isinstance(refused.exception, InvalidInput)
    assert "1 device (d3) only in the cluster" in str(refused.exception)
