"""A table of measured layers as CSV: what any other tool's numbers can be written as.

Columns: `kind` (may be absent), `degree` (1 if absent), `micro_batch`, `layer`, `forward_s`, `backward_s`, and, where
known, `update_s` and `kept_bytes`. A layer is a number from 0 in the model's order, or a name as `hetplanner profile`
prints it (embedding, block, head).
"""

import csv
import io
from collections.abc import Mapping, Sequence

from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import MOST_CELLS, Cell, Named, ProfileFormat

NEEDED = ("micro_batch", "layer", "forward_s", "backward_s")
KNOWN = ("kind", "degree", *NEEDED, "update_s", "kept_bytes")
MAX_LINES = 100_000

Row = tuple[str, tuple[float, float, float | None], float | None]
"""Layer, seconds, bytes."""


def read_csv(files: Sequence[Named]) -> list[Cell]:
    """The cells of files. Raises InvalidInput naming file and line."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for file in files:
        for place, line in _lines(file):
            key = (line.get("kind") or "", _whole(line, "degree", place, 1), _whole(line, "micro_batch", place))
            seconds = (_number(line, "forward_s", place), _number(line, "backward_s", place), None)
            update, kept = (
                _number(line, name, place) if line.get(name) else None for name in ("update_s", "kept_bytes")
            )
            found.setdefault(key, []).append((line["layer"], (*seconds[:2], update), kept))
            if len(found) > MOST_CELLS:
                raise InvalidInput(f"{place}: must hold at most {MOST_CELLS} kinds, degrees and micro-batches together")
    return [_cell(key, rows) for key, rows in found.items()]


def _lines(file: Named) -> list[tuple[str, Mapping[str, str]]]:
    try:
        table = csv.DictReader(io.StringIO(file.content.decode("utf-8-sig"), newline=""), strict=True)
        names = [(name or "").strip() for name in table.fieldnames or ()]
        _check_columns(names, file.name)
        table.fieldnames = names
        found: list[tuple[str, Mapping[str, str]]] = []
        for number, row in enumerate(table, start=2):
            place = f"{file.name}:{number}"
            if number > MAX_LINES:
                raise InvalidInput(f"{file.name}: must have at most {MAX_LINES} lines")
            if None in row:
                raise InvalidInput(f"{place}: has more cells than columns")
            found.append((place, {name: (value or "").strip() for name, value in row.items()}))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{file.name}: is no CSV text: {error}") from None
    return found


def _check_columns(names: Sequence[str], place: str) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise InvalidInput(f"{place}: column {missing[0]} is missing; the columns are {', '.join(KNOWN)}")
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise InvalidInput(f"{place}: unknown column {unknown[0]!r:.40}; the columns are {', '.join(KNOWN)}")


def _whole(line: Mapping[str, str], name: str, place: str, otherwise: int | None = None) -> int:
    text = line.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise InvalidInput(f"{place}: {name}: must be a whole number from 1, got {text!r:.40}")
    return int(text)


def _number(line: Mapping[str, str], name: str, place: str) -> float:
    text = line.get(name, "")
    try:
        number = float(text)
    except ValueError:
        raise InvalidInput(f"{place}: {name}: must be a number, got {text!r:.40}") from None
    if not 0 <= number < 1e18:
        raise InvalidInput(f"{place}: {name}: must be 0 or more, got {text!r:.40}")
    return number


def _cell(key: tuple[str, int, int], rows: list[Row]) -> Cell:
    kind, degree, size = key
    names = [name for name, _, _ in rows]
    where = f"{kind or 'the device'} at micro-batch {size}, degree {degree}"
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"layer {twice!r:.60} of {where} is given twice")
    if all(name.isdecimal() and len(name) < 6 for name in names):
        rows = sorted(rows, key=lambda row: int(row[0]))
        gap = next((i for i, row in enumerate(rows) if int(row[0]) != i), None)
        if gap is not None:
            raise InvalidInput(f"layer {gap} of {where} is missing; layers are numbered from 0 without a gap")
        names = []
    seconds, kept = tuple(row[1] for row in rows), tuple(row[2] for row in rows)
    return Cell(kind, degree, size, seconds, kept, tuple(names) or None)


CSV = ProfileFormat(
    name="csv",
    summary="a table with the columns " + ", ".join(KNOWN),
    is_of=lambda file: file.name.endswith(".csv"),
    read=read_csv,
)
