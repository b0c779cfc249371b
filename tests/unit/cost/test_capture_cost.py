"""What a captured graph says a model costs, against torch's counter, autograd's saving and a process's memory."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.cost import CPU_ATTENTION
from hetplanner.capture.export import _Whole, _WithLoss
from hetplanner.capture.weights import build_without_weights
from hetplanner.runtime.model.modules import MODULES
from hetplanner.workload.presets import preset
from tests.support.models.captured_models import FACTORIES, config_factory
from tests.support.processes.patience import HANG_S

GPT2 = {"model_type": "gpt2"}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1408, "vocab_size": 8192,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
RESNET101 = {"model_type": "resnet", "depths": [3, 4, 23, 3], "num_labels": 1000}


class OwnGpt(nn.Module):
    """The runtime's own GPT, without its loss."""

    def __init__(self) -> None:
        super().__init__()
        workload = preset("small-gpt")
        ops = workload.graph.ops[:-1]
        self.ops = nn.ModuleList(MODULES[op.kind](workload.transformer, i) for i, op in enumerate(ops))
        self.ops[-1].weight = self.ops[0].tokens.weight

    def forward(self, x):
        for op in self.ops:
            x = op(x)
        return x


def own_gpt():
    return OwnGpt(), torch.zeros(2, 128, dtype=torch.int64)


MODELS = {
    "own gpt": (own_gpt, preset("small-gpt").graph.num_params),
    "hf gpt2": (config_factory(GPT2, "gpt2", seq_len=256), 124_439_808),
    "hf llama": (config_factory(LLAMA, "llama", seq_len=256), None),
    "resnet-101": (config_factory(RESNET101, "resnet"), 44_549_160),
    "a user's": (FACTORIES["conv_net"], None),
}


def torchs_count(factory):
    """FLOPs of a forward and a backward by torch's counter, on a module without weights."""
    build = build_without_weights(factory)
    module, examples = build.result
    wrapped, examples = (_Whole(module), examples) if isinstance(examples, tuple) else (_WithLoss(module), (examples,))
    with build.mode, FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        inputs = [build.mode.from_tensor(e) for e in examples]
        if len(inputs) == 1:
            logits = module(inputs[0])
            logits = getattr(logits, "logits", logits)
            counter.flop_counts.clear()
            inputs.append(torch.zeros(logits.shape[:-1], dtype=torch.int64))
        wrapped.train()(*inputs).backward()
    return counter.get_total_flops(), len(inputs[0]), sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_flops_are_torchs_and_parameters_exact(name):
    factory, known = MODELS[name]
    graph = capture_workload(factory, name).graph
    flops, batch, parameters = torchs_count(factory)
    assert graph.num_params == parameters
    assert known in (None, parameters)
    ours = batch * sum(op.forward_flops + op.backward_flops for op in graph.ops)
    assert ours == pytest.approx(flops, rel=0.02)


@pytest.mark.parametrize("name", ["hf_gpt2", "hf_llama", "hf_resnet", "conv_net"])
def test_kept_bytes_are_what_autograd_saves(name):
    workload = capture_workload(FACTORIES[name], name)
    module, examples = FACTORIES[name]()
    wrapped = _WithLoss(module).train()
    known = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    labels = torch.zeros(workload.program.labels, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        wrapped(examples, labels).backward()
    expected = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in known)
    ours = workload.micro_batch * sum(op.activation_bytes for op in workload.graph.ops)
    # Llama's grouped keys are repeated when it is exported, not when it runs eagerly: 6.6 % more in this one.
    assert ours == pytest.approx(expected, rel=0.07 if name == "hf_llama" else 0.01)


def test_first_op_has_no_gradient_of_the_input():
    ops = capture_workload(FACTORIES["hf_resnet"], "resnet").graph.ops
    assert ops[0].backward_flops == pytest.approx(ops[0].forward_flops, rel=0.05)
    assert ops[4].backward_flops == pytest.approx(2 * ops[4].forward_flops, rel=0.05)


_BIG = """
import resource
from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
config = {"model_type": "gpt2", "n_layer": 24, "n_embd": 2048, "n_head": 16, "n_positions": 2048}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
workload = capture_workload(config_factory(config, "big", seq_len=512), "big")
print(workload.graph.num_params, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_weights_are_never_in_memory():
    done = subprocess.run([sys.executable, "-c", _BIG], capture_output=True, text=True, check=True, timeout=HANG_S)
    parameters, grown_bytes = map(int, done.stdout.split())
    assert parameters > 1.3e9
    assert grown_bytes < 4 * parameters / 10
