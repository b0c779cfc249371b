"""What a codec is called and how many bytes it puts on the wire; no torch, no data.

To add a codec: a name in `CodecName`, its size in `wire_bytes` and `COST_PASSES`, its tensor half in
`torch_codecs.py`; the conformance tests then run over it.
"""

from typing import Annotated, Literal

from pydantic import Field

from hetplanner.errors import InvalidInput
from hetplanner.schema import Noun

CodecName = Literal["none", "fp16", "int8"]
CODEC_NAMES: tuple[CodecName, ...] = ("none", "fp16", "int8")

COST_PASSES: dict[str, float] = {"none": 0.0, "fp16": 2.0, "int8": 6.0}
"""Passes over the dense tensor in memory to encode and decode once (ours; measured: int8 runs at about a
quarter to a sixth of the speed of a copy)."""

IS_LOSSY: dict[str, bool] = {"none": False, "fp16": True, "int8": True}


class Codec(Noun):
    """One choice of compression. `block` elements share one scale (int8)."""

    name: CodecName = "none"
    block: Annotated[int, Field(strict=True, ge=16, le=65536)] = 256

    def wire_bytes(self, num_elements: int, element_bytes: int) -> int:
        """Exact bytes on the wire for a tensor of `num_elements` elements of `element_bytes` bytes each."""
        if self.name == "none":
            return num_elements * element_bytes
        if self.name == "fp16":
            return num_elements * 2
        blocks = -(-num_elements // self.block)
        return num_elements + 4 * blocks  # one byte an element, one float32 scale a block


NO_CODEC = Codec()


def parse_codec(text: str) -> Codec:
    """A codec from 'none', 'fp16', 'int8' or 'int8:128' (block size). Raises InvalidInput."""
    name, _, block = text.strip().partition(":")
    if name not in CODEC_NAMES:
        raise InvalidInput(f"codec: must be one of {', '.join(CODEC_NAMES)}, got {text!r:.60}")
    if block and (name != "int8" or not block.isdecimal() or not 16 <= int(block[:6]) <= 65536):
        raise InvalidInput(f"codec: a block size of 16 to 65536 may follow int8 (as in 'int8:256'), got {text!r:.60}")
    return Codec(name=name, block=int(block or 256))
