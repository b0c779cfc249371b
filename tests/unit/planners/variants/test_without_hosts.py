"""A plan made anew when hosts are gone: which devices are left, where the search begins, what is refused."""

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.without_hosts import problem_with_weights, problem_without_hosts, stages_out_of_reach
from tests.support.plans.factories import chain_plan, hosted, tiny_workload

HOSTS = {"d0": "a", "d1": "b", "d2": "b", "d3": "c", "d4": "c"}
PLAN = chain_plan([2, 2], [4], cluster=hosted(HOSTS), workload=tiny_workload(global_batch=8))  # d4 is idle


@pytest.mark.parametrize(
    ("gone", "left", "has_start"), [(["a"], 4, True), (["b"], 3, False), (["a", "b"], 2, False), (["c"], 3, False)]
)
def test_the_others_take_over(gone, left, has_start):
    problem, start = problem_without_hosts(PLAN, gone)
    assert len(problem.usable_devices) == left
    assert not {HOSTS[device] for device in problem.usable_devices} & set(gone)
    assert problem.workload == PLAN.problem.workload
    assert (start is not None) >= has_start
    found = make_planner("evolution").solve(problem, budget=Budget(evaluations=200), start=start).plan
    assert set(found.ranks) <= set(problem.usable_devices)
    assert not found.is_local


def test_a_fixed_shape_that_the_rest_cannot_fill_is_free():
    fixed = PLAN.replace(
        problem=PLAN.problem.replace(constraints=PLAN.problem.constraints.replace(stages=2, replicas=2))
    )
    problem, _ = problem_without_hosts(fixed, ["b"])
    assert (problem.constraints.stages, problem.constraints.replicas) == (None, None)


@pytest.mark.parametrize(
    ("gone", "words"), [(["d"], "the cluster has no host 'd'; "), (["a", "b", "c"], "no device of the plan's cluster")]
)
def test_a_host_that_is_not_there_and_the_last_one_are_refused(gone, words):
    with pytest.raises(InvalidInput, match=words):
        problem_without_hosts(PLAN, gone)


def test_a_plan_for_a_run_that_goes_on_has_a_host_with_the_weights_of_each_stage():
    """Stage 0 is on a and b, stage 1 on b and c."""
    problem, _ = problem_without_hosts(PLAN, ["b"])
    on_a_alone = chain_plan([4], [], cluster=PLAN.problem.cluster, workload=PLAN.problem.workload)
    assert stages_out_of_reach(PLAN, on_a_alone) == [1]
    kept = problem_with_weights(problem, PLAN)
    assert kept.constraints.pinned == {"d0": 0, "d3": 1}
    found = make_planner("evolution").solve(kept, budget=Budget(evaluations=200)).plan
    assert stages_out_of_reach(PLAN, found) == []
    with pytest.raises(Infeasible, match=r"stage 1 of the earlier run was on b, c alone, and its weights are there"):
        problem_with_weights(problem_without_hosts(PLAN, ["b", "c"])[0], PLAN)


def test_the_command_plans_anew_and_says_so(tmp_path):
    save_plan(PLAN, tmp_path / "plan.json")
    argv = ["train", str(tmp_path / "plan.json"), "--without", "b", "--budget", "0.2s", "--dry-run"]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    assert "planned anew without b: " in done.output
    for words in (["--budget", "1s"], ["--without", "b", "--budget", "soon"]):
        bad = CliRunner().invoke(app, [*argv[:2], *words, "--dry-run"])
        assert isinstance(bad.exception, InvalidInput), words
    refused = CliRunner().invoke(app, [*argv[:3], "z", *argv[4:]])
    assert refused.exit_code != 0
