"""Recomputing by layers or as one segment changes no number, and holds less."""

import pytest
import torch

from hetplanner.cost.compute.recomputation import Recomputation
from hetplanner.runtime.measure.live_bytes import LiveBytes
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import small_gpt, tuned

ADAPTERS = FineTuning(adapters=Adapters(rank=4, alpha=8.0, targets=("c_attn",)))
WORKLOADS = {
    "gpt, dropout": small_gpt(dropout=0.1),
    "gpt, bfloat16": small_gpt(dropout=0.1).replace(dtype="bfloat16"),
    "llama": small_gpt(family="llama", tie_embeddings=False),
    "adapters": tuned(small_gpt(), ADAPTERS),
    "frozen layers": tuned(small_gpt(), FineTuning(frozen_layers=2)),
}


def trained(workload: Workload, first: int, end: int, **how: object) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Gradients of weights and of the input after two micro-batches, and the most live bytes."""
    model = StageModel(workload, first, end, seed=1)
    runner = StageRunner(model, **how)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 256, (2, 2, 32), generator=generator)
    live, inputs = LiveBytes(), []
    live.leave_out(model.flat, model.flat_grad, model.frozen, tokens)
    with live:
        for number in range(2):
            x = None if first == 0 else torch.randn(workload.boundary_elements[first], generator=generator)
            runner.forward(number, x, Batch(tokens[0], tokens[1]), RngKey(0, 0, number))
        for number in range(2):
            out = None if model.is_last else torch.randn(workload.boundary_elements[end], generator=generator)
            found = runner.backward(number, out)
            inputs.append(torch.empty(0) if found is None else found)
        peak = live.peak
    return model.flat_grad.clone(), torch.cat(inputs), peak


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("span", [(0, 12), (0, 7), (2, 8), (3, 12)])
def test_gradients_are_the_same_to_the_bit(name: str, span: tuple[int, int]) -> None:
    workload = WORKLOADS[name]
    kept = trained(workload, *span)
    for in_flight in (1, 10_000):
        again = trained(workload, *span, recompute=True, in_flight=in_flight)
        assert torch.equal(kept[0], again[0])
        assert torch.equal(kept[1], again[1])


@pytest.mark.parametrize("name", ["gpt, dropout", "llama"])
def test_layers_hold_less_than_one_segment_and_that_less_than_all(name: str) -> None:
    workload = WORKLOADS[name]
    assert len(Recomputation(workload).segments(1, 9, 2)) == 4
    assert len(Recomputation(workload).segments(1, 9, 10_000)) == 1
    layers, whole = (trained(workload, 1, 9, recompute=True, in_flight=n)[2] for n in (2, 10_000))
    assert layers < 0.7 * whole
    assert whole < trained(workload, 1, 9)[2]
