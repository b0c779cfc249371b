"""The reference itself: the user's module trained with plain torch has the losses of its captured program."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.support.models import captured_models
from tests.support.models.captured_models import config_factory

STEPS = 30
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FACTORIES = {
    "gpt2": config_factory(captured_models.GPT2 | NO_DROPOUT, "gpt2", micro_batch=2, seq_len=16),
    "llama": captured_models.hf_llama,
    "resnet": captured_models.hf_resnet,
    "in-place residual": captured_models.conv_net,
}


def logits_of(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    output = module(inputs)
    return output.logits if hasattr(output, "logits") else output


def train_module(module: nn.Module, workload: Workload, config: TrainConfig) -> list[float]:
    """Nothing of ours but the data: micro-batches accumulated, AdamW, decay for all that has two dimensions."""
    batches = open_batches(config, workload)
    module.train()
    decayed = [w for w in module.parameters() if w.ndim >= 2]
    others = [w for w in module.parameters() if w.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas)
    losses = []
    for step in range(config.steps):
        total = 0.0
        for m in range(workload.num_micro_batches):
            inputs, labels, _ = batches.draw(step, m)
            loss = F.cross_entropy(logits_of(module, inputs).flatten(0, -2), labels.flatten(), reduction="sum")
            (loss / workload.tokens_per_step).backward()
            total += loss.item()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / workload.tokens_per_step)
    return losses


@pytest.mark.parametrize("name", FACTORIES)
def test_a_captured_program_trains_as_its_module_does_with_plain_torch(name: str) -> None:
    workload = capture_workload(FACTORIES[name], name, global_batch=16)
    config = TrainConfig(steps=STEPS, seed=2, learning_rate=1e-2)
    start = StageModel(workload, 0, len(workload.graph.ops), config.seed)
    module = FACTORIES[name]()[0]
    module = getattr(module, "inner", module)
    found = module.load_state_dict(start.saved_tensors(), strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"lm_head.weight"}  # GPT-2's head is tied
    expected = train_module(module, workload, config)
    model, losses = train_reference(workload, config)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 5e-5
    assert min(losses) < losses[0] - 0.02, "it learns"
    state = module.state_dict()
    for tensor_name, tensor in model.saved_tensors().items():
        assert torch.allclose(tensor.float(), state[tensor_name].float(), atol=2e-3), tensor_name
        if tensor_name.endswith("num_batches_tracked"):
            assert int(tensor) == STEPS * workload.num_micro_batches
