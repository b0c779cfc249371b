"""Square tables of numbers from strangers: CSV with names, or NPY without; every bad cell is named.

Bandwidth stands in Gbit/s and latency in ms, one way unless the caller says round trip.
Shape legend: N rows (devices or sites).
"""

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from hetplanner.cluster.formats.npy import array_of_npy
from hetplanner.cluster.formats.spreadsheet import guarded, unguarded
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import one_line, read_text
from hetplanner.units import short_bytes

TableSource = str | os.PathLike[str] | tuple[str, bytes]
"""A file's path, or a name with the content (an upload)."""

Quantity = Literal["bandwidth", "latency"]

MAX_ROWS = 512
"""Most rows of a table: 512² = 262,144 links. Larger clusters are written in the site form."""
MAX_TABLE_BYTES = 16 * 2**20

# The same laws as for links in cluster files: 1 B/s to 1 PB/s, and up to 10^6 s.
_LIMITS: dict[Quantity, tuple[float, float, str]] = {
    "bandwidth": (8e-9, 8e6, "Gbit/s"),
    "latency": (0.0, 1e9, "ms"),
}


@dataclass(frozen=True)
class Matrix:
    """A checked table: row from, column to.

    Attributes:
        place: what to call it in messages.
        labels: names of rows and columns; None where the form has none (NPY).
        values_NN: in the table's unit; NaN on the diagonal where it is blank.
    """

    place: str
    labels: tuple[str, ...] | None
    values_NN: np.ndarray

    def in_order(self, labels: Sequence[str]) -> np.ndarray:
        """The values with rows and columns in the order of `labels`.

        Raises:
            InvalidInput: if the table names others than these.
        """
        if self.labels is None:
            if len(labels) != len(self.values_NN):
                raise InvalidInput(
                    f"{self.place}: must have {len(labels)} rows, one for each name, has {len(self.values_NN)}"
                )
            return self.values_NN
        row = {name: i for i, name in enumerate(self.labels)}
        for name in labels:
            if name not in row:
                raise InvalidInput(f"{self.place}: has no row {name!r:.60}; add it or correct the name")
        for name in self.labels:
            if name not in set(labels):
                raise InvalidInput(f"{self.place}: row {name!r:.60} is not among the {len(labels)} known; remove it")
        order = [row[name] for name in labels]
        return self.values_NN[np.ix_(order, order)]


def read_source(source: TableSource) -> tuple[str, bytes]:
    """Name and content of a table. Raises InvalidInput (missing, too large)."""
    if isinstance(source, tuple):
        name, data = source
        if len(data) > MAX_TABLE_BYTES:
            raise InvalidInput(f"{one_line(name)}: must be at most {short_bytes(MAX_TABLE_BYTES)}")
        return one_line(name), data
    return one_line(Path(source).name), read_text(source, MAX_TABLE_BYTES)


@reader("table of links", at="source")
def read_matrix(source: TableSource, quantity: Quantity, *, diagonal: bool = False) -> Matrix:
    """A table from a `.npy` file (no names) or a CSV (names in the first row and the first column).

    The diagonal may be blank or no number; every other cell must be a number in range.

    Args:
        source: path, or name and content.
        quantity: bandwidth in Gbit/s, or latency in ms.
        diagonal: whether a number on the diagonal is meant, and must be in range.

    Raises:
        InvalidInput: not square, ragged, unequal names, or a bad cell, which is named.
    """
    place, data = read_source(source)
    if not data.strip():
        raise InvalidInput(f"{place}: the file is empty; it must hold a square table of numbers")
    matrix = _from_npy(place, data) if data[:6] == b"\x93NUMPY" else _from_csv(place, data)
    _check_cells(matrix, quantity, diagonal)
    return matrix


def matrix_from_rows(rows: Sequence[Sequence[float | None]], place: str, quantity: Quantity) -> Matrix:
    """A table from lists of numbers, its diagonal meant (None there is blank). Raises InvalidInput."""
    _check_size(place, len(rows), len(rows))
    for i, row in enumerate(rows):
        if len(row) != len(rows):
            raise InvalidInput(f"{place}[{i}]: must have {len(rows)} numbers, as many as rows, has {len(row)}")
    matrix = Matrix(place, None, np.array([[math.nan if v is None else v for v in row] for row in rows]))
    _check_cells(matrix, quantity, diagonal=True)
    return matrix


