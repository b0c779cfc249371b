"""Tokens of each expert of a mixture of experts, as a matrix: a row for an op, a column for an expert.

Shape legend: O ops, E experts of the op that has most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.palettes import cividis

from hetplanner.arrays import FloatArray
from hetplanner.plots.theme import ink_on

PALETTE = tuple(cividis(256))
MOST_CELLS_WITH_TEXT = 256
MOST_COLUMNS_WITH_TEXT = 16
LEAST_TOP = 2.0
"""The colours reach at least to twice the even share, or chance alone would look like a fault."""


@dataclass(frozen=True)
class ExpertMatrix:
    """What a figure draws.

    Attributes:
        ops: names of the rows, in the order of the run.
        tokens_OE: how many tokens each expert took; NaN where an op has fewer experts.
        load_OE: the same over the op's mean: 1 is an even load.
        top: the value of the last colour.
    """

    ops: tuple[str, ...]
    tokens_OE: FloatArray
    load_OE: FloatArray
    top: float


def expert_matrix(loads: Mapping[str, Sequence[int]]) -> ExpertMatrix:
    """The matrix of `RunReader.expert_loads`; ops without experts are left out."""
    told = {op: tokens for op, tokens in loads.items() if tokens}
    tokens_OE = np.full((len(told), max(map(len, told.values()), default=0)), np.nan)
    load_OE = tokens_OE.copy()
    for row, tokens in enumerate(told.values()):
        tokens_OE[row, : len(tokens)] = tokens
        load_OE[row, : len(tokens)] = np.asarray(tokens) * (len(tokens) / max(1, sum(tokens)))
    return ExpertMatrix(tuple(told), tokens_OE, load_OE, max(LEAST_TOP, float(np.nanmax(load_OE, initial=0.0))))


def text_columns(matrix: ExpertMatrix) -> dict[str, list[Any]]:
    """Each expert's share of its op's tokens, for small matrices: x, y, text and ink; the first row is on top."""
    columns: dict[str, list[Any]] = {"x": [], "y": [], "text": [], "ink": []}
    rows, experts = matrix.load_OE.shape
    if rows * experts > MOST_CELLS_WITH_TEXT or experts > MOST_COLUMNS_WITH_TEXT:
        return columns
    for (row, expert), load in np.ndenumerate(matrix.load_OE):
        if not np.isnan(load):
            colour = PALETTE[min(len(PALETTE) - 1, int(load / matrix.top * len(PALETTE)))]
            share = load / np.count_nonzero(~np.isnan(matrix.load_OE[row]))
            cell = expert + 0.5, rows - row - 0.5, f"{share:.1%}", ink_on(colour)
            for column, value in zip(columns.values(), cell, strict=True):
                column.append(value)
    return columns
