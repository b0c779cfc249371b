"""The Export page's lines for the problem: what they give is the plan's problem again."""

import shlex

import pytest

import hetplanner as hp
from hetplanner.cli import problem as cli
from hetplanner.cluster.formats.cluster_files import save_cluster
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.problem import Constraints
from hetplanner.ui.settings.models.lines import plan_command, problem_snippet
from tests.support.plans.factories import chain_plan, slow_swarm, small_cluster, swarm_plan, tiny_workload
from tests.support.plans.profiles import profile_of

OPTIONS = {"layers": 8, "boundary_layers": "bottleneck:4:2", "shared_layers": 2}


def of_model(workload, **changes):
    plan = chain_plan([workload.num_micro_batches], [5], workload=workload, cluster=small_cluster(3))
    return plan.replace(problem=plan.problem.replace(**changes)) if changes else plan


def words_of(plan):
    comment, line = plan_command(plan).split("\n")
    assert comment.startswith("# cluster.json")
    return shlex.split(line)


def options_of(words):
    given = words[words.index("cluster.json") + 2 : words.index("-o")]
    return dict(zip(given[::2], given[1::2], strict=True))


def test_a_presets_options_are_in_the_command_and_in_the_notebook(tmp_path):
    workload = hp.preset("tiny-gpt", **OPTIONS)
    wanted = Constraints(stages=2, replicas=1, codecs=("none", "int8"), excluded=("d2",), max_local_steps=4)
    plan = of_model(workload, constraints=wanted)
    words = words_of(plan)
    assert words[:4] == ["hetplanner", "plan", "cluster.json", "tiny-gpt"]
    assert options_of(words) == {
        "--layers": "8", "--boundary-layers": "bottleneck:4:2", "--shared-layers": "2", "--stages": "2",
        "--replicas": "1", "--codecs": "none,int8", "--max-local-steps": "4", "--exclude": "d2",
    }  # fmt: skip
    path = tmp_path / "cluster.json"
    save_cluster(plan.problem.cluster, path)
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in options_of(words).items()}
    numbers = {name: int(value) for name, value in given.items() if value.isdecimal()}
    assert cli.load_problem(path, "tiny-gpt", **given | numbers) == plan.problem
    first = problem_snippet(plan).split("\n")[0]
    names = {"hp": hp, "plan": plan}
    exec(first, names)
    assert names["problem"] == plan.problem


def test_the_search_that_found_a_plan_is_repeated_with_its_budget_and_seed():
    plan = of_model(hp.preset("tiny-gpt"))
    found = plan.replace(provenance=plan.provenance.replace(planner="evolution", budget="10 s", seed=7))
    assert options_of(words_of(found)) | {"--budget": "10 s", "--seed": "7"} == options_of(words_of(found))
    assert "budget='10 s', seed=7)" in problem_snippet(found)
    assert "--seed" not in plan_command(plan), "made by hand"


def test_a_model_that_is_no_preset_comes_from_its_file():
    plan = of_model(tiny_workload())
    assert "model.json: the model's own file" in plan_command(plan)
    assert words_of(plan)[3] == "model.json"
    assert "workload=plan.problem.workload" in problem_snippet(plan)
    named = tiny_workload().replace(name="gpt2")  # bears the name, and is another model
    assert words_of(of_model(named))[3] == "model.json"


def test_what_the_command_line_cannot_say_is_named():
    plan = of_model(hp.preset("tiny-gpt", recompute=True), constraints=Constraints(codec_block=64))
    assert "recompute, codec block: set on the page only" in plan_command(plan)
    assert "recompute=True" in problem_snippet(plan)
    assert "--recompute" not in words_of(plan)


def test_a_measured_profile_is_a_file_of_the_command_and_kept_in_the_notebook():
    workload = hp.preset("tiny-gpt")
    plan = of_model(workload, profile=profile_of(workload, "CPU generic"))
    assert "; profile.json: from the Cluster page" in plan_command(plan)
    assert options_of(words_of(plan)) == {"--profile": "profile.json"}
    assert 'profile=hp.load_profile("profile.json")' in problem_snippet(plan)
    assert "profile" not in plan_command(of_model(workload)) + problem_snippet(of_model(workload))


def test_a_strange_name_stays_one_word():
    plan = of_model(tiny_workload(), constraints=Constraints(pinned={"d0": 0}))
    assert options_of(words_of(plan))["--pin"] == "d0=0"
    hostile = slow_swarm()
    cluster = hostile.problem.cluster
    odd = cluster.replace(devices=(cluster.devices[0].replace(id="x; rm -rf ~"), *cluster.devices[1:]))
    problem = hostile.problem.replace(cluster=odd, constraints=Constraints(excluded=("x; rm -rf ~",)))
    stages = (hostile.stages[0].replace(peers=("d1",)), *hostile.stages[1:])
    assert "x; rm -rf ~" in words_of(hostile.replace(problem=problem, stages=stages))


def test_a_swarms_rules_are_in_its_command():
    plan = swarm_plan([1, 1], [3], delayed_updates=True, rebalancing=Rebalancing(policy="queue"))
    assert words_of(plan)[-7:] == [
        "--mode",
        "elastic",
        "--rebalancing",
        "queue",
        "--delayed-updates",
        "-o",
        "plan.json",
    ]
    assert 'settings={"mode": "elastic"}' in problem_snippet(plan)


@pytest.mark.parametrize("text", ["none", "maxout:2", "bottleneck:4:6"])
def test_boundary_layers_are_written_as_they_are_read(text):
    narrow = hp.preset("gpt2", boundary_layers=text).transformer.boundary_layers
    assert (text == "none") == (narrow is None)
    assert narrow is None or str(narrow) == text
