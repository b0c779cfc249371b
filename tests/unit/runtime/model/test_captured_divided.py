"""Members that divide the layers of a captured model have the losses and gradients of one device."""

import pytest
import torch
from torch import Tensor, nn

from hetplanner.capture.adapters import wanted_adapters, with_adapters
from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.device_group.shards import add_repeated
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import ARCHITECTURES as SIZES
from tests.support.models.architectures import captured
from tests.support.models.divided_models import MODELS, SAMPLES, TOKENS, made
from tests.support.training.member_threads import as_members

ARCHITECTURES = ("gpt2", "bloom", "falcon", "mixtral", "olmoe", "mamba", "bert", "t5", "swin")
"""Fused projections; heads and samples on one axis; turned weights; experts; norms over all heads; gathered products;
padding; positions by head; tokens on two axes."""


def at_work(workload: Workload, group: DeviceGroup, batch: Batch) -> tuple[float, StageModel]:
    """The loss in evaluation, without dropout, and the model with its gradients."""
    model = StageModel(workload, 0, len(workload.graph.ops), 0, None, group)
    loss = model.forward(None, batch, None)
    loss.backward()
    add_repeated(model.shards, model.flat_grad, group)
    return loss.item(), model


def gathered(members: list[StageModel], like: Tensor) -> Tensor:
    whole = torch.zeros_like(like)
    for model in members:
        for shard in model.shards:
            for there, here in shard.pieces(whole, model.flat_grad):
                there.copy_(here)
    return whole


def check(workload: Workload, degree: int, batch: Batch) -> None:
    expected, model = at_work(workload, ALONE, batch)
    found = as_members(degree, lambda group: at_work(workload, group, batch))
    assert [loss for loss, _ in found] == pytest.approx([expected] * degree, rel=1e-6)
    whole = gathered([member for _, member in found], model.flat_grad)
    assert (whole - model.flat_grad).abs().max() < 2e-6 * model.flat_grad.abs().max()
    for shard in zip(*(member.shards for _, member in found), strict=True):
        if shard[0].is_repeated:
            parts = [
                member.flat_grad[part.own.first : part.own.end] for part, (_, member) in zip(shard, found, strict=True)
            ]
            assert all(torch.equal(parts[0], part) for part in parts), shard[0].whole.name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_have_the_gradients_of_one_device(name: str) -> None:
    workload = captured(name)
    for degree in (2, 4):
        check(workload, degree, open_batches(TrainConfig(), workload).draw(0, 0))


def test_adapters_are_divided_with_the_layers_that_they_stand_beside() -> None:
    factory = config_factory({"model_type": "llama", **SIZES["llama"]}, "llama", micro_batch=2, seq_len=16)
    adapters = wanted_adapters("4:8:q_proj,down_proj", "llama")
    workload = capture_workload(with_adapters(factory, adapters, "llama"), "llama", global_batch=4)
    check(workload, 2, open_batches(TrainConfig(), workload).draw(0, 0))
    weights = workload.division(2).weights
    assert {axis for name, (axis, _) in weights.items() if "q_proj.lora_A" in name} == {0}
    assert {axis for name, (axis, _) in weights.items() if "down_proj.lora_A" in name} == {1}


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_every_trait_have_the_gradients_of_one_device(kind: type[nn.Module]) -> None:
    workload = made(kind)
    tokens, labels = torch.randint(0, 64, (2, SAMPLES, TOKENS))
    labels[0, :3] = -100
    for degree in (2, 4, 8):
        check(workload, degree, Batch(tokens, labels))
