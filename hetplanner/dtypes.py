"""Number formats that weights and activations are trained in."""

from typing import Literal

DType = Literal["float32", "tf32", "bfloat16", "float16"]
"""tf32: float32 whose matrix products round their factors to 10 bits of mantissa, on GPUs that have units for it."""

DTYPE_BYTES: dict[str, int] = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
