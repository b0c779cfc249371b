"""Groups whose devices divide the layers of a captured model train as one process does."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import ARCHITECTURES
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS = 30


@dataclass(frozen=True)
class Case:
    """An architecture, where it is cut (in parts of its boundaries), and the degree of each rank."""

    model_type: str
    cuts: tuple[float, ...]
    degrees: tuple[int, ...]


CASES = {
    "gpt2, fused projections, dropout also of attention": Case("gpt2", (0.5,), (4, 2)),
    "llama, fewer heads of keys, single device behind": Case("llama", (0.6,), (2, 1)),
    "bloom, samples and heads on one axis": Case("bloom", (0.4,), (2, 4)),
    "mixture of experts": Case("mixtral", (0.4,), (1, 2)),
    "t5, a table of positions by head": Case("t5", (0.3, 0.7), (2, 1, 4)),
    "bert, tied table with a padding row": Case("bert", (0.5,), (2, 4)),
    "falcon, turned weights, attention on all": Case("falcon", (0.5,), (2, 2)),
    "olmoe, queries and keys on all": Case("olmoe", (0.5,), (2, 2)),
    "images": Case("vit", (0.5,), (4, 2)),
}


def captured(name: str) -> Workload:
    """Eight samples a step, four in a micro-batch."""
    seq_len = None if "image_size" in ARCHITECTURES[name] else 16
    factory = config_factory({"model_type": name, **ARCHITECTURES[name]}, name, micro_batch=4, seq_len=seq_len)
    return capture_workload(factory, name, global_batch=8, task=factory.task)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    workload = captured(case.model_type)
    ops = len(workload.graph.ops)
    single = chain_plan([2], [round(part * ops) for part in case.cuts], workload=workload)
    plan = in_groups(single, case.degrees, "tensor")
    config = TrainConfig(steps=STEPS, seed=3, learning_rate=1e-3, clip_norm=1.0)
    model, expected = train_reference(workload, config)
    assert train(plan, config, tmp_path).losses() == pytest.approx(expected, rel=1e-5)
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    for weight, values in reference.items():
        assert (saved[weight] - values).abs().max() < 1e-3, weight