def read_rows(place: str, data: bytes) -> list[list[str]]:
    """Rows of a CSV, blank lines left out, names as they were before `guarded`. Raises InvalidInput."""
    if data.startswith(b"PK\x03\x04"):
        raise InvalidInput(f"{place}: this is a spreadsheet or an archive; save the sheet as CSV and give that")
    try:
        rows = list(csv.reader(data.decode("utf-8-sig").splitlines(), strict=True))
    except UnicodeDecodeError:
        raise InvalidInput(f"{place}: must be UTF-8 text (CSV) or NPY") from None
    except csv.Error as error:
        raise InvalidInput(one_line(f"{place}: not CSV: {error}")) from None
    return [[unguarded(cell.strip()) for cell in row] for row in rows if any(cell.strip() for cell in row)]


def _from_csv(place: str, data: bytes) -> Matrix:
    rows = read_rows(place, data)
    if len(rows) < 2:
        raise InvalidInput(f"{place}: must have a row of names and a row for each of them, has {len(rows)} rows")
    labels = rows[0][1:]
    _check_size(place, len(rows) - 1, len(labels))
    for i, (row, label) in enumerate(zip(rows[1:], labels, strict=True), start=2):
        if row[0] != label:
            raise InvalidInput(
                f"{place}: row {i}: must be named {label!r:.60}, as the column is, got {row[0]!r:.60};"
                " rows and columns have the same names in the same order"
            )
        if len(row) != len(labels) + 1:
            raise InvalidInput(f"{place}: row {label!r:.60}: must have {len(labels)} cells, has {len(row) - 1}")
    twice = next((name for name in labels if labels.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{place}: column {twice!r:.60} is there twice; rename or remove one")
    values_NN = np.array(
        [[_cell(place, labels, i, j, text) for j, text in enumerate(row[1:])] for i, row in enumerate(rows[1:])]
    )
    return Matrix(place, tuple(labels), values_NN)


def _cell(place: str, labels: Sequence[str], i: int, j: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        if i == j:
            return math.nan
        raise InvalidInput(f"{_where(place, labels, i, j)}: must be a number, got {text!r:.40}") from None


def _where(place: str, labels: Sequence[str] | None, i: int, j: int) -> str:
    if labels is None:
        return f"{place}: row {i}, column {j} (from 0)"
    return f"{place}: row {labels[i]!r:.60}, column {labels[j]!r:.60}"


def _check_size(place: str, rows: int, columns: int) -> None:
    if rows == 0 or columns == 0:
        raise InvalidInput(
            f"{place}: holds no numbers; it must be a square table with a row and a column for each name"
        )
    if rows != columns:
        raise InvalidInput(
            f"{place}: must be square, has {rows} rows and {columns} columns of numbers; give every pair of names"
        )
    if rows > MAX_ROWS:
        raise InvalidInput(
            f"{place}: must have at most {MAX_ROWS} rows, has {rows}; write the cluster in its site form"
        )


def _from_npy(place: str, data: bytes) -> Matrix:
    return Matrix(place, None, array_of_npy(place, data, ndim=2, check=partial(_check_size, place)))


def _check_cells(matrix: Matrix, quantity: Quantity, diagonal: bool) -> None:
    least, most, unit = _LIMITS[quantity]
    values_NN = matrix.values_NN
    bad_NN = ~((values_NN >= least) & (values_NN <= most))
    np.fill_diagonal(bad_NN, bad_NN.diagonal() & ~np.isnan(values_NN.diagonal()) if diagonal else False)
    bad = np.argwhere(bad_NN)
    if len(bad):
        i, j = bad[0]
        law = "above 0" if quantity == "bandwidth" and values_NN[i, j] <= 0 else f"from {least:g} to {most:g}"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise InvalidInput(
            f"{_where(matrix.place, matrix.labels, i, j)}: {quantity} must be {law} {unit},"
            f" got {values_NN[i, j]:g}{more}"
        )


def csv_of_matrix(labels: Sequence[str], texts: Sequence[Sequence[str]]) -> str:
    """A CSV with names in the first row and column, which no spreadsheet takes for formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [guarded(label) for label in labels]
    writer.writerow(["", *names])
    writer.writerows([name, *row] for name, row in zip(names, texts, strict=True))
    return out.getvalue()
