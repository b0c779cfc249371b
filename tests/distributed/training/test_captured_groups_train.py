"""Groups whose devices divide the samples or the layers of a captured model train as one process does."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.tensor_degrees import Sharding
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import ARCHITECTURES
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import gone_on, train

pytestmark = pytest.mark.distributed

STEPS, FEW = 30, 8
LONG = ("gpt2, dropout also of attention", "layers, fused projections, dropout also of attention")
"""Of these losses are compared over `STEPS`, of the others over `FEW`."""


@dataclass(frozen=True)
class Case:
    """An architecture, where it is cut (in parts of its boundaries), and the degree of each rank; '' is `Recurrent`."""

    model_type: str
    cuts: tuple[float, ...]
    degrees: tuple[int, ...]
    sharding: Sharding = "zero3"


CASES = {
    "gpt2, dropout also of attention": Case("gpt2", (0.5,), (4, 2)),
    "gpt_neox, single device behind": Case("gpt_neox", (0.6,), (2, 1)),
    "mixture of experts": Case("mixtral", (0.4,), (1, 4)),
    "t5, a bias without samples crosses": Case("t5", (0.3, 0.7), (2, 1, 2)),
    "bert, tied table with a padding row": Case("bert", (0.5,), (2, 4), "zero2"),
    "mamba, zero2": Case("mamba", (0.5,), (2, 2), "zero2"),
    "lists of matrices, and one of fewer rows than devices": Case("", (0.5,), (4, 2)),
    "images": Case("convnext", (0.5,), (2, 2)),
    "layers, fused projections, dropout also of attention": Case("gpt2", (0.5,), (4, 2), "tensor"),
    "layers, mixture of experts, single device in front": Case("mixtral", (0.4,), (1, 2), "tensor"),
    "layers, a table of positions by head": Case("t5", (0.3, 0.7), (2, 1, 4), "tensor"),
    "layers, tied table with a padding row": Case("bert", (0.5,), (2, 4), "tensor"),
}


class Recurrent(nn.Module):
    """A call that takes its weights in a list, and a matrix of three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(256, 16), nn.LSTM(16, 16, batch_first=True)
        self.narrow, self.head = nn.Linear(16, 3), nn.Linear(3, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.narrow(self.lstm(self.table(tokens))[0]))
        return logits


@cache
def captured(name: str) -> Workload:
    """Eight samples a step, four in a micro-batch."""
    if not name:
        return capture_workload(lambda: (Recurrent(), torch.zeros(4, 16, dtype=torch.int64)), "mine", global_batch=8)
    seq_len = None if "image_size" in ARCHITECTURES[name] else 16
    factory = config_factory({"model_type": name, **ARCHITECTURES[name]}, name, micro_batch=4, seq_len=seq_len)
    return capture_workload(factory, name, global_batch=8, task=factory.task)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    workload = captured(case.model_type)
    ops = len(workload.graph.ops)
    single = chain_plan([2], [round(part * ops) for part in case.cuts], workload=workload)
    plan = in_groups(single, case.degrees, case.sharding)
    config = TrainConfig(steps=STEPS if name in LONG else FEW, seed=3, learning_rate=1e-3, clip_norm=1.0)
    model, expected = train_reference(workload, config)
    assert train(plan, config, tmp_path).losses() == pytest.approx(expected, rel=1e-5)
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    for weight, values in reference.items():
        assert (saved[weight] - values).abs().max() < 1e-3, weight


def two_stages(replicas: int = 1, **changes: Any) -> Plan:
    workload = captured("gpt2").replace(**changes)
    return chain_plan([2 // replicas] * replicas, [len(workload.graph.ops) // 2], workload=workload)


def test_lower_precision_and_evaluation_are_those_of_single_devices(tmp_path: Path) -> None:
    made = captured("gpt2")
    single = two_stages(dtype="bfloat16", captured=made.captured.in_dtype(4, 2))
    config = TrainConfig(steps=6, seed=3, learning_rate=1e-3, eval_every=3)
    runs = [train(plan, config, tmp_path / name) for name, plan in
            (("single", single), ("groups", in_groups(single, [2, 2])))]  # fmt: skip
    assert runs[1].losses() == pytest.approx(runs[0].losses(), rel=2e-3)
    for one, two in zip(*(run.all_lines("validation") for run in runs), strict=True):
        assert two["loss_sum"] == pytest.approx(one["loss_sum"], rel=2e-3)
        assert two["num_correct"] == pytest.approx(one["num_correct"], rel=0.1)


def test_a_run_goes_on_with_groups_whose_replicas_shard_states_and_recompute(tmp_path: Path) -> None:
    single = two_stages(replicas=2)
    sharded = single.replace(problem=single.problem.replace(constraints=Constraints(zero=1)))
    recomputed = sharded.replace(stages=tuple(stage.replace(recompute=True) for stage in sharded.stages))
    straight, rest = gone_on(single, in_groups(recomputed, [2, 1, 1, 2]), tmp_path)
    assert rest == pytest.approx(straight, rel=1e-5)
