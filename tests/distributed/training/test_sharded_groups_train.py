"""Groups whose devices divide samples (ZeRO 2 and 3) train as one process does."""

from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_gpt, tuned
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import gone_on, train

pytestmark = pytest.mark.distributed

STEPS, FEW = 30, 8


def gpt(global_batch: int = 16, **shape: object) -> Workload:
    """Four samples a micro-batch; rows of its matrices are no multiples of four."""
    made = small_gpt(global_batch=global_batch, vocab=259, heads=4, ffn=66, **shape)
    return made.replace(micro_batch=4)


llama = partial(gpt, family="llama", kv_heads=2, tie_embeddings=False, qkv_bias=True)


def recomputed(plan: Plan) -> Plan:
    return plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))


def zero(plan: Plan) -> Plan:
    return plan.replace(problem=plan.problem.replace(constraints=Constraints(zero=1)))


ADAPTERS = Adapters(rank=4, alpha=8.0, targets=("c_attn",))
PLANS = {
    "degree 2": lambda: (chain_plan([4], [], workload=gpt()), [2]),
    "degree 4, recompute": lambda: (recomputed(chain_plan([4], [3], workload=gpt())), [4, 2]),
    "2 x 2 x 2, dropout": lambda: (chain_plan([3, 1], [4], workload=gpt(dropout=0.1)), [2] * 4),
    "unlike degrees by stage, llama": lambda: (chain_plan([4], [3, 8], workload=llama()), [4, 1, 2]),
    "cut before the loss, sgd": lambda: (chain_plan([4], [10], workload=gpt(optimizer="sgd")), [2, 2]),
    "frozen layers": lambda: (chain_plan([4], [4], workload=tuned(gpt(), FineTuning(frozen_layers=2))), [2, 2]),
    "adapters": lambda: (chain_plan([4], [4], workload=tuned(gpt(), FineTuning(adapters=ADAPTERS))), [2, 2]),
    "sharded states of replicas": lambda: (zero(chain_plan([2, 2], [4], workload=llama())), [1, 2, 2, 4]),
    "fewer rows than devices": lambda: (chain_plan([4], [4], workload=small_gpt(ffn=3).replace(micro_batch=4)), [4, 4]),
    "interleaved": lambda: (interleave(chain_plan([4, 4], [5], workload=gpt(global_batch=32))), [2, 1, 2, 1]),
}  # fmt: skip


ZERO2 = ("2 x 2 x 2, dropout", "unlike degrees by stage, llama", "cut before the loss, sgd")
LONG = {("degree 2", "zero3"), ("unlike degrees by stage, llama", "zero3"), ("2 x 2 x 2, dropout", "zero2")}
"""Of these losses are compared over `STEPS`, of the others over `FEW`."""
CASES = [*((name, "zero3") for name in PLANS), *((name, "zero2") for name in ZERO2)]


@pytest.mark.parametrize(("name", "sharding"), CASES)
def test_losses_and_weights_equal_one_process(name: str, sharding: str, tmp_path: Path) -> None:
    plan, degrees = PLANS[name]()
    plan = in_groups(plan, degrees, sharding)
    steps = STEPS if (name, sharding) in LONG else FEW
    config = TrainConfig(steps=steps, seed=3, learning_rate=3e-3, clip_norm=1.0)
    model, expected = train_reference(plan.problem.workload, config)
    losses = train(plan, config, tmp_path).losses()
    assert losses == pytest.approx(expected, rel=1e-5)
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    assert saved.keys() == reference.keys()
    for weight, values in reference.items():
        assert (saved[weight] - values).abs().max() < 1e-3, weight


def test_lower_precision_and_evaluation_are_those_of_single_devices(tmp_path: Path) -> None:
    single = chain_plan([4], [4], workload=gpt(dropout=0.1).replace(dtype="bfloat16"))
    config = TrainConfig(steps=6, seed=3, learning_rate=3e-3, eval_every=3)
    plans = {"single": single} | {name: in_groups(single, [2, 4], name) for name in ("zero2", "zero3")}
    runs = {name: train(plan, config, tmp_path / name) for name, plan in plans.items()}
    validation = {name: run.all_lines("validation") for name, run in runs.items()}
    for name in ("zero2", "zero3"):
        assert runs[name].losses() == pytest.approx(runs["single"].losses(), rel=2e-3)
        for one, two in zip(validation["single"], validation[name], strict=True):
            assert two["loss_sum"] == pytest.approx(one["loss_sum"], rel=2e-3)
            assert two["num_tokens"] == one["num_tokens"]


SINGLE = chain_plan([2, 2], [4], workload=gpt(dropout=0.1))
TENSOR, SHARDED = in_groups(SINGLE, [2, 1, 1, 2]), in_groups(SINGLE, [2, 1, 1, 2], "zero3")
CHANGES = {
    "under the same plan": (SHARDED, SHARDED),
    "from tensor parallelism": (TENSOR, SHARDED),
    "to devices": (SHARDED, SINGLE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_goes_on(name: str, tmp_path: Path) -> None:
    before, after = CHANGES[name]
    straight, rest = gone_on(before, after, tmp_path)
    assert rest == (straight if before is after else pytest.approx(straight, rel=1e-5))
