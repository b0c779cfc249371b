"""Text files, byte by byte: a folder of them, one file, or the Python standard library's own sources.

Bytes are tokens whatever the model's vocabulary is; text in a tokenizer's ids comes as token files or as a Hugging
Face data set. Files stay on disk: an index of their sizes tells which of them a window lies in.
"""

import itertools
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetplanner.data.interface import DataKind, is_file, is_held_out
from hetplanner.data.need import TokenNeed
from hetplanner.data.windows import Windows, split_windows
from hetplanner.errors import InvalidInput

VOCAB = 256
MAX_FILES = 200_000
SUFFIXES = frozenset(
    (".txt", ".md", ".rst", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".js", ".ts", ".java", ".json", ".csv", ".html",
     ".tex", ".org", ".text")
)  # fmt: skip


@dataclass(frozen=True)
class Files:
    """Files in a row, a zero byte between them.

    Attributes:
        paths: of files that are not empty.
        start_F: where each begins in the stream, and behind the last where a next one would.
    """

    paths: tuple[str, ...]
    start_F: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Bytes and zeros between."""
        return max(0, int(self.start_F[-1]) - 1)

    def read(self, first: int, count: int) -> np.ndarray:
        """Bytes [count] from `first` on. Raises InvalidInput when a file is gone or shorter than it was."""
        out = np.zeros(count, dtype=np.uint8)
        end = first + count
        for f in range(int(np.searchsorted(self.start_F, first, side="right")) - 1, len(self.paths)):
            begin, after = int(self.start_F[f]), int(self.start_F[f + 1]) - 1
            if begin >= end:
                break
            a, b = max(first, begin), min(end, after)
            if a < b:
                out[a - first : b - first] = np.frombuffer(_bytes(self.paths[f], a - begin, b - a), dtype=np.uint8)
        return out


def _bytes(path: str, first: int, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(first)
            found = file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(found) != count:
        raise InvalidInput(f"data: {path} got shorter while it was in use; start again with files that stay")
    return found


def _unreadable(path: str, error: OSError) -> InvalidInput:
    return InvalidInput(f"data: {path} cannot be read: {error.strerror}; make it readable or remove it")


def open_text(path: Path, need: TokenNeed) -> Windows:
    """Indexes text files; about a tenth of them (by their names) is for validation.

    Raises:
        InvalidInput: no text, an unreadable file, less than one sequence, or a vocabulary too small for bytes.
    """
    if need.vocab is not None and need.vocab < VOCAB:
        raise InvalidInput(
            f"workload {need.workload}: vocab must be at least {VOCAB} for byte-level text, got {need.vocab}"
        )
    root = path if path.is_dir() else path.parent
    sizes = [(p, size) for p in text_files(path) if (size := _size(p))]
    if not sizes:
        raise InvalidInput(f"data: {path} holds no text ({', '.join(sorted(SUFFIXES))}); add some")
    parts: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
    prefix = os.path.join(root, "")
    for p, size in sizes:
        parts[is_held_out(p.removeprefix(prefix))].append((p, size))
    train, validation = _joined(parts[False]), _joined(parts[True])
    if min(train.num_tokens, validation.num_tokens) <= need.seq_len:  # few files: cut the text itself
        return split_windows(str(path), need, _joined(sizes), None)
    return split_windows(str(path), need, train, validation)


def _joined(sizes: list[tuple[str, int]]) -> Files:
    start_F = np.concatenate(([0], np.cumsum([size + 1 for _, size in sizes], dtype=np.int64)))
    return Files(tuple(p for p, _ in sizes), start_F)


def _size(path: str) -> int:
    """Bytes of a file that can be opened."""
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def text_files(root: Path) -> list[str]:
    """A folder's text files in path order, or the file itself. Raises InvalidInput: too many, or none can be read."""
    if not root.is_dir():
        return [str(root)]

    suffixes = frozenset((".py",)) if root == standard_library() else SUFFIXES
    found = list(itertools.islice(_texts_in(str(root), suffixes), MAX_FILES + 1))
    if len(found) > MAX_FILES:
        raise InvalidInput(f"data: {root} holds more than {MAX_FILES} text files; join them, or give a part of it")
    return found


def _texts_in(folder: str, suffixes: frozenset[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None
    for entry in ordered:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in ("site-packages", "__pycache__"):
                yield from _texts_in(entry.path, suffixes)
        elif os.path.splitext(entry.name)[1].lower() in suffixes and is_file(entry):
            yield entry.path


def standard_library() -> Path:
    """The default: about 30 MB of Python on any machine, no download."""
    return Path(sysconfig.get_path("stdlib"))


def _accepts(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in SUFFIXES


TEXT = DataKind("text", "a folder of text files, or one", "tokens", _accepts, open_text)
