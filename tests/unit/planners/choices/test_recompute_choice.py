"""Stages recompute only where memory asks for it."""

from pathlib import Path

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.check import fits_memory, memory_limits, peak_bytes
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.choices.recompute import keep_activations
from hetplanner.planners.layout import complete_plan
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload

SAMPLES = Path(__file__).parents[4] / "sample_clusters"


def recomputing(memory_bytes: float | None = None, *, always: bool = False, max_local_steps: int = 1) -> Plan:
    cluster = small_cluster(4)
    if memory_bytes is not None:
        devices = tuple(device.replace(memory=memory_bytes) for device in cluster.devices)
        cluster = cluster.replace(devices=devices)
    plan = chain_plan([8, 8], [3], cluster=cluster, workload=tiny_workload().replace(recompute=always))
    constraints = plan.problem.constraints.replace(max_local_steps=max_local_steps)
    stages = tuple(stage.replace(recompute=True) for stage in plan.stages)
    return plan.replace(problem=plan.problem.replace(constraints=constraints), stages=stages)


def test_a_plan_with_room_keeps_its_activations_and_is_no_slower():
    plan = recomputing()
    model = CostModel.of(plan.problem)
    made = complete_plan(plan, model)
    assert not any(stage.recompute for stage in made.stages)
    assert made.estimate.step_s <= estimate_plan(plan, model=model).step_s


def test_a_plan_without_room_recomputes_as_before():
    roomy = recomputing(1e9)
    model = CostModel.of(roomy.problem)
    kept = keep_activations(roomy, model)
    needed = (max(peak_bytes(kept, model.tables)) + max(peak_bytes(roomy, model.tables))) / 2
    tight = recomputing(1e9 - memory_limits(roomy, model.tables)[0] + needed)  # so much a device keeps for other things
    model = CostModel.of(tight.problem)
    assert fits_memory(tight, model.tables)
    assert keep_activations(tight, model) is tight


def test_local_steps_get_their_memory_first():
    """They gain more than kept activations do."""
    roomy = recomputing(1e9, max_local_steps=8)
    tables = CostModel.of(roomy.problem).tables
    kept = complete_plan(roomy, CostModel.of(roomy.problem))
    assert kept.is_local
    assert not any(stage.recompute for stage in kept.stages)
    recomputed = kept.replace(stages=tuple(stage.replace(recompute=True) for stage in kept.stages))
    every_step = kept.replace(local_steps=1, outer=None)
    enough = max(*peak_bytes(recomputed, tables), *peak_bytes(every_step, tables))
    assert enough < max(peak_bytes(kept, tables))
    tight = recomputing(1e9 - memory_limits(roomy, tables)[0] + enough, max_local_steps=8)
    made = complete_plan(tight, CostModel.of(tight.problem))
    assert made.is_local
    assert all(stage.recompute for stage in made.stages)


def test_a_workload_that_asks_for_recomputation_gets_it():
    plan = recomputing(always=True)
    assert keep_activations(plan, CostModel.of(plan.problem)) is plan


def test_a_search_whose_links_bind_recomputes_nothing():
    """Its best candidate here does, in little more time than without."""
    cluster = load_cluster(SAMPLES / "laptop_8_cities.json")
    constraints = Constraints(stages=4, replicas=2, codecs=("none", "int8"))
    problem = Problem(cluster=cluster, workload=preset("tiny-gpt"), constraints=constraints)
    plan = make_planner("evolution").solve(problem, budget="200 evaluations").plan
    assert not any(stage.recompute for stage in plan.stages)
