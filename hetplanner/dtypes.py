"""Number formats that weights and activations are trained in."""

from typing import Literal

DType = Literal["float32", "bfloat16", "float16"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
