"""The one interface of kinds of data.

To add a kind: one file with a `DataKind` (how it is recognised, how it is opened) and a `Source`, one line in
`registry.KINDS`. Nothing here or there imports torch: the command line checks data before any process starts.

Shape legend: B samples of a micro-batch.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from hetplanner.data.need import ImageNeed, TokenNeed

Split = Literal["train", "validation"]

VALIDATION_OF_256 = 26
"""A file belongs to validation when the first byte of its path's hash is below this: about a tenth."""


class Source(Protocol):
    """Opened data that fits a workload: numbered samples of two splits, read when they are asked for."""

    @property
    def name(self) -> str:
        """What to call it in messages: a path or a word."""
        ...

    def num_samples(self, split: Split) -> int:
        """Samples of a split; above 0 in both."""
        ...

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """What the model reads: int64 [B, T] or float32 [B, C, H, W]. Raises InvalidInput naming a broken file."""
        ...

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """What it shall say: int64 [B, T] or [B]. Raises InvalidInput naming a broken file."""
        ...

    def check(self) -> None:
        """Reads a bounded share of the data for faults that opening does not show. Raises InvalidInput."""
        ...


@dataclass(frozen=True)
class DataKind:
    """One kind of data.

    Attributes:
        name: one word.
        looks_like: how to make some, for messages ("a folder of text files").
        gives: what a sample is.
        claims: whether a path is of this kind, told from names alone.
        open: path and need -> source. Raises InvalidInput.
        word: stands for it instead of a path.
    """

    name: str
    looks_like: str
    gives: Literal["tokens", "images"]
    claims: Callable[[Path], bool]
    open: Callable[[Path, Any], Source]
    word: str | None = None

    def fits(self, need: TokenNeed | ImageNeed) -> bool:
        """Whether samples are what the workload reads."""
        return (self.gives == "tokens") == isinstance(need, TokenNeed)


def is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one that exists; what is no link needs no system call."""
    return entry.is_file(follow_symlinks=False) or os.path.isfile(entry)


def is_held_out(name: str) -> bool:
    """Whether a file belongs to validation: told from its path inside the folder, whatever else is there."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()[0] < VALIDATION_OF_256
