"""Text files, byte by byte: a folder of them, one file, or the Python standard library's own sources.

Bytes are tokens whatever the model's vocabulary is; text in a tokenizer's ids comes as token files or as a Hugging
Face data set. Files stay on disk: an index of their sizes tells which of them a window lies in.
"""

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetplanner.data.interface import DataKind, is_held_out
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

    paths: tuple[Path, ...]
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


def _bytes(path: Path, first: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(first)
            found = file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(found) != count:
        raise InvalidInput(f"data: {path} got shorter while it was in use; start again with files that stay")
    return found


def _unreadable(path: Path, error: OSError) -> InvalidInput:
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
    found = [(p, _size(p)) for p in text_files(path)]
    sizes = [(p, size) for p, size in found if size]
    if not sizes:
        raise InvalidInput(f"data: {path} holds no text ({', '.join(sorted(SUFFIXES))}); add some")
    parts: dict[bool, list[tuple[Path, int]]] = {False: [], True: []}
    for p, size in sizes:
        parts[is_held_out(p.relative_to(root).as_posix())].append((p, size))
    train, validation = _joined(parts[False]), _joined(parts[True])
    if min(train.num_tokens, validation.num_tokens) <= need.seq_len:  # few files: cut the text itself
        return split_windows(str(path), need, _joined(sizes), None)
    return split_windows(str(path), need, train, validation)


def _joined(sizes: list[tuple[Path, int]]) -> Files:
    start_F = np.concatenate(([0], np.cumsum([size + 1 for _, size in sizes], dtype=np.int64)))
    return Files(tuple(p for p, _ in sizes), start_F)


def _size(path: Path) -> int:
    """Bytes of a file that can be opened."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def text_files(root: Path) -> list[Path]:
    """A folder's text files in path order, or the file itself. Raises InvalidInput: too many, or none can be read."""
    if not root.is_dir():
        return [root]

    def refuse(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error)

    suffixes = {".py"} if root == standard_library() else SUFFIXES
    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(f for f in folders if f not in ("site-packages", "__pycache__") and not f.startswith("."))
        found += [Path(folder, n) for n in names if Path(n).suffix.lower() in suffixes and not n.startswith(".")]
        if len(found) > MAX_FILES:
            raise InvalidInput(f"data: {root} holds more than {MAX_FILES} text files; join them, or give a part of it")
    return sorted(p for p in found if p.is_file())


def standard_library() -> Path:
    """The default: about 30 MB of Python on any machine, no download."""
    return Path(sysconfig.get_path("stdlib"))


def _claims(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in SUFFIXES


TEXT = DataKind("text", "a folder of text files, or one", "tokens", _claims, open_text)
