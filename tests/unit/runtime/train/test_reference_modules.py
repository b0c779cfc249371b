"""The reference itself: the user's module trained with plain torch has the losses of its captured program."""

import pytest
import torch

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.reference import train_reference
from tests.support.models import captured_models
from tests.support.models.captured_models import config_factory
from tests.support.models.model_folders import plain_losses

STEPS = 30
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FACTORIES = {
    "gpt2": config_factory(captured_models.GPT2 | NO_DROPOUT, "gpt2", micro_batch=2, seq_len=16),
    "llama": captured_models.hf_llama,
    "resnet": captured_models.hf_resnet,
    "in-place residual": captured_models.conv_net,
}


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
    expected = plain_losses(module.train(), workload, config)
    model, losses = train_reference(workload, config)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 5e-5
    assert min(losses) < losses[0] - 0.02, "it learns"
    state = module.state_dict()
    for tensor_name, tensor in model.saved_tensors().items():
        assert torch.allclose(tensor.float(), state[tensor_name].float(), atol=2e-3), tensor_name
        if tensor_name.endswith("num_batches_tracked"):
            assert int(tensor) == STEPS * workload.num_micro_batches
