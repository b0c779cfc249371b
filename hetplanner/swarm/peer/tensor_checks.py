"""Checks of tensors that came from others, on their bytes: before anything is decoded, and without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetplanner.codecs.spec import Codec
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput

BF16_EXPONENT = np.uint16(0x7F80)


def check_sizes(parts: Sequence[memoryview], sizes: tuple[int, ...], what: str) -> None:
    """Refuses tensors of other sizes than the plan's. Raises InvalidInput."""
    found = tuple(len(part) for part in parts)
    if found != sizes:
        raise InvalidInput(f"{what}: tensors must have {sizes} bytes, got {found}")


def check_finite(codec: Codec, dtype: DType, part: memoryview, num_elements: int) -> None:
    """Refuses an encoded tensor that holds what is no number. Raises InvalidInput.

    Of int8 and int4 the scales decide, as a block with such a number becomes one.
    """
    data = np.frombuffer(part, dtype=np.uint8)
    if codec.name in ("int8", "int4"):
        is_fine = _are_finite(data[: codec.scale_bytes(num_elements)], np.float32)
    elif codec.name == "bf16" or (codec.name == "none" and dtype == "bfloat16"):
        is_fine = bool(((data.view(np.uint16) & BF16_EXPONENT) != BF16_EXPONENT).all())
    else:
        is_fine = _are_finite(data, np.float16 if codec.name == "fp16" else np.float32)
    if not is_fine:
        raise InvalidInput("tensor: holds numbers that are not finite")


def _are_finite(numbers: np.ndarray, dtype: type[np.floating]) -> bool:
    return bool(np.isfinite(numbers.view(dtype)).all())
