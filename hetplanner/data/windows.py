"""Samples of text: a long stream of tokens, cut into windows that do not overlap.

Shape legend: B samples of a micro-batch, T tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hetplanner.data.interface import Split
from hetplanner.data.need import TokenNeed
from hetplanner.errors import InvalidInput

MAX_CHECKED_TOKENS = 2**28
"""A check looks at this many ids at most, spread over the stream (about a second's work)."""
CHUNK_TOKENS = 2**22


class Stream(Protocol):
    """Tokens in a row, wherever they lie."""

    @property
    def num_tokens(self) -> int:
        """How many."""
        ...

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids [count] (any integers) from `first` on; raises InvalidInput naming a file that changed."""
        ...


@dataclass(frozen=True)
class ArrayStream:
    """Tokens of one array, mapped as a rule."""

    ids: np.ndarray

    @property
    def num_tokens(self) -> int:
        """How many."""
        return len(self.ids)

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids [count] from `first` on."""
        return self.ids[first : first + count]

    def read_many(self, first_B: np.ndarray, count: int) -> np.ndarray:
        """Ids [B, count] from several places on."""
        return sliding_window_view(self._plain, count)[first_B]

    @cached_property
    def _plain(self) -> np.ndarray:
        """The same without `np.memmap`, whose slices are slow to make."""
        return self.ids.view(np.ndarray)


@dataclass(frozen=True)
class Part:
    """Tokens `first` .. `end` of a stream: a split of it."""

    stream: Stream
    first: int
    end: int

    @property
    def num_tokens(self) -> int:
        """How many."""
        return self.end - self.first

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids [count] from the part's own `first` on."""
        return self.stream.read(self.first + first, count)


@dataclass(frozen=True)
class Windows:
    """Sample i: tokens i·T .. i·T + T, labels one place on."""

    name: str
    need: TokenNeed
    train: Stream
    validation: Stream

    @property
    def is_bytes(self) -> bool:
        """Whether ids are bytes of a text, no tokenizer's."""
        return self.train.read(0, 1).dtype == np.uint8

    def num_samples(self, split: Split) -> int:
        """Whole windows of a split."""
        return (self._stream(split).num_tokens - 1) // self.need.seq_len

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Tokens [B, T]."""
        return self._windows(split, ids_B, 0)

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """The tokens one place on [B, T]."""
        return self._windows(split, ids_B, 1)

    def check(self) -> None:
        """Compares ids with the vocabulary: all of them, or chunks spread over a stream that is very long."""
        for stream in (self.train, self.validation):
            if self.need.vocab is None or np.iinfo(stream.read(0, 1).dtype).max < self.need.vocab:
                continue  # bytes, say: no id can be too large
            for first, count in _checked_chunks(stream.num_tokens):
                check_ids(stream.read(first, count), self.need, self.name)

    def _stream(self, split: Split) -> Stream:
        return self.train if split == "train" else self.validation

    def _windows(self, split: Split, ids_B: np.ndarray, shift: int) -> np.ndarray:
        length = self.need.seq_len
        ids_BT = _read_many(self._stream(split), np.asarray(ids_B) * length + shift, length)
        check_ids(ids_BT, self.need, self.name)
        return ids_BT.astype(np.int64)


def _read_many(stream: Stream, first_B: np.ndarray, count: int) -> np.ndarray:
    """Ids [B, count] from several places on; of an array at once."""
    if isinstance(stream, Part):
        return _read_many(stream.stream, first_B + stream.first, count)
    if isinstance(stream, ArrayStream):
        return stream.read_many(first_B, count)
    return np.stack([stream.read(int(first), count) for first in first_B])


def _checked_chunks(num_tokens: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the chunks that a check looks at."""
    num_chunks = -(-num_tokens // CHUNK_TOKENS)
    stride = max(1, -(-num_chunks // (MAX_CHECKED_TOKENS // CHUNK_TOKENS)))
    for first in range(0, num_tokens, stride * CHUNK_TOKENS):
        yield first, min(CHUNK_TOKENS, num_tokens - first)


def check_stream(ids: np.ndarray, need: TokenNeed, name: str) -> None:
    """As `check_ids`, of all ids or of chunks spread over an array that is very long. Raises InvalidInput."""
    for first, count in _checked_chunks(len(ids)):
        check_ids(ids[first : first + count], need, name)


def check_ids(ids: np.ndarray, need: TokenNeed, name: str) -> None:
    """Token ids must be in the model's vocabulary. Raises InvalidInput."""
    if need.vocab is None or not ids.size:
        return
    if ids.dtype.kind == "u" and np.iinfo(ids.dtype).max < need.vocab:
        return
    for worst in (int(ids.max()), int(ids.min()) if ids.dtype.kind != "u" else 0):
        if not 0 <= worst < need.vocab:
            raise InvalidInput(
                f"data: {name} holds token id {worst}, but workload {need.workload} knows 0 to {need.vocab - 1};"
                " take the model's own tokenizer, or a model with a larger vocabulary"
            )


def split_windows(name: str, need: TokenNeed, train: Stream, validation: Stream | None) -> Windows:
    """Windows of both splits; without a validation stream of at least one window the last tenth of `train` is it.

    Where a tenth is less than a window, validation is the last window, which is trained on too.

    Raises:
        InvalidInput: there is no whole window to train on.
    """
    least = need.seq_len + 1
    if train.num_tokens < least:
        raise InvalidInput(
            f"data: {name} holds {train.num_tokens} tokens to train on, fewer than one sequence needs (seq_len + 1 ="
            f" {least}); add text or plan with a shorter --seq-len"
        )
    if validation is None or validation.num_tokens < least:
        end = train.num_tokens
        cut = end - max(least, end // 10)
        train, validation = Part(train, 0, cut if cut >= least else end), Part(train, max(0, cut), end)
    return Windows(name, need, train, validation)
