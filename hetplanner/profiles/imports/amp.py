"""Profiles as AMP publishes them: `<model>_<kind>_<degree>.npy`, seconds of the forward of one sample, by layer.

The backward counts as two forwards, as AMP has it. Layers that compute nothing (AMP's `noop` entries around the
blocks) are added to the block beside them.

Source: Li et al. 2022 (AMP, NeurIPS), its `known_cost`.
"""

import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from hetplanner.cluster.formats.npy import array_of_npy
from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import SPLIT, Cell, Named, ProfileFormat
from hetplanner.profiles.model import MAX_LAYERS

_NAME = re.compile(r"(?P<model>.{1,80})_(?P<kind>[^_]{1,80})_(?P<degree>\d{1,3})\.npy")
FRONT, BEHIND = 2, 4
"""Entries in front of the blocks (embedding, no-op) and behind them (two no-ops, head, no-op)."""


def read_amp(files: Sequence[Named]) -> list[Cell]:
    """The cells of files, one each. Raises InvalidInput."""
    return [_cell(file) for file in files]


def _cell(file: Named) -> Cell:
    said = _NAME.fullmatch(file.name)
    if said is None:
        raise InvalidInput(f"{file.name}: must be called MODEL_KIND_DEGREE.npy, as AMP names them")
    numbers = array_of_npy(file.name, file.content, ndim=1, check=partial(_check_count, file.name))
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InvalidInput(f"{file.name}: must hold seconds of 0 or more")
    forward = [numbers[:FRONT].sum(), *numbers[FRONT:-BEHIND], numbers[-BEHIND:].sum()]
    layers = tuple((float(s), float(s) * (SPLIT - 1.0), None) for s in forward)
    return Cell(said["kind"], int(said["degree"]), 1, layers)


def _check_count(place: str, count: int) -> None:
    if not FRONT + BEHIND < count <= MAX_LAYERS:
        raise InvalidInput(
            f"{place}: must hold {FRONT + BEHIND + 1} to {MAX_LAYERS} numbers: embedding, blocks, head, and"
            f" {FRONT + BEHIND - 2} entries between; has {count}"
        )


AMP = ProfileFormat(
    name="amp",
    summary="AMP's MODEL_KIND_DEGREE.npy: forward seconds of one sample by layer",
    is_of=lambda file: file.name.endswith(".npy"),
    read=read_amp,
)
