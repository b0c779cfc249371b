"""What stages that recompute keep: by layers with few micro-batches in flight, as one segment with many."""

import numpy as np
import pytest

from hetplanner.cost.capacity import Capacity
from hetplanner.cost.compute.recomputation import Recomputation
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import CostTables
from hetplanner.plan.problem import Problem
from hetplanner.planners.step_time.kernels import depth_of
from hetplanner.planners.step_time.space import StepSpaces
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import small_cluster, small_gpt

WORKLOADS = {
    "gpt2": preset("gpt2", global_batch=64, micro_batch=1),
    "llama": preset("llama-1b", global_batch=64),
    "narrow boundaries": preset("gpt2", global_batch=64, micro_batch=1, boundary_layers="bottleneck:4:3"),
    "captured": preset("tiny-resnet"),
}


def tables(workload: Workload) -> CostTables:
    return CostTables(Problem(cluster=small_cluster(2), workload=workload))


@pytest.mark.parametrize("name", WORKLOADS)
def test_arrays_hold_what_single_stages_keep(name: str) -> None:
    model = tables(WORKLOADS[name])
    again, kept_O = model.recomputation, model.activation_bytes_O
    edges_K = np.concatenate(([0], model.cuts, [model.num_ops])).astype(np.int64)
    inputs_KK, below_KK = again.inputs_between(edges_K), again.below_between(edges_K)
    backward_KKs = [again.backward_between(edges_K, kept_O, by_layer=by_layer) for by_layer in (False, True)]
    memory = [Capacity(model).stage_bytes_KK(n) for n in (1, 7, 60)]
    for k in range(0, len(edges_K) - 1, max(1, len(edges_K) // 12)):
        for j in range(k + 1, len(edges_K), max(1, len(edges_K) // 12)):
            first, end = int(edges_K[k]), int(edges_K[j])
            assert inputs_KK[k, j] == pytest.approx(again.inputs(first, end))
            for by_layer, backward_KK in zip((False, True), backward_KKs, strict=True):
                assert backward_KK[k, j] == pytest.approx(again.backward(first, end, kept_O, by_layer=by_layer))
            assert below_KK[k, j] == pytest.approx(again.below(first, end))
            for n, memory_KK in zip((1, 7, 60), memory, strict=True):
                assert memory_KK[k, j] == pytest.approx(model.stage_bytes(first, end, n, True))


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_greatest_depth_fits_and_the_next_does_not(name: str, replicas: int) -> None:
    """Of the tables and of the search's kernel; a reduction's messages count, too."""
    model = tables(WORKLOADS[name])
    edges_K = np.concatenate(([0], model.cuts, [model.num_ops])).astype(np.int64)
    problem = StepSpaces(CostModel.of(model.problem)).of(recompute=True).problem
    for k, j in ((0, len(edges_K) // 2), (1, len(edges_K) - 2), (len(edges_K) // 2, len(edges_K) - 1)):
        first, end = int(edges_K[k]), int(edges_K[j])

        def needed(depth: float, first: int = first, end: int = end) -> float:
            return model.bytes_with_reduction(first, end, int(min(depth, 10_000)), True, replicas)

        least, steep = needed(1), model.stage_bytes(first, end, 2, True) - model.stage_bytes(first, end, 1, True)
        for memory in np.linspace(least * 1.0001, least + 60 * steep + 1.0, 40):
            depth = model.depth_within(first, end, float(memory), True, replicas)
            assert needed(depth) <= memory
            assert depth >= 10_000 or needed(depth + 1) > memory
            found, missing = depth_of.py_func(
                problem._replace(memory_D=np.full_like(problem.memory_D, memory)),
                np.arange(replicas), 0, replicas, k, j,
            )  # fmt: skip
            assert missing == 0.0
            assert found == min(depth, 1 << 30)
        assert model.depth_within(first, end, least * 0.999, True, replicas) == 0.0


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_choice_is_the_one_that_takes_less(name: str) -> None:
    """So no stage that recomputed as one segment takes more memory than it did."""
    model = tables(WORKLOADS[name])
    for first, end in ((0, model.num_ops), (0, model.num_ops // 2), (1, model.num_ops - 1)):
        below = model.recomputation.below(first, end)
        for n in (1, 3, 10, 40):
            whole = model.stage_bytes(first, end, n, True, max(n, int(below) + 1))
            assert model.stage_bytes(first, end, n, True) <= whole * (1 + 1e-12)


def test_layers_keep_less_with_few_micro_batches_in_flight() -> None:
    again = Recomputation(WORKLOADS["gpt2"])
    below = again.below(1, 13)
    assert 5 < below < 100
    layers = again.segments(1, 13, 3)
    assert layers == tuple((first, first + 2) for first in range(1, 13, 2))
    assert again.segments(1, 13, int(below) + 1) == ((1, 13),)
    assert again.segments(2, 6, 1) == ((2, 3), (3, 5), (5, 6)), "a stage may begin and end inside a layer"
    model = tables(WORKLOADS["gpt2"])
    whole = model.kept_bytes(1, 13, 3, True, int(below) + 1)
    assert model.kept_bytes(1, 13, 3, True) < 0.5 * whole


def test_a_captured_model_and_one_layer_are_one_segment() -> None:
    captured = WORKLOADS["captured"]
    assert Recomputation(captured).segments(0, 20, 1) == ((0, 20),)
    assert Recomputation(small_gpt()).segments(1, 3, 1) == ((1, 3),)
