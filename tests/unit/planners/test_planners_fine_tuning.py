"""Plans of models that are partly trained: other plans, less memory, smaller reductions, no gradients in front."""

import json
from functools import cache
from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.check import check_plan
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.reduction import reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.workload.fine_tuning import FineTuning
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload, tuned

LAB = Path(__file__).parents[3] / "sample_clusters" / "lab_2_sites_4.json"
FROZEN = FineTuning(frozen_layers=2)


@cache
def searched(adapters):
    """Two sites with a slow link between them."""
    workload = preset("gpt2", global_batch=64, adapters=adapters)
    problem = Problem(cluster=load_cluster(LAB), workload=workload)
    return make_planner("evolution").solve(problem, seed=0, budget="4000 evaluations").plan


def test_over_a_slow_network_all_weights_take_a_pipeline_and_adapters_replicas():
    full, lora = searched(None), searched("8")
    assert (len(full.stages), len(full.stages[0].replicas)) == (4, 1)
    assert (len(lora.stages), len(lora.stages[0].replicas)) == (1, 4)
    assert lora.estimate.step_s < 0.6 * full.estimate.step_s
    # The plan itself is the gain: where all weights are trained the same layout takes longer than the pipeline.
    same = lora.replace(problem=full.problem)
    assert estimate_plan(same).step_s > full.estimate.step_s


def test_the_plan_says_what_is_trained_and_what_is_reduced():
    (note,) = searched("8").estimate.notes
    assert note == (
        "trains 295 k of 125 M weights (adapters of rank 8): gradients to reduce between replicas are 1.18 MB"
        " instead of 498 MB"
    )
    assert searched(None).estimate.notes == ()
    (group,) = reduction_groups(searched("8"))
    assert group.num_elements == 12 * 8 * (768 + 3 * 768)


def test_a_fine_tuned_plan_is_read_back_as_it_was():
    plan = searched("8")
    assert plan_from_json(json.dumps(plan_to_data(plan))) == plan
    assert "fine_tuning" not in json.dumps(plan_to_data(searched(None)))


@pytest.mark.parametrize("name", [n for n in planner_names() if "step-time" in planner_type(n).objectives])
def test_every_planner_plans_adapters_above_the_bound(name):
    workload = preset("tiny-gpt", adapters="4")
    problem = Problem(cluster=small_cluster(4), workload=workload, constraints={"stages": 2, "replicas": 2})
    result = make_planner(name).solve(problem, seed=0, budget="300 evaluations")
    model = CostModel.of(problem)
    check_plan(result.plan, model.tables)
    assert bound_step(model.tables, model.links) <= estimate_plan(result.plan, model=model).step_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("dtype", "tuning", "copy"),
    [("float16", {"adapters": "8"}, 2), ("float32", {"adapters": "8"}, 0), ("float16", {}, 2)],
)
def test_a_frozen_weight_is_there_once_and_a_trained_one_with_all_that_adamw_keeps(dtype, tuning, copy):
    workload = preset("gpt2", dtype=dtype, **tuning)
    tables = CostTables(Problem(cluster=small_cluster(1), workload=workload))
    graph = workload.graph
    state = tables.stage_state_bytes(0, tables.num_ops)
    # The head is the embedding's table; it alone is read by a matrix product, so it has a copy in float16.
    copied = sum(op.num_params for op in graph.ops if op.kind != "embedding")
    assert state == pytest.approx(4 * graph.num_params + copy * copied + 12 * graph.num_trained, rel=1e-9)
    # A checkpoint holds all weights in float32, and the states of those that are trained.
    sent = tables.sent_state_bytes(0, tables.num_ops)
    assert sent == pytest.approx(4 * graph.num_params + 8 * graph.num_trained, rel=1e-9)


@pytest.mark.parametrize(("optimizer", "kept"), [("sgd", 4), ("muon", 4), ("adafactor", 4 * (8 + 768) / (8 * 768))])
def test_states_are_those_of_the_adapters_shapes(optimizer, kept):
    workload = preset("gpt2", adapters="8:16:c_attn", optimizer=optimizer)
    tables = CostTables(Problem(cluster=small_cluster(1), workload=workload))
    graph = workload.graph
    states = tables.sent_state_bytes(0, tables.num_ops) - 4 * graph.num_params
    outer = 4 * (8 + 3 * 768) / (8 * 3 * 768)
    expected = kept if optimizer != "adafactor" else (kept * 768 + outer * 3 * 768) / (4 * 768)
    assert states == pytest.approx(expected * graph.num_trained, rel=1e-9)


def frozen_chain(**changes):
    """Three stages of two replicas: embedding and both frozen layers; a layer; the rest."""
    workload = tuned(tiny_workload(), FROZEN)
    return chain_plan([8, 8], [5, 7], workload=workload, cluster=small_cluster(6), **changes)


def test_stages_of_frozen_weights_have_no_backward_no_reduction_and_no_gradient():
    plan = frozen_chain()
    durations = durations_of(plan)
    first = [chunk for chunk, (_, stage) in enumerate(plan.chunks) if stage == 0]
    others = [chunk for chunk, (_, stage) in enumerate(plan.chunks) if stage != 0]
    assert not durations.backward_s_C[first].any()
    assert durations.backward_s_C[others].all()
    ranks = [rank for rank, stage in plan.chunks if stage == 0]
    assert not durations.optimizer_s_N[ranks].any()
    assert [group.name for group in reduction_groups(plan)] == ["stage 1", "stage 2"]
    source, target, _ = reduction_bytes(plan)
    assert not set(ranks) & set(source.tolist() + target.tolist())
    up, down = plan.rank_at(0, 0), plan.rank_at(1, 0)
    assert plan.boundary_bytes(0, down, up, "gradient") == 0 < plan.boundary_bytes(0, up, down, "activation")
    below = plan.rank_at(2, 0)
    assert plan.boundary_bytes(1, below, down, "gradient") == plan.boundary_bytes(1, down, below, "activation")


def test_recomputing_adds_nothing_where_there_is_no_backward():
    plan, again = frozen_chain(), frozen_chain()
    again = again.replace(stages=tuple(stage.replace(recompute=True) for stage in again.stages))
    before, after = (durations_of(p).backward_s_C for p in (plan, again))
    for chunk, (_, stage) in enumerate(plan.chunks):
        assert bool(after[chunk] > before[chunk]) == (stage > 0)
    tables = CostTables(plan.problem)
    # Nothing is kept: not even of a second micro-batch.
    assert tables.stage_bytes(0, 5, 2, recompute=True) == tables.stage_bytes(0, 5, 1, recompute=False)


def test_frozen_stages_simulate_as_they_are_estimated():
    plan, full = frozen_chain(), chain_plan([8, 8], [5, 7], workload=tiny_workload(), cluster=small_cluster(6))
    simulated = [summarise_trace(simulate(p)).step_s for p in (plan, full)]
    estimated = [estimate_plan(p).step_s for p in (plan, full)]
    assert simulated[0] < simulated[1]
    assert estimated[0] == pytest.approx(simulated[0], rel=0.15)
