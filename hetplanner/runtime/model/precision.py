"""Number formats: what a workload's dtype means for computing, for messages and for the size of gradients.

Weights, gradients in the flat buffer and the optimiser's moments are float32 whatever the dtype; bfloat16 and float16
are what autocast computes in and what a dense boundary message carries.
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import Dense, TensorCodec, tensor_codec
from hetplanner.dtypes import DType

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def autocast(dtype: DType, device_type: str = "cpu") -> AbstractContextManager[object]:
    """Computes in `dtype` where torch holds that to be safe; nothing changes for float32."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device_type, dtype=TORCH_DTYPES[dtype])


def boundary_codec(codec: Codec, dtype: DType) -> TensorCodec:
    """The tensor half of a boundary's codec.

    What is dense travels in the workload's own dtype. In float16 nothing is clamped on the way: a gradient that
    overflows has to be seen, so that the loss scale shrinks.
    """
    if codec.name == "none" or (codec.name == "fp16" and dtype == "float16"):
        return Dense(TORCH_DTYPES[dtype])
    return tensor_codec(codec)


class LossScale:
    """The factor that keeps float16 gradients away from 0: halved by an overflow, doubled after a quiet while.

    All ranks call `update` with the same words, so that they hold the same factor.

    Attributes:
        value: of the *mean* loss; a power of two.
        quiet_steps: steps since it changed.

    Source: Micikevicius et al. 2018 (arXiv 1710.03740, section 3.2); the numbers are `torch.amp.GradScaler`'s.
    """

    FIRST, GROWTH_STEPS, LEAST = 2.0**16, 2000, 2.0**-24

    def __init__(self) -> None:
        self.value, self.quiet_steps = self.FIRST, 0

    def update(self, *, overflowed: bool) -> None:
        """Takes note of a step."""
        if overflowed:
            self.value, self.quiet_steps = max(self.LEAST, self.value / 2), 0
            return
        self.quiet_steps += 1
        if self.quiet_steps == self.GROWTH_STEPS:
            self.value, self.quiet_steps = self.value * 2, 0
