"""What the fork server of tests loads once, so that no rank and no peer loads it again."""

import numpy.ma
import PIL.ImageOps
import pytest
import sklearn.datasets
import torch._dynamo

import hetplanner.runtime.device_group.sharded_weights
import hetplanner.swarm.peer.group.leader
from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import tensor_codec

__all__ = ["PIL", "hetplanner", "numpy", "pytest", "sklearn"]


def load_kernels() -> None:
    """Of the codecs: a rank would read each from the disk at its first message."""
    x = torch.zeros(512)
    for name in ("fp16", "int8", "topk"):
        codec = Codec(name=name)
        out = torch.empty(codec.wire_bytes(x.numel(), 4), dtype=torch.uint8)
        made = tensor_codec(codec)
        made.encode(x, out)
        made.decode(out, x.numel())


load_kernels()
