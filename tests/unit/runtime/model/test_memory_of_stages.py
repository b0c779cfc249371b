"""The plan's memory against the live tensors of the runtime, for one stage at work."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hetplanner.cost.tables import CostTables
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.measure.live_bytes import LiveBytes
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans import factories

TOO_MUCH, TOO_LITTLE = 1.08, 0.97


@dataclass(frozen=True)
class Case:
    """A stage: which part of the model, and how many micro-batches it holds."""

    family: str
    dtype: str
    part: str
    in_flight: int = 1
    recompute: bool = False
    more: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.more)
        return f"{self.family} {self.dtype} {self.part} {self.in_flight}{' again' if self.recompute else ''} {more}"


CASES = [
    Case(family, dtype, part, in_flight, recompute)
    for family in ("gpt2", "llama")
    for dtype in ("float32", "bfloat16")
    for part, in_flight, recompute in (
        ("first", 2, False), ("middle", 3, False), ("middle", 3, True), ("last", 1, False), ("last", 1, True),
    )
]  # fmt: skip
CASES += [
    Case("gpt2", "bfloat16", "middle", 2, more=(("dropout", 0.1),)),
    Case("gpt2", "float32", "first", 2, more=(("dropout", 0.1),)),
    Case("gpt2", "float32", "last", 1, more=(("vocab", 32_000),)),
    Case("llama", "bfloat16", "last", 1, more=(("vocab", 32_000),)),
    Case("gpt2", "bfloat16", "last", 2, more=(("vocab", 32_000), ("tie_embeddings", True))),
    Case("gpt2", "bfloat16", "first", 2, more=(("vocab", 32_000),)),
    Case("gpt2", "float32", "all", 1),
    Case("llama", "bfloat16", "all", 2),
]


def _workload(case: Case) -> Workload:
    is_llama = case.family == "llama"
    shape: dict[str, Any] = {"vocab": 4000, "tie_embeddings": False, "dropout": 0.0} | dict(case.more)
    config = TransformerConfig(
        family=case.family, max_seq_len=256, hidden=128, layers=4, heads=4, ffn=344 if is_llama else 512,
        kv_heads=2 if is_llama else None, **shape,
    )  # fmt: skip
    return Workload(
        name="memory", transformer=config, global_batch=16, micro_batch=4, seq_len=256, dtype=case.dtype,
        recompute=case.recompute,
    )  # fmt: skip


def _counted(workload: Workload, first: int, end: int, case: Case) -> tuple[int, int]:
    """Peak of live bytes of a step of this stage, and bytes of its weights and gradients before it."""
    model = StageModel(workload, first, end, 0)
    runner = StageRunner(model, recompute=case.recompute)
    optimizer = StageOptimizer(workload, first, end, TrainConfig(), model.flat, model.flat_grad)
    given = [model.flat, model.flat_grad, model.frozen, *optimizer.states.values()]
    tokens = torch.randint(0, workload.transformer.vocab, (2, workload.micro_batch, workload.seq_len))
    sizes = [workload.boundary_elements[boundary] for boundary in (first, end)]
    live = LiveBytes()
    live.leave_out(*given, tokens)
    with live:
        for micro_batch in range(case.in_flight):
            x = None if model.is_first else torch.randn(sizes[0])
            runner.forward(micro_batch, x, Batch(tokens[0], tokens[1]), RngKey(0, 0, micro_batch))
        del x
        for micro_batch in range(case.in_flight):
            runner.backward(micro_batch, None if model.is_last else torch.randn(sizes[1]))
        optimizer.step(1e-3)
    return live.peak, sum(tensor.untyped_storage().nbytes() for tensor in given)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_of_a_stage_is_what_the_runtime_holds(case: Case) -> None:
    workload = _workload(case)
    ops, cuts = len(workload.graph.ops), workload.boundaries
    spans = {"first": (0, cuts[1]), "middle": (cuts[0], cuts[2]), "last": (cuts[1], ops), "all": (0, ops)}
    first, end = spans[case.part]
    problem = Problem(cluster=factories.small_cluster(4), workload=workload)
    tables = CostTables(problem)
    messages = tables.stage_bytes(first, end, 0, case.recompute) - tables.stage_state_bytes(first, end)
    planned = tables.stage_bytes(first, end, case.in_flight, case.recompute) - messages
    peak, held = _counted(workload, first, end, case)
    assert TOO_LITTLE * (peak + held) <= planned <= TOO_MUCH * (peak + held)
