"""Rows of a table, one after the other: JSON lines, Parquet, or a saved Hugging Face data set; never a whole file.

Which columns are read says what a row is: a text, a prompt with its answer, or the messages of a chat.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.data.saved_datasets import is_saved_dataset, load_saved
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader

MAX_LINE_BYTES = 64 * 2**20
ROWS_AT_ONCE = 256
MESSAGES, TEXT = "messages", "text"
FILES = (".jsonl", ".parquet")
TRAIN = "train"


@dataclass(frozen=True)
class Columns:
    """What a row holds: a text, a prompt and its answer, or messages. All empty: found by the usual names."""

    text: str | None = None
    prompt: str | None = None
    answer: str | None = None
    messages: str | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput: more than one kind of row, or half of one."""
        if (self.prompt is None) != (self.answer is None):
            raise InvalidInput("prompt and answer: must come together (--prompt-column and --answer-column)")
        if sum(name is not None for name in (self.text, self.prompt, self.messages)) > 1:
            raise InvalidInput("columns: must be those of a text, of a prompt and an answer, or of messages, not both")

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are read."""
        return tuple(name for name in (self.text, self.prompt, self.answer, self.messages) if name is not None)


@dataclass(frozen=True)
class Row:
    """One of them.

    Attributes:
        place: for messages: file and number, from 1.
        values: by column.
    """

    place: str
    values: dict[str, Any]

    def text(self, column: str) -> str:
        """A column's text; empty where there is none. Raises InvalidInput: it holds something else."""
        value = self.values.get(column)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InvalidInput(f"{self.place}: {column} must be a text, got {type(value).__name__}")
        return value

    def messages(self, column: str) -> list[dict[str, Any]]:
        """A column's messages. Raises InvalidInput: it holds no list of messages with role and content."""
        value = self.values.get(column)
        if value is None:
            return []
        are_messages = isinstance(value, list) and all(
            isinstance(message, dict) and isinstance(message.get("role"), str) for message in value
        )
        if not are_messages:
            raise InvalidInput(f'{self.place}: {column} must be a list of messages {{"role": …, "content": …}}')
        found: list[dict[str, Any]] = value
        return found


def are_records(path: Path, columns: Columns) -> bool:
    """Whether a path holds rows, not plain text: by the columns that are wanted, or by its name."""
    return bool(columns.names) or is_saved_dataset(path) or bool(_files(path))


@reader("table of texts", at="path")
def read_rows(path: Path, columns: Columns) -> tuple[Columns, Iterator[Row]]:
    """The columns that are read, and the rows.

    Args:
        path: a file, a folder of files, or a saved data set.
        columns: what to read; empty finds `messages` or `text`.

    Raises:
        InvalidInput: no such column, a file that cannot be read, or (from the rows) one that is damaged.
    """
    if is_saved_dataset(path):
        data = load_saved(path)
        data = data[TRAIN] if hasattr(data, "keys") and TRAIN in data else data
        if hasattr(data, "keys"):
            raise InvalidInput(f"{path}: has the splits {', '.join(data)}; give the folder of one of them")
        found = _chosen(path, columns, data.column_names)
        return found, _saved_rows(path, data.select_columns(list(found.names)))
    files = _files(path) or [path]
    found = _chosen(path, columns, _column_names(files[0]))
    return found, (row for file in files for row in _rows(file, found.names))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.suffix.lower() in FILES and p.is_file())
    return [path] if path.suffix.lower() in FILES else []


def _chosen(path: Path, columns: Columns, there: Sequence[str]) -> Columns:
    if not columns.names:
        usual = next((name for name in (MESSAGES, TEXT) if name in there), None)
        if usual is None:
            raise InvalidInput(
                f"{path}: has the columns {', '.join(there):.300}; name what to read: --column, --prompt-column with"
                " --answer-column, or --messages-column"
            )
        return Columns(messages=usual) if usual == MESSAGES else Columns(text=usual)
    missing = next((name for name in columns.names if name not in there), None)
    if missing is not None:
        raise InvalidInput(f"{path}: has no column {missing!r:.60}; it has {', '.join(there):.300}")
    return columns


def _column_names(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        return list(_parquet(path).schema_arrow.names)
    return list(next(_json_lines(path), ("", {}))[1])


def _rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, names)
        return
    for place, fields in _json_lines(path):
        missing = next((name for name in names if name not in fields), None)
        if missing is not None:
            raise InvalidInput(f"{place}: has no {missing!r:.60}; it has {', '.join(fields):.300}")
        yield Row(place, {name: fields[name] for name in names})


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, fields) of each line that is not empty."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                place = f"{path}: line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise InvalidInput(f"{place}: is longer than {MAX_LINE_BYTES} bytes; cut the text")
                if not line.strip():
                    continue
                try:
                    fields = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InvalidInput(f"{place}: is no JSON ({error!s:.100})") from None
                if not isinstance(fields, dict):
                    raise InvalidInput(f"{place}: must be a JSON object, got {type(fields).__name__}")
                yield place, fields
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InvalidInput(f"{path}: reading Parquet needs `pip install 'hetplanner[datasets]'`") from None
    try:
        return ParquetFile(path, memory_map=True)
    except (ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: is no Parquet file ({error!s:.100})") from None


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    from pyarrow import ArrowException

    file, number = _parquet(path), 0
    missing = next((name for name in names if name not in file.schema_arrow.names), None)
    if missing is not None:
        raise InvalidInput(f"{path}: has no column {missing!r:.60}; it has {', '.join(file.schema_arrow.names):.300}")
    try:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(names)):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"{path}: row {number}", values)
    except (ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"{path}: is damaged behind row {number} ({error!s:.100})") from None


def _saved_rows(path: Path, data: Any) -> Iterator[Row]:
    number = 0
    for batch in data.with_format("arrow").iter(batch_size=ROWS_AT_ONCE):
        for values in batch.to_pylist():
            number += 1
            yield Row(f"{path}: row {number}", values)
