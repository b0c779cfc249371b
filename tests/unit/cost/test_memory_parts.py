"""What a device's memory holds, by part: the parts are those of the cost model's peak."""

from dataclasses import asdict

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.cost.check import peak_bytes
from hetplanner.cost.memory_parts import PART_WORDS, MemoryParts, memory_parts
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.problem import Problem
from hetplanner.workload.fine_tuning import FineTuning
from hetplanner.workload.optimizers import OPTIMIZERS
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload, tuned
from tests.support.plans.grouped import grouped_plan
from tests.support.plans.random_plans import random_plan


def local(plan):
    wanted = plan.problem.constraints.replace(max_local_steps=4, zero=0)
    return plan.replace(problem=plan.problem.replace(constraints=wanted), local_steps=4, outer=OuterOptimizer())


def lossy(plan):
    wanted = plan.problem.constraints.replace(codecs=("none", "fp16", "int8"))
    stages = (stage.replace(reduce_codec=Codec(name="int8"), error_feedback=True) for stage in plan.stages)
    return plan.replace(problem=plan.problem.replace(constraints=wanted), stages=tuple(stages))


def as_found(plan):
    return plan


@pytest.mark.parametrize("change", [as_found, local, lossy])
@pytest.mark.parametrize("seed", range(25))
def test_the_parts_of_a_rank_sum_to_its_peak(seed: int, change) -> None:
    plan = change(random_plan(seed))
    tables = CostTables(plan.problem)
    parts = memory_parts(plan, tables)
    assert [part.total for part in parts] == pytest.approx(peak_bytes(plan, tables), rel=1e-12)
    assert all(value >= 0.0 for part in parts for value in asdict(part).values())


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_the_parts_of_a_group_sum_to_what_its_estimate_says(degree: int) -> None:
    plan = grouped_plan(degree)
    assert [part.total for part in memory_parts(plan)] == pytest.approx([e.peak_bytes for e in plan.estimate.devices])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["gpt2", "resnet101"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_gradients_and_states_are_what_a_stage_holds_of_its_weights(optimizer, model, dtype) -> None:
    more = {} if model == "resnet101" else {"dtype": dtype}
    tables = CostTables(Problem(cluster=small_cluster(1), workload=preset(model, optimizer=optimizer, **more)))
    for first, end in ((0, tables.num_ops), (0, 3), (3, tables.num_ops)):
        assert sum(tables.state_parts(first, end)) == pytest.approx(tables.stage_state_bytes(first, end), rel=1e-12)


def test_each_part_of_a_stage_in_float32_with_adamw() -> None:
    plan = chain_plan([8], [3, 6], cluster=small_cluster(3), workload=tiny_workload(global_batch=16))
    tables = CostTables(plan.problem)
    found = memory_parts(plan)[1]
    params, messages = tables.stage_params(3, 6), 2 * 2 * tables.boundary_bytes_O[3]
    assert (found.parameters, found.gradients, found.optimizer) == (4 * params, 4 * params, 8 * params)
    assert found.activations == 2 * (tables.activation_bytes_O[6] - tables.activation_bytes_O[3]), "two in flight"
    assert found.buffers == pytest.approx(messages + tables.working_bytes(3, 6))


def test_replicas_that_reduce_large_gradients_hold_messages_instead_of_activations() -> None:
    one, three = (chain_plan([4] * n, [3], in_flight=[1, 1], cluster=small_cluster(2 * n)) for n in (1, 3))
    alone, reducing = memory_parts(one)[0], memory_parts(three)[0]
    assert reducing.buffers > alone.buffers
    assert reducing.activations <= alone.activations
    assert (reducing.parameters, reducing.optimizer) == (alone.parameters, alone.optimizer)


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    workload = tuned(tiny_workload(layers=8), FineTuning(frozen_layers=6))
    plan = chain_plan([16], [9], workload=workload)
    first = memory_parts(plan)[0]
    assert first.parameters > 0
    assert (first.gradients, first.optimizer) == (0.0, 0.0)


def test_every_part_has_words() -> None:
    assert list(PART_WORDS) == list(asdict(MemoryParts()))
