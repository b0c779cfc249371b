"""Codecs' inner loops for tensors in a processor's memory, compiled; each passes over its input once or twice.

They give the same bytes as the codecs' tensor operations, to which other devices keep. Importing this module imports
numba: do it lazily.
"""

import platform
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hetplanner.arrays import IntArray
from hetplanner.kernels import kernel

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
# Added to a float32 of magnitude below 2^22, it leaves the nearest whole number (of two the even one) in the low bits.
_ROUNDER = np.float32(1.5 * 2**23)
_BLOCK = 64  # elements looked at together when few are wanted


def _intrinsic(build: Any) -> Any:
    """An instruction of the compiler's own, which no checker of types can see through."""
    return intrinsic(build)


@_intrinsic
def _bits_of(typing_context: Any, x: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@_intrinsic
def _float_of(typing_context: Any, x: Any) -> Any:
    """The float32 of an int32's bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@_intrinsic
def _half_bits_of(typing_context: Any, x: Any) -> Any:
    """The bits of the nearest 16-bit float; one instruction where the processor has it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@cache
def can_halve() -> bool:
    """Whether the processor converts to 16-bit floats by itself; elsewhere `to_half` could not be linked."""
    return bool(llvm.get_host_cpu_features().get("f16c")) or platform.machine() in ("aarch64", "arm64")


@kernel(nogil=True)
def to_half(x_N: FloatArray, out_N: NDArray[np.uint16]) -> int:
    """Rounds to fp16. Returns the greatest magnitude's bits: 0x7C00 (infinity) or more if something is out of range."""
    most: Any = np.uint16(0)
    for i in range(x_N.shape[0]):
        half = _half_bits_of(x_N[i])
        out_N[i] = half
        most = max(most, np.uint16(half & np.uint16(0x7FFF)))
    return most


@kernel(nogil=True)
def to_brain(x_N: FloatArray, out_N: NDArray[np.uint16]) -> int:
    """Rounds to bf16. Returns the greatest magnitude's bits: 0x7F80 (infinity) or more if something is out of range."""
    most: Any = np.int32(0)
    for i in range(x_N.shape[0]):
        bits = _bits_of(x_N[i])
        magnitude = np.int32(bits & _MAGNITUDE)
        # To nearest, of two the even one; what is not a number would become infinite and is set apart.
        rounded: Any = np.int32((magnitude + np.int32(0x7FFF) + ((magnitude >> 16) & 1)) >> 16)
        rounded = np.int32(0x7FC0) if magnitude > _INFINITY else rounded
        out_N[i] = np.uint16(rounded | ((bits >> 16) & np.int32(0x8000)))
        most = max(most, rounded)
    return most


@kernel(nogil=True, error_model="numpy")
def _scale_of(x_S: FloatArray, levels: np.float32) -> np.float32:
    greatest = np.int32(0)
    for i in range(x_S.shape[0]):
        greatest = max(greatest, np.int32(_bits_of(x_S[i]) & _MAGNITUDE))
    return np.float32(np.nan) if greatest >= _INFINITY else np.float32(_float_of(greatest) / levels)


@kernel(nogil=True, error_model="numpy")
def to_bytes(x_N: FloatArray, block: int, scale_K: FloatArray, out_N: NDArray[np.int8]) -> None:
    """Block-wise int8."""
    levels = np.float32(127)
    for k in range(scale_K.shape[0]):
        first, end = k * block, min((k + 1) * block, x_N.shape[0])
        x_S, out_S = x_N[first:end], out_N[first:end]
        scale = _scale_of(x_S, levels)
        scale_K[k] = scale
        if np.isnan(scale):
            out_S[:] = 0
            continue
        divisor = scale if scale > 0 else np.float32(1)
        for i in range(x_S.shape[0]):
            out_S[i] = np.int8(_bits_of(min(max(x_S[i] / divisor, -levels), levels) + _ROUNDER))


@kernel(nogil=True, error_model="numpy")
def to_nibbles(x_N: FloatArray, block: int, scale_K: FloatArray, out: ByteArray) -> None:
    """Block-wise int4, -7 .. 7 as 1 .. 15, two a byte; blocks must be even."""
    levels = np.float32(7)
    for k in range(scale_K.shape[0]):
        first, end = k * block, min((k + 1) * block, x_N.shape[0])
        x_S, out_S = x_N[first:end], out[first // 2 : (end + 1) // 2]
        scale = _scale_of(x_S, levels)
        scale_K[k] = scale
        if np.isnan(scale):
            out_S[:] = 0x88
            if x_S.shape[0] % 2:
                out_S[-1] = 0x08
            continue
        divisor = scale if scale > 0 else np.float32(1)
        for i in range(x_S.shape[0] // 2):
            low = _bits_of(min(max(x_S[2 * i] / divisor, -levels), levels) + _ROUNDER) + 8
            high = _bits_of(min(max(x_S[2 * i + 1] / divisor, -levels), levels) + _ROUNDER) + 8
            out_S[i] = np.uint8((low & 15) | ((high & 15) << 4))
        if x_S.shape[0] % 2:
            out_S[-1] = np.uint8((_bits_of(min(max(x_S[-1] / divisor, -levels), levels) + _ROUNDER) + 8) & 15)


@kernel(nogil=True)
def from_nibbles(data: ByteArray, block: int, scale_K: FloatArray, out_N: FloatArray) -> None:
    """Undoes `to_nibbles`."""
    for k in range(scale_K.shape[0]):
        first, end = k * block, min((k + 1) * block, out_N.shape[0])
        out_S, data_S, scale = out_N[first:end], data[first // 2 : (end + 1) // 2], scale_K[k]
        for i in range(out_S.shape[0] // 2):
            out_S[2 * i] = np.float32(np.int32(data_S[i] & 15) - 8) * scale
            out_S[2 * i + 1] = np.float32(np.int32(data_S[i] >> 4) - 8) * scale
        if out_S.shape[0] % 2:
            out_S[-1] = np.float32(np.int32(data_S[-1] & 15) - 8) * scale


@kernel(nogil=True)
def at_least(x_N: FloatArray, threshold: int, out: IntArray) -> int:
    """Positions of magnitudes (as integers of their bits) not below a threshold, ascending, as far as there is room.

    Returns their number, or one that is greater than the room if they may be more; `out` must have `_BLOCK` places.
    """
    count: Any = 0
    num_elements = x_N.shape[0]
    for first in range(0, num_elements, _BLOCK):
        x_S = x_N[first : min(first + _BLOCK, num_elements)]
        greatest = np.int32(0)
        for i in range(x_S.shape[0]):
            greatest = max(greatest, np.int32(_bits_of(x_S[i]) & _MAGNITUDE))
        if greatest < threshold:
            continue
        if count + _BLOCK > out.shape[0]:
            return out.shape[0] + 1
        for i in range(x_S.shape[0]):
            # Written always and kept if it counts: no branch to be guessed.
            out[count] = first + i
            count += (_bits_of(x_S[i]) & _MAGNITUDE) >= threshold
    return count


@kernel(nogil=True)
def set_bits(position_M: IntArray, out: ByteArray) -> None:
    """A bitmap, the first element in the highest bit."""
    out[:] = 0
    for position in position_M:
        out[position >> 3] |= np.uint8(128 >> (position & 7))


@kernel(nogil=True)
def find_bits(bitmap: ByteArray, position: IntArray) -> int:
    """Undoes `set_bits`. Returns how many positions were found, as far as there is room; 8 places must be to spare."""
    count: Any = 0
    for k in range(bitmap.shape[0]):
        byte = np.int64(bitmap[k])
        if count + 8 > position.shape[0]:
            break
        for i in range(8):
            # Written always and kept if it counts: no branch to be guessed.
            position[count] = 8 * k + i
            count += (byte >> (7 - i)) & 1
    return count


@kernel(nogil=True)
def magnitudes_at(x_N: FloatArray, position_C: IntArray, out_C: NDArray[np.int32]) -> None:
    """Magnitudes of some elements, as integers of their bits."""
    for c in range(position_C.shape[0]):
        out_C[c] = _bits_of(x_N[position_C[c]]) & _MAGNITUDE


@kernel(nogil=True)
def choose(magnitude_C: NDArray[np.int32], position_C: IntArray, least: int, position_M: IntArray) -> None:
    """Takes the positions whose magnitude is not below `least`; of equal smallest ones the first, as many as fit."""
    num_kept, above = position_M.shape[0], 0
    for c in range(magnitude_C.shape[0]):
        above += magnitude_C[c] > least
    room, count = num_kept - above, 0
    for c in range(magnitude_C.shape[0]):
        if count == num_kept:
            break
        equal = (magnitude_C[c] == least) & (room > 0)
        position_M[count] = position_C[c]
        count += (magnitude_C[c] > least) | equal
        room -= equal


@kernel(nogil=True)
def scatter(value_M: FloatArray, position_M: IntArray, out_N: FloatArray) -> bool:
    """Writes values to their positions. Returns whether all of these lie inside."""
    for k in range(position_M.shape[0]):
        position = position_M[k]
        if not 0 <= position < out_N.shape[0]:
            return False
        out_N[position] = value_M[k]
    return True
