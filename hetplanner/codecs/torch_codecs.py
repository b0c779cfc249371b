"""The tensor half of the codecs: float32 tensors to bytes and back, exactly as long as `Codec.wire_bytes` says.

Rule for what is not finite: `none`, `fp16` and `bf16` keep NaN and infinities as they are, `topk` keeps them among the
largest; `int8` and `int4` turn every block that holds one into NaN, so that a diverging run shows. Finite values beyond
the range of a 16-bit float become its greatest.

Tensors on any device stay there. On the processor compiled loops do the work; elsewhere, and with `compiled=False`,
tensor operations that give the same bytes.
"""

import torch

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_blocks import Blocks
from hetplanner.codecs.torch_dense import Dense, Half, TensorCodec
from hetplanner.codecs.torch_topk import AtPositions, TopK

__all__ = ["AtPositions", "Blocks", "Dense", "Half", "TensorCodec", "TopK", "tensor_codec"]


def tensor_codec(codec: Codec, *, compiled: bool = True) -> TensorCodec:
    """The tensor half of a codec."""
    match codec.name:
        case "none":
            return Dense()
        case "fp16":
            return Half(torch.float16, compiled=compiled)
        case "bf16":
            return Half(torch.bfloat16, compiled=compiled)
        case "int8" | "int4":
            return Blocks(codec, compiled=compiled)
        case "topk":
            return TopK(codec, compiled=compiled)
        case "powersgd":
            raise ValueError("powersgd reduces whole buckets: see hetplanner.runtime.comm.power")
