"""Files of tensors in the format of safetensors, written without a copy in memory.

The library's own `save_file` makes the bytes of all tensors before it writes any: as much memory again as is saved.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

HEADER_TYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Safetensors' names of element types."""
ALIGNMENT = 8


def header(entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """What stands in front of the tensors' bytes: length, then JSON.

    Args:
        entries: dtype and shape by name, in the order of the bytes.
        metadata: words by name.
    """
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        described[name] = {"dtype": HEADER_TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file of tensors on the CPU. Raises OSError with the system's number (ENOSPC: full)."""
    # Wide elements first, so that all are aligned.
    ordered = dict(sorted(tensors.items(), key=lambda row: (-row[1].element_size(), row[0])))
    with path.open("wb") as file:
        file.write(header({name: (t.dtype, tuple(t.shape)) for name, t in ordered.items()}, metadata))
        for tensor in ordered.values():
            file.write(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
