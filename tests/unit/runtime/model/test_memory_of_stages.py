"""The plan's memory against the live tensors of the runtime, for one stage at work."""

import pytest

from tests.support.training.stage_memory import Case, counted, planned

TOO_MUCH, TOO_LITTLE = 1.08, 0.97

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
    Case("gpt2", "float32", "last", 1, more=(("vocab", 32_000), ("hidden", 512))),
    Case("gpt2", "float32", "all", 1),
    Case("llama", "bfloat16", "all", 2),
]

CAPTURED = [
    Case(f"captured {model}", dtype, part, in_flight, recompute)
    for model in ("phi", "gpt_neox")
    for dtype in ("float32", "bfloat16")
    for part, in_flight, recompute in (("first", 2, False), ("middle", 3, True), ("last", 1, False), ("all", 2, False))
]


@pytest.mark.parametrize("case", CASES + CAPTURED, ids=str)
def test_memory_of_a_stage_is_what_the_runtime_holds(case: Case) -> None:
    assert TOO_LITTLE <= planned(case) / counted(case) <= TOO_MUCH


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_memory_of_a_replica_with_its_part_of_the_states(case: Case, replicas: int) -> None:
    assert TOO_LITTLE <= planned(case, replicas=replicas) / counted(case, replicas=replicas) <= TOO_MUCH
