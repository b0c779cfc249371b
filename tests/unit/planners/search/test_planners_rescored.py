"""What a planner emits, read back from its file and scored from scratch, is what it reported."""

from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.presets import preset

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
PLANNERS = [name for name in planner_names() if "step-time" in planner_type(name).objectives]


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("cluster", ["continents_4_sites_8", "dtfm_2_spot"])
def test_an_emitted_plan_simulated_from_its_file_is_what_was_reported(name, cluster, tmp_path):
    """`dtfm_2_spot` has hosts with NICs; the event engine keeps every span, the search asked the compiled kernel."""
    task = Problem(
        cluster=load_cluster(SAMPLES / f"{cluster}.json"),
        workload=preset("tiny-gpt", global_batch=64),
        constraints=Constraints(stages=4, replicas=2, codecs=("none", "int8")),
    )
    if name == "exhaustive":  # counts layouts: too many of them on 64 devices
        keep = task.cluster.device_ids[:3]
        task = task.replace(
            cluster=task.cluster.subset(keep), constraints=task.constraints.replace(stages=2, replicas=1)
        )
    result = make_planner(name).solve(task, seed=1, budget="5000 evaluations")
    save_plan(result.plan, tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert estimate_plan(read).step_s == pytest.approx(result.value, rel=1e-9)
    simulated_s = summarise_trace(simulate(read)).step_s
    assert simulate_step_s(read) == pytest.approx(simulated_s, rel=1e-9)
    if read.provenance.simulated_step_s is not None:
        assert read.provenance.simulated_step_s == pytest.approx(simulated_s, rel=1e-9)


def test_the_evolutionary_search_reports_what_the_simulator_says():
    task = Problem(
        cluster=load_cluster(SAMPLES / "lab_2_sites_4.json"),
        workload=preset("tiny-gpt"),
        constraints=Constraints(stages=2, replicas=2),
    )
    plan = make_planner("evolution").solve(task, budget="2000 evaluations").plan
    assert plan.provenance.simulated_step_s == pytest.approx(summarise_trace(simulate(plan)).step_s, rel=1e-9)
