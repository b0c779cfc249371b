"""The header of a safetensors file: names, element types, shapes and places of its tensors; no tensor is read.

Format: 8 bytes (little-endian length of the header), the header as JSON, the tensors' bytes.
Source: https://huggingface.co/docs/safetensors.
"""

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import reader
from hetplanner.schema import Noun, checked, parse_json
from hetplanner.units import short_bytes

MAX_HEADER_BYTES = 32 * 2**20
"""Some 200 000 tensors; safetensors itself takes 100 MB."""
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4,
              "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8}  # fmt: skip
"""Bytes of one element, by safetensors' name of its type."""
NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
"""By safetensors' name of a type, numpy's; of BF16 its bits."""
_PREFIX_BYTES = 8

Offset = Annotated[int, Field(strict=True, ge=0, le=2**60)]


class _Entry(Noun):
    """A tensor as the header tells it."""

    dtype: Annotated[str, Field(max_length=20)]
    shape: Annotated[tuple[Offset, ...], Field(max_length=16)]
    data_offsets: tuple[Offset, Offset]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: in the file.
        file: that holds it.
        dtype: safetensors' name, such as BF16.
        start, end: its bytes, counted from the beginning of the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@reader("safetensors file", at="path")
def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Args:
        path: of a regular file.

    Raises:
        InvalidInput: it is not a safetensors file, or shorter or longer than its header says.
    """
    place = one_line(path.name)
    if not path.is_file():
        raise InvalidInput(f"{place}: " + ("not a regular file" if path.exists() else "no such file"))
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_PREFIX_BYTES), "little")
        if size < _PREFIX_BYTES or length > size - _PREFIX_BYTES:
            raise InvalidInput(f"{place}: is no safetensors file, or cut off in its header; take a new copy")
        if length > MAX_HEADER_BYTES:
            raise InvalidInput(
                f"{place}: its header must be at most {short_bytes(MAX_HEADER_BYTES)}, is {short_bytes(length)}"
            )
        data = parse_json(file.read(length), place)
    if not isinstance(data, dict):
        raise InvalidInput(f"{place}: its header must be a JSON object; take a new copy")
    begin = _PREFIX_BYTES + length
    found = [_stored(name, entry, path, begin) for name, entry in data.items() if name != "__metadata__"]
    _check_layout(found, begin, size, place)
    return {tensor.name: tensor for tensor in found}


def _stored(name: str, entry: object, path: Path, begin: int) -> StoredTensor:
    place = one_line(f"{path.name}: tensor {name!r:.120}")
    told = checked(_Entry, entry, place)
    if told.dtype not in ITEM_BYTES:
        raise InvalidInput(f"{place}: its element type {told.dtype!r:.20} is unknown; convert it to F32 or BF16")
    start, end = told.data_offsets
    if end - start != prod(told.shape) * ITEM_BYTES[told.dtype]:
        raise InvalidInput(
            f"{place}: {told.dtype} {list(told.shape)} does not fit its {end - start} bytes; take a new copy"
        )
    return StoredTensor(name, path, told.dtype, told.shape, begin + start, begin + end)


def _check_layout(tensors: list[StoredTensor], begin: int, size: int, place: str) -> None:
    """Tensors must fill the file, one after the other, as safetensors demands."""
    end = begin
    for tensor in sorted(tensors, key=lambda t: (t.start, t.end)):
        if tensor.start != end:
            raise InvalidInput(f"{place}: tensor {tensor.name!r:.120} overlaps another or leaves a hole")
        end = tensor.end
    if end != size:
        word = "cut off" if end > size else "too long"
        raise InvalidInput(
            f"{place}: is {word}: its header tells of {end} bytes, it has {size}; take a new copy of the file"
        )


def values_of(tensor: StoredTensor) -> np.ndarray:
    """A small tensor's values, of floating point as float32. Raises OSError, and KeyError for another element type."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.start, os.SEEK_SET)
        content = file.read(tensor.end - tensor.start)
    values = np.frombuffer(content, NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)
    if tensor.dtype == "BF16":  # the upper half of a float32
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def same_bytes(one: StoredTensor, other: StoredTensor, piece: int = 2**20) -> bool:
    """Whether two tensors hold the same values, byte by byte. Raises OSError."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left = one.end - one.start
    with one.file.open("rb") as a, other.file.open("rb") as b:
        a.seek(one.start, os.SEEK_SET)
        b.seek(other.start, os.SEEK_SET)
        while left:
            count = min(piece, left)
            if a.read(count) != b.read(count):
                return False
            left -= count
    return True
