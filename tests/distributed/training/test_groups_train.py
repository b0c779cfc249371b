"""Groups of devices train as one process does: losses, weights, checkpoints, and what they refuse."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig, check_runnable
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS = 30


def gpt(*, global_batch: int = 8, optimizer: str = "adamw", **changes: object) -> Workload:
    shape = {"vocab": 258, "max_seq_len": 32, "hidden": 32, "layers": 4, "heads": 4, "ffn": 66} | changes
    return Workload(
        name="test",
        transformer=TransformerConfig(**shape),
        global_batch=global_batch,
        micro_batch=2,
        seq_len=32,
        dtype="float32",
        optimizer=optimizer,
    )


def llama() -> Workload:
    return gpt(family="llama", kv_heads=2, tie_embeddings=False)


def recomputed(plan: Plan) -> Plan:
    return plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))


PLANS = {
    "degree 2": lambda: in_groups(chain_plan([4], [], workload=gpt()), [2]),
    "degree 4, recompute": lambda: in_groups(recomputed(chain_plan([4], [], workload=gpt())), [4]),
    "2 x 2 x 2, dropout": lambda: in_groups(chain_plan([3, 1], [4], workload=gpt(dropout=0.1)), [2] * 4),
    "unlike degrees by stage": lambda: in_groups(chain_plan([4], [3, 8], workload=gpt()), [4, 1, 2]),
    "unlike degrees by replica, llama": lambda: in_groups(chain_plan([2, 2], [4], workload=llama()), [1, 2, 2, 1]),
    "cut before the loss, sgd": lambda: in_groups(chain_plan([4], [10], workload=gpt(optimizer="sgd")), [2, 2]),
    "interleaved": lambda: in_groups(interleave(chain_plan([4, 4], [5], workload=gpt(global_batch=16))), [2, 1, 2, 1]),
}


@pytest.mark.parametrize("name", PLANS)
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    config = TrainConfig(steps=STEPS, seed=3, learning_rate=3e-3, clip_norm=1.0)
    model, expected = train_reference(plan.problem.workload, config)
    losses = train(plan, config, tmp_path).losses()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0] - 0.1, "the model learns"
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    assert saved.keys() == reference.keys()
    for weight, values in reference.items():
        assert (saved[weight] - values).abs().max() < 1e-3, weight
