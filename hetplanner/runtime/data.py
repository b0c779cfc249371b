"""A byte-level language-model data set over a folder of text files; no download.

Micro-batch m of step t is a pure function of (seed, t, m), whatever the plan: every rank draws the same offsets
and cuts only what it needs (tokens on the first stage, labels on the last).

Shape legend: B sequences in a micro-batch, T tokens.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.workload.workload import Workload

Split = Literal["train", "validation"]

VOCAB = 256
MAX_BYTES = 8 * 2**20
"""A corpus is cut off here (the standard library's first files give about this much)."""
MAX_FILE_BYTES = 2**20
MAX_FILES = 20_000
TEXT_SUFFIXES = frozenset(
    (".txt", ".md", ".rst", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".js", ".ts", ".java", ".json", ".csv", ".html",
     ".tex", ".org", ".text")
)  # fmt: skip
VALIDATION_OF_256 = 26
"""A file belongs to validation when the first byte of its path's hash is below this: about a tenth."""


@dataclass(frozen=True)
class Corpus:
    """Bytes of both splits, files joined in path order with a zero byte between them."""

    name: str
    train: np.ndarray
    validation: np.ndarray

    def split(self, which: Split) -> np.ndarray:
        """The bytes of one split."""
        return self.train if which == "train" else self.validation


def load_corpus(folder: str | None, workload: Workload) -> Corpus:
    """Reads a folder of text files.

    Args:
        folder: None takes the Python standard library's own sources.
        workload: gives the vocabulary (bytes need 256) and the sequence length that must fit.

    Raises:
        InvalidInput: no such folder, no text in it, unreadable, or too small for one sequence.
    """
    check_vocabulary(workload)
    root = Path(folder) if folder is not None else Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise InvalidInput(f"data: {root} is not a folder; give a folder of text files, or leave data out")
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for name, text in _texts(root):
        parts[hashlib.sha256(name.encode()).digest()[0] < VALIDATION_OF_256].append(text)
    if not parts[False] and not parts[True]:
        raise InvalidInput(f"data: {root} holds no text files ({', '.join(sorted(TEXT_SUFFIXES))}); add some")
    train, validation = (np.frombuffer(b"\0".join(parts[v]), dtype=np.uint8) for v in (False, True))
    if len(train) <= workload.seq_len:  # one or two files: split the text itself, nine to one
        whole = np.concatenate((train, validation))
        cut = len(whole) * 9 // 10
        train, validation = whole[:cut], whole[cut:]
    if len(train) <= workload.seq_len:
        raise InvalidInput(
            f"data: {root} holds {len(train)} bytes of training text, fewer than one sequence needs"
            f" (seq_len + 1 = {workload.seq_len + 1}); add text or plan with a shorter --seq-len"
        )
    if len(validation) <= workload.seq_len:
        validation = train[-(workload.seq_len + 1) :]
    return Corpus(str(root), train, validation)


def check_vocabulary(workload: Workload) -> None:
    """Bytes are tokens: the model must know 256 of them. Raises InvalidInput."""
    config = workload.transformer
    if config is not None and config.vocab < VOCAB:
        raise InvalidInput(
            f"workload {workload.name}: vocab must be at least {VOCAB} for byte-level text, got {config.vocab}"
        )


def _texts(root: Path) -> Iterator[tuple[str, bytes]]:
    """(path inside the folder, content) in path order until `MAX_BYTES` are read."""
    total = 0
    suffixes = {".py"} if root == Path(sysconfig.get_path("stdlib")) else TEXT_SUFFIXES
    for path in _files(root, suffixes):
        try:
            with path.open("rb") as file:
                text = file.read(min(MAX_FILE_BYTES, MAX_BYTES - total))
        except OSError as error:
            raise InvalidInput(
                f"data: {path} cannot be read: {error.strerror}; make it readable or remove it"
            ) from None
        if text:
            total += len(text)
            yield path.relative_to(root).as_posix(), text
        if total >= MAX_BYTES:
            return


def _files(root: Path, suffixes: set[str] | frozenset[str]) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("site-packages", "__pycache__") and not f.startswith("."))
        found += [Path(folder, n) for n in names if Path(n).suffix.lower() in suffixes and not n.startswith(".")]
        if len(found) > MAX_FILES:
            break
    return sorted(p for p in found if p.is_file())[:MAX_FILES]


@dataclass(frozen=True)
class Batches:
    """Draws micro-batches from a corpus."""

    corpus: Corpus
    seed: int
    micro_batch: int
    seq_len: int

    def draw(self, step: int, micro_batch: int, split: Split = "train") -> tuple[Tensor, Tensor]:
        """Tokens and labels [B, T] (int64) of one micro-batch; the labels are the tokens one place on."""
        text = self.corpus.split(split)
        key = np.array([self.seed, (step << 20) + micro_batch], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        starts_B = rng.integers(0, len(text) - self.seq_len, size=self.micro_batch)
        window_BT = text[starts_B[:, None] + np.arange(self.seq_len + 1)].astype(np.int64)
        both = torch.from_numpy(window_BT)
        return both[:, :-1], both[:, 1:]
