"""Weights of a Hugging Face model folder, into the stages that a rank holds.

A rank maps one file at a time and copies what its stages need. The mapping is given back after some bytes, so that a
rank never holds more than its stages and one such piece.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from hetplanner.reading import reading
from hetplanner.runtime.model.build import StageModel
from hetplanner.weights.check import InitialWeights
from hetplanner.weights.header import StoredTensor
from hetplanner.weights.names import Part

PIECE_BYTES = 8 * 2**20
"""Of a file that are mapped at once, but for a single row that is larger."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor in a file, and where they go. A number without axes has no rows."""

    target: Tensor
    tensor: StoredTensor
    first: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        rows = self.tensor.shape[0] if self.tensor.shape else 1
        return (self.tensor.end - self.tensor.start) * (self.end - self.first) // max(1, rows)


@torch.no_grad()
def load_pretrained(
    models: Sequence[StageModel], weights: InitialWeights, advance: Callable[[], None] = lambda: None
) -> int:
    """Writes what a folder has of some stages' weights and running statistics; optimisers are left alone.

    A model's folder has all but adapters, and a folder of adapters has these alone.

    Args:
        models: stages that a rank holds; of the same workload that `weights` was checked for.
        weights: from `check_weights` or `check_adapter`.
        advance: called as the loading gets on.

    Returns:
        Bytes read.

    Raises:
        InvalidInput: a file has changed since the check, or cannot be read.
    """
    pieces = [
        piece
        for model in models
        for ours, values in (model.named_weights() | model.running).items()
        for part, tensor in weights.parts.get(ours, ())
        for piece in _pieces(values, part, tensor)
    ]
    pieces.sort(key=lambda piece: (piece.tensor.file, piece.tensor.start, piece.first))
    for file, group in _groups(pieces):
        _copy(file, group)
        advance()
    for model in models:
        model.load_running({name: values.clone() for name, values in model.running.items()})
    return sum(piece.num_bytes for piece in pieces)


def _pieces(values: Tensor, part: Part, tensor: StoredTensor) -> Iterator[_Piece]:
    """A tensor in ranges of rows of at most `PIECE_BYTES`, one row at least."""
    if not tensor.shape:
        yield _Piece(values, tensor, 0, 1)
        return
    if values.ndim > len(part.shape):
        values = values.flatten(0, values.ndim - len(part.shape))
    rows = values[part.first_row : part.first_row + part.num_rows]
    target = rows.T if part.transposed else rows
    row_bytes = (tensor.end - tensor.start) // max(1, tensor.shape[0])
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for first in range(0, tensor.shape[0], step):
        end = min(first + step, tensor.shape[0])
        yield _Piece(target[first:end], tensor, first, end)


def _groups(pieces: Iterable[_Piece]) -> Iterator[tuple[Path, list[_Piece]]]:
    """Pieces of one file that are mapped together."""
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        if group and (piece.tensor.file != group[0].tensor.file or size + piece.num_bytes > PIECE_BYTES):
            yield group[0].tensor.file, group
            group, size = [], 0
        group.append(piece)
        size += piece.num_bytes
    if group:
        yield group[0].tensor.file, group


def _copy(path: Path, group: Iterable[_Piece]) -> None:
    with reading(str(path), "safetensors file"), safe_open(path, framework="pt") as file:
        for piece in group:
            if piece.tensor.shape:
                piece.target.copy_(file.get_slice(piece.tensor.name)[piece.first : piece.end])
            else:
                piece.target.copy_(file.get_tensor(piece.tensor.name))
