"""A Hugging Face data set saved on disk (`dataset.save_to_disk`): a column of token ids, or of text as bytes.

It is mapped, not loaded, and nothing is downloaded: `load_from_disk` reads Arrow files and runs no code of the data
set. Rows are joined in their order, texts with a zero byte between them.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetplanner.data.interface import DataKind
from hetplanner.data.need import TokenNeed
from hetplanner.data.text import VOCAB
from hetplanner.data.windows import Windows, split_windows
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

TOKEN_COLUMNS = ("input_ids", "tokens", "ids")
TEXT_COLUMNS = ("text", "content")
TRAIN = "train"
VALIDATION = ("validation", "valid", "val", "test")
ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Rows:
    """Rows of a column in a row.

    Attributes:
        dataset: with this column alone, giving Arrow tables.
        start_R: where each row begins in the stream, and behind the last where a next one would.
        gap: zeros between rows: 1 for text, 0 for tokens.
    """

    dataset: Any
    start_R: np.ndarray
    gap: int

    @property
    def num_tokens(self) -> int:
        """How many."""
        return max(0, int(self.start_R[-1]) - self.gap)

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids [count] from `first` on."""
        out = np.zeros(count, dtype=np.uint8 if self.gap else np.int64)
        end = first + count
        r = int(np.searchsorted(self.start_R, first, side="right")) - 1
        last = int(np.searchsorted(self.start_R, end, side="left"))
        column = self.dataset[r:last].column(0)
        for row in range(r, last):
            begin, after = int(self.start_R[row]), int(self.start_R[row + 1]) - self.gap
            a, b = max(first, begin), min(end, after)
            if a < b:
                out[a - first : b - first] = self._values(column[row - r])[a - begin : b - begin]
        return out

    def _values(self, scalar: Any) -> np.ndarray:
        if self.gap:
            return np.frombuffer(scalar.as_buffer(), dtype=np.uint8)
        return scalar.values.to_numpy(zero_copy_only=False).astype(np.int64)


def open_saved_dataset(path: Path, need: TokenNeed) -> Windows:
    """Maps a saved Dataset or DatasetDict.

    Raises:
        InvalidInput: `datasets` is missing, the folder is broken, has no column that fits, or is too short.
    """
    loaded = load_saved(path)
    if not hasattr(loaded, "keys"):
        return split_windows(str(path), need, _rows(loaded, str(path), need), None)
    if TRAIN not in loaded:
        raise InvalidInput(f"data: {path} has the splits {', '.join(loaded)}; name the one to train on {TRAIN!r}")
    validation = next((name for name in VALIDATION if name in loaded), None)
    return split_windows(
        str(path),
        need,
        _rows(loaded[TRAIN], f"{path}: {TRAIN}", need),
        None if validation is None else _rows(loaded[validation], f"{path}: {validation}", need),
    )


def load_saved(path: Path) -> Any:
    """A saved Dataset or DatasetDict, mapped. Raises InvalidInput: `datasets` is missing, or the folder is broken."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise InvalidInput(
            f"data: {path} is a saved Hugging Face data set; install `pip install 'hetplanner[datasets]'` to read it"
        ) from None
    try:
        return load_from_disk(str(path))
    except Exception as error:  # of Arrow, json, fsspec or datasets itself: there is no common class
        log.info("load_from_disk failed", exc_info=True)
        said = one_line((str(error).strip().splitlines() or [""])[0])
        raise InvalidInput(
            f"data: {path} cannot be read as a saved Hugging Face data set ({type(error).__name__}: {said:.200}); save"
            " it again with dataset.save_to_disk"
        ) from None


def _rows(dataset: "Dataset", name: str, need: TokenNeed) -> Rows:
    """The stream of one split."""
    column, is_text = _column(dataset, name)
    if is_text and need.vocab is not None and need.vocab < VOCAB:
        raise InvalidInput(
            f"workload {need.workload}: vocab must be at least {VOCAB} for byte-level text, got {need.vocab}; save the"
            " data set with a column of token ids (input_ids)"
        )
    gap = 1 if is_text else 0
    arrow = dataset.select_columns([column]).with_format("arrow")
    parts = [np.zeros(1, dtype=np.int64)]
    for table in arrow.iter(batch_size=ROWS_AT_ONCE):
        parts.append(_lengths(table, name) + gap)
    return Rows(arrow, np.cumsum(np.concatenate(parts)), gap)


def _lengths(table: Any, name: str) -> np.ndarray:
    """Of the rows of a table's first column. Arrow follows damaged offsets out of the mapped file: the process dies."""
    import pyarrow as pa

    try:
        table.validate()  # buffers have their size, and the first and the last offset are inside
    except pa.ArrowException as error:
        raise _damaged(name, str(error)) from None
    parts = [np.zeros(0, dtype=np.int64)]
    for chunk in table.column(0).chunks:
        if not len(chunk):
            continue
        is_large = pa.types.is_large_string(chunk.type) or pa.types.is_large_list(chunk.type)
        offsets = np.frombuffer(chunk.buffers()[1], dtype=np.int64 if is_large else np.int32)
        length_R = np.diff(offsets[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64))
        if (length_R < 0).any():
            raise _damaged(name, "a row ends before it begins")
        parts.append(np.where(chunk.is_null().to_numpy(zero_copy_only=False), 0, length_R))
    return np.concatenate(parts)


def _damaged(name: str, text: str) -> InvalidInput:
    return InvalidInput(f"data: {name} is damaged ({text:.200}); save it again with dataset.save_to_disk")


def _column(dataset: "Dataset", name: str) -> tuple[str, bool]:
    """(column, whether it is text): token ids by their usual names, then text, then the only one there is."""
    import pyarrow as pa

    types = {field.name: field.type for field in dataset.features.arrow_schema}
    texts = [c for c, t in types.items() if pa.types.is_string(t) or pa.types.is_large_string(t)]
    lists = [
        c
        for c, t in types.items()
        if (pa.types.is_list(t) or pa.types.is_large_list(t)) and pa.types.is_integer(t.value_type)
    ]
    for wanted, found, is_text in ((TOKEN_COLUMNS, lists, False), (TEXT_COLUMNS, texts, True)):
        for column in wanted:
            if column in found:
                return column, is_text
    if len(lists) + len(texts) == 1:
        return (lists + texts)[0], bool(texts)
    raise InvalidInput(
        f"data: {name} has the columns {', '.join(f'{c} ({t})' for c, t in types.items()):.300}; none is called"
        f" {', '.join(TOKEN_COLUMNS)} (lists of ids) or {', '.join(TEXT_COLUMNS)}; rename one"
    )


def is_saved_dataset(path: Path) -> bool:
    """Whether it is such a folder, told from the names of its files."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )


SAVED_DATASETS = DataKind(
    "datasets", "a Hugging Face data set (save_to_disk)", "tokens", is_saved_dataset, open_saved_dataset
)
