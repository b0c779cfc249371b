"""Small models to capture: each is a factory of (module, example inputs)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hetplanner.capture import __main__ as child
from hetplanner.capture.huggingface import config_factory
from hetplanner.workload.capturing import capture as capturing

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 256, "n_positions": 32}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
RESNET = {
    "model_type": "resnet", "depths": [1, 2], "hidden_sizes": [16, 32], "embedding_size": 8, "image_size": 32,
    "num_channels": 1, "num_labels": 10, "layer_type": "bottleneck",
}  # fmt: skip

hf_gpt2 = config_factory(GPT2, "gpt2", micro_batch=2, seq_len=16)
hf_llama = config_factory(LLAMA, "llama", micro_batch=2, seq_len=16)
hf_resnet = config_factory(RESNET, "resnet", micro_batch=4)


@contextmanager
def captured_here() -> Iterator[None]:
    """Models are captured in this process: the child that a user has for it loads torch and transformers anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "_captured", lambda request, *_: child._captured(dict(request)))
        yield


class Residual(nn.Module):
    """A bottleneck block whose in-place calls must be undone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        y += x
        return self.act(y)


def conv_net() -> tuple[nn.Module, Tensor]:
    """Two residual blocks and a classifier."""
    blocks = nn.Sequential(nn.Conv2d(1, 8, 3), Residual(8), Residual(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    return blocks, torch.zeros(4, 1, 8, 8)


class TiedLoss(nn.Module):
    """Returns the summed loss itself; the head shares the table's weight and has a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 16)
        self.head.weight = self.table.weight

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        x = self.table(inputs)
        for layer in self.body:
            x = x + torch.tanh(layer(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), reduction="sum")


def tied_loss() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Inputs and labels as examples."""
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    return TiedLoss(), (tokens, tokens)


class Masked(nn.Module):
    """Causal attention with a mask that the module keeps: more elements than a program may list."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.query, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16)
        self.register_buffer("mask", torch.ones(300, 300, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        scores = (self.query(x) @ x.transpose(1, 2)).masked_fill(~self.mask, -1e9)
        return self.head(scores.softmax(-1) @ x)


def masked() -> tuple[nn.Module, Tensor]:
    """Two sequences as long as the mask."""
    return Masked(), torch.zeros(2, 300, dtype=torch.int64)


FACTORIES = {
    "hf_gpt2": hf_gpt2, "hf_llama": hf_llama, "hf_resnet": hf_resnet, "conv_net": conv_net, "tied_loss": tied_loss,
    "masked": masked,
}  # fmt: skip
