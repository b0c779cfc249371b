"""Evaluation at intervals: the numbers of one process, and a training that does not notice."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.data import open_held_out
from tests.distributed.training.test_runtime_equality import gpt
from tests.support.models.captured_models import conv_net
from tests.support.models.packed_data import documents_folder, some_documents
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed


def test_evaluation_tells_loss_and_accuracy_and_training_stays_bit_by_bit(tmp_path: Path) -> None:
    plan = interleave(chain_plan([5, 3], [5], workload=gpt(dropout=0.1)))
    workload = plan.problem.workload
    data = documents_folder(tmp_path / "data", some_documents(300), some_documents(20, seed=1))
    held_out = documents_folder(tmp_path / "held_out", some_documents(90, seed=2), some_documents(60, seed=3))
    config = TrainConfig(steps=10, seed=3, learning_rate=1e-2, data=str(data))
    without = train(plan, config, tmp_path / "without")
    evaluated = config.replace(eval_data=str(held_out), eval_every=4, eval_batches=3)
    ranks = train(plan, evaluated, tmp_path / "with")
    assert ranks.losses() == without.losses()
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("without", "with")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    found = RunReader(tmp_path / "with").read_all().evaluations()
    assert [one.step for one in found] == [3, 7, 9]
    assert found[-1].loss < found[0].loss
    model = StageModel(workload, 0, len(workload.graph.ops), 0)
    for name, weight in model.named_weights().items():
        weight.copy_(weights[1][name])
    batches = open_held_out(evaluated, workload)
    assert batches is not None
    loss_sum, correct, count = 0.0, 0, 0
    for step in range(3):
        for m in range(workload.num_micro_batches):
            batch = batches.draw(step, m, "validation")
            seen = model.stage_ops.modules[-1]
            logits: list[torch.Tensor] = []
            hook = seen.register_forward_pre_hook(lambda _, inputs, logits=logits: logits.append(inputs[0]))
            model.forward(None, batch)
            hook.remove()
            targets = batch.labels[batch.labels != -100]
            said = logits[0][batch.labels != -100]
            loss_sum += functional.cross_entropy(said, targets, reduction="sum").item()
            correct += int((said.argmax(dim=-1) == targets).sum())
            count += len(targets)
    assert found[-1].loss == pytest.approx(loss_sum / count, abs=1e-4)
    assert found[-1].accuracy == pytest.approx(correct / count, abs=0.005)


def test_running_statistics_are_as_without_evaluation(tmp_path: Path) -> None:
    workload = capture_workload(conv_net, "conv_net", global_batch=16)
    shares = [workload.num_micro_batches - 1, 1]
    plan = chain_plan(shares, [len(workload.graph.ops) // 2], workload=workload)
    config = TrainConfig(steps=5, learning_rate=1e-2)
    runs = [train(plan, config.replace(eval_every=every), tmp_path / str(every)).losses() for every in (None, 2)]
    assert runs[0] == runs[1]
    weights = [load_file(tmp_path / str(every) / "model.safetensors") for every in (None, 2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    found = RunReader(tmp_path / "2").read_all().evaluations()
    assert [one.step for one in found] == [1, 3, 4]
    assert all(one.accuracy is not None and 0 <= one.accuracy <= 1 for one in found)
