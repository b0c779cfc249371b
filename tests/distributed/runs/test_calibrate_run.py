"""A short real run on emulated links, and the cluster fitted to it: its step is then predicted nearer."""

from pathlib import Path

import pytest

from hetplanner.calibration.model import apply_calibration
from hetplanner.calibration.trace_fit import calibrate_trace
from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.estimate import estimate_plan
from hetplanner.notebook import calibrate
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.runs.run import Run
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.workload.presets import preset
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

LAPTOP = Path(__file__).parents[3] / "sample_clusters" / "laptop_8_cities.json"


def test_the_calibrated_cluster_predicts_the_measured_step_better(tmp_path):
    cluster = load_cluster(LAPTOP)
    # Taken for so slow that arithmetic, not latency or memory, decides what is predicted.
    slow = tuple(d.replace(efficiency=resolve_device(d).efficiency / 500) for d in cluster.devices)
    problem = Problem(
        cluster=cluster.replace(devices=slow),
        workload=preset("tiny-gpt", global_batch=16, micro_batch=2),
        constraints=Constraints(stages=2, replicas=2),
    )
    plan = make_planner("rank-order").solve(problem, seed=0, budget=Budget(evaluations=1)).plan
    train(plan, TrainConfig(steps=12, emulate_links=True), tmp_path / "run")
    run = Run(tmp_path / "run")
    found = calibrate(run)
    measured = run.read_all().measured_step_s()

    def predicted(which):
        return summarise_trace(simulate(which, steps=4)).step_s, estimate_plan(which).step_s

    fitted = plan.replace(problem=problem.replace(cluster=apply_calibration(found, problem.cluster)))
    before, after = predicted(plan), predicted(fitted)
    print(f"\nmeasured {measured:.3f} s; simulated {before[0]:.3f} then {after[0]:.3f} s;"
          f" estimated {before[1]:.3f} then {after[1]:.3f} s")  # fmt: skip
    for kind in found.kinds:
        print(kind)
    for link in found.links:
        print(link)
    print(found.transfer)
    for old, new in zip(before, after, strict=True):
        assert abs(new / measured - 1) < abs(old / measured - 1)
    assert abs(after[0] / measured - 1) < 0.25
    # The emulator holds messages by the cluster's own numbers, so links come out as they were.
    for link in found.links:
        for device in plan.ranks:
            for peer in plan.ranks:
                ends = problem.cluster.site_of(device).name, problem.cluster.site_of(peer).name
                if device != peer and ends == (link.from_name, link.to_name) and link.bandwidth_error is not None:
                    assert link.bandwidth == pytest.approx(problem.cluster.link(device, peer).bandwidth, rel=0.25)
    assert calibrate_trace(run.trace(), plan).kinds
