"""Profiles as AMP publishes them: `<model>_<kind>_<degree>.npy`, seconds of the forward of one sample, by layer.

The backward counts as two forwards, as AMP has it. Layers that compute nothing (AMP's `noop` entries around the
blocks) are added to the block beside them.

Source: Li et al. 2022 (AMP, NeurIPS), its `known_cost`.
"""

import io
import re
from collections.abc import Sequence

import numpy as np

from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import SPLIT, Cell, Named, ProfileFormat
from hetplanner.reading import reader

_NAME = re.compile(r"(?P<model>.{1,80})_(?P<kind>[^_]{1,80})_(?P<degree>\d{1,3})\.npy")
FRONT, BEHIND = 2, 4
"""Entries in front of the blocks (embedding, no-op) and behind them (two no-ops, head, no-op)."""


@reader("profile of AMP", at="files")
def read_amp(files: Sequence[Named]) -> list[Cell]:
    """The cells of files, one each. Raises InvalidInput."""
    return [_cell(file) for file in files]


def _cell(file: Named) -> Cell:
    said = _NAME.fullmatch(file.name)
    if said is None:
        raise InvalidInput(f"{file.name}: must be called MODEL_KIND_DEGREE.npy, as AMP names them")
    try:
        values = np.load(io.BytesIO(file.content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput(f"{file.name}: is no NPY table of numbers: {error}") from None
    if values.ndim != 1 or values.dtype.kind not in "fiu" or len(values) <= FRONT + BEHIND:
        raise InvalidInput(
            f"{file.name}: must be one row of more than {FRONT + BEHIND} numbers (embedding, blocks, head and"
            f" {FRONT + BEHIND - 2} entries between), got shape {values.shape}"
        )
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InvalidInput(f"{file.name}: must hold seconds of 0 or more")
    forward = [numbers[:FRONT].sum(), *numbers[FRONT:-BEHIND], numbers[-BEHIND:].sum()]
    layers = tuple((float(s), float(s) * (SPLIT - 1.0), None) for s in forward)
    return Cell(said["kind"], int(said["degree"]), 1, layers)


AMP = ProfileFormat(
    name="amp",
    summary="AMP's MODEL_KIND_DEGREE.npy: forward seconds of one sample by layer",
    is_of=lambda file: file.name.endswith(".npy"),
    read=read_amp,
)
