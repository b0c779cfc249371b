"""Training in 16 bits: close to float32, messages of half the size, and overflows that all ranks see."""

import itertools
from pathlib import Path

import pytest
import torch

from hetplanner.capture.assemble import capture_workload
from hetplanner.dtypes import DTYPE_BYTES
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.model.precision import LossScale
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.train.executor import Executor, StepStats
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.models import captured_models
from tests.support.models.captured_models import config_factory
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import Ranks, train

pytestmark = pytest.mark.distributed

STEPS = 15
MICRO_BATCHES = 8


def gpt(dtype: str, **shape: object) -> Workload:
    config = TransformerConfig(
        **{"vocab": 256, "max_seq_len": 32, "hidden": 32, "layers": 4, "heads": 2, "ffn": 64} | shape
    )
    return Workload(
        name="test", transformer=config, global_batch=2 * MICRO_BATCHES, micro_batch=2, seq_len=32, dtype=dtype
    )


PLANS = {
    "2x2 uneven shares": lambda dtype: chain_plan([5, 3], [4], workload=gpt(dtype)),
    "1x2 interleaved": lambda dtype: interleave(chain_plan([8], [5], workload=gpt(dtype)), in_flight=3),
    "2x2 llama": lambda dtype: chain_plan(
        [5, 3], [4], workload=gpt(dtype, family="llama", kv_heads=1, heads=4, tie_embeddings=False)
    ),
}


def boundary_bytes(plan: Plan) -> int:
    """What a step sends between stages, as the plan declares it."""
    return sum(
        plan.boundary_bytes(s, a, b, "activation") + plan.boundary_bytes(s, b, a, "gradient")
        for m in range(MICRO_BATCHES)
        for s, (a, b) in enumerate(itertools.pairwise(plan.path_of_micro_batch(m)))
    )


def sent_bytes(ranks: Ranks) -> int:
    return sum(line["boundary_bytes"] for line in ranks.all_lines("step"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PLANS)
def test_16_bits_stay_close_to_float32_and_halve_the_messages(name: str, dtype: str, tmp_path: Path) -> None:
    plan = PLANS[name](dtype)
    config = TrainConfig(steps=STEPS, seed=3, learning_rate=3e-3)
    _, exact = train_reference(gpt("float32", **_shape(plan)), config)
    ranks = train(plan, config, tmp_path)
    losses = ranks.losses()
    assert max(abs(a / b - 1) for a, b in zip(losses, exact, strict=True)) < 0.01
    assert losses != exact, "nothing was computed in 16 bits"
    assert losses[-1] < losses[0] - 0.3, "the model learns"
    full = plan.replace(problem=plan.problem.replace(workload=plan.problem.workload.replace(dtype="float32")))
    assert sent_bytes(ranks) == STEPS * boundary_bytes(plan) == STEPS * boundary_bytes(full) // 2


@pytest.mark.parametrize("dtype", ["tf32", "bfloat16", "float16"])
def test_captured_models_train_in_every_format_and_are_clipped_as_one_process(dtype: str, tmp_path: Path) -> None:
    factory = config_factory(captured_models.GPT2, "gpt2", micro_batch=2, seq_len=16)
    exact = capture_workload(factory, "gpt2", global_batch=16)
    assert exact.captured is not None
    workload = exact.replace(dtype=dtype, captured=exact.captured.in_dtype(4, DTYPE_BYTES[dtype]))
    plan = chain_plan([5, 3], [14], workload=workload)
    config = TrainConfig(steps=10, seed=3, learning_rate=3e-3, clip_norm=0.5)
    _, expected = train_reference(exact, config)
    ranks = train(plan, config, tmp_path)
    bound = 1e-5 if dtype == "tf32" else 0.01  # processors compute it as float32
    assert max(abs(a / b - 1) for a, b in zip(ranks.losses(), expected, strict=True)) < bound
    assert min(line["grad_norm"] for line in ranks.all_lines("step")) > 0.5, "every step is clipped"
    assert sent_bytes(ranks) == 10 * boundary_bytes(plan)


def _shape(plan: Plan) -> dict[str, object]:
    config = plan.problem.workload.transformer
    assert config is not None
    return config.model_dump()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_rank_equals_one_process_in_16_bits(dtype: str, tmp_path: Path) -> None:
    plan = chain_plan([8], [], workload=gpt(dtype))
    config = TrainConfig(steps=10, seed=3, learning_rate=3e-3, clip_norm=0.5)
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    # Losses in float32 are 2e-4 away. Without bfloat16 instructions, a processor sums in another order: 6e-5.
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 1e-4


OVERFLOW_STEP = 3


def overflow_once(rank: int) -> None:
    """On rank 1, one gradient of one weight overflows in the first micro-batch of one step."""
    if rank != 1:
        return
    run_step, backward, due = Executor.run_step, StageRunner.backward, []

    def run_step_with_fault(executor: Executor, step: int) -> StepStats:
        due.extend([step] if step == OVERFLOW_STEP else [])
        return run_step(executor, step)

    def backward_with_fault(runner: StageRunner, m: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        result = backward(runner, m, gradient)
        if due:
            due.clear()
            runner.model.flat_grad[7] = torch.inf
        return result

    Executor.run_step, StageRunner.backward = run_step_with_fault, backward_with_fault  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["2x2 uneven shares", "1x2 interleaved"])
def test_an_overflow_on_one_rank_skips_that_step_on_all(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]("float16")
    config = TrainConfig(steps=8, seed=3, learning_rate=3e-3, warmup_steps=1)
    ranks = train(plan, config, tmp_path, fault=overflow_once)
    steps = [ranks.lines(rank, "step") for rank in range(len(plan.ranks))]
    assert [[line["step"] for line in lines if line["skipped"]] for lines in steps] == [[OVERFLOW_STEP]] * len(steps)
    for lines in steps:
        scales = [line["loss_scale"] for line in lines]
        assert scales == [LossScale.FIRST] * (OVERFLOW_STEP + 1) + [LossScale.FIRST / 2] * 4
        assert [line["grad_norm"] is None for line in lines] == [line["skipped"] for line in lines]
    _, exact = train_reference(plan.problem.workload, config)
    assert ranks.losses()[: OVERFLOW_STEP + 1] == pytest.approx(exact[: OVERFLOW_STEP + 1], rel=1e-3)
    assert ranks.losses()[-1] < ranks.losses()[0] - 0.3


def test_the_loss_scale_doubles_after_a_quiet_while_and_halves_at_once() -> None:
    scale = LossScale()
    for _ in range(LossScale.GROWTH_STEPS):
        scale.update(overflowed=False)
    assert scale.value == 2 * LossScale.FIRST
    scale.update(overflowed=True)
    assert (scale.value, scale.quiet_steps) == (LossScale.FIRST, 0)
