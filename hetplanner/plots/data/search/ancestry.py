"""Where the best placement of a search comes from, as marks and the lines between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.plots.data.curves import value_text

Columns = dict[str, list[Any]]
BIRTH_NAMES = ("x", "value", "way", "shape", "text")
WAYS = {"seed": "first layout", "annealed": "annealed", "crossed": "crossing of two"}


def birth_columns(ancestry: Sequence[Ancestor], objective: str) -> Columns:
    """One row for every birth: x (placements scored by then, at least 1), value, way, shape ('4 × 16'), text."""
    columns: Columns = {name: [] for name in BIRTH_NAMES}
    for one in ancestry:
        before = " and ".join(value_text(ancestry[k].value, objective) for k in one.parents)
        text = f"{value_text(one.value, objective)}{f', from {before}' if before else ''}"
        row = max(1, one.evaluations), one.value, one.way, one.shape, text
        for name, item in zip(BIRTH_NAMES, row, strict=True):
            columns[name].append(item)
    return columns


def descent_lines(ancestry: Sequence[Ancestor]) -> Columns:
    """A line from every parent to its child: xs and ys of both."""
    pairs = [(ancestry[k], child) for child in ancestry for k in child.parents]
    return {
        "xs": [np.array([max(1, a.evaluations), max(1, b.evaluations)], dtype=np.float64) for a, b in pairs],
        "ys": [np.array([a.value, b.value]) for a, b in pairs],
    }
