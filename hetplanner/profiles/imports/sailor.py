"""Profiles as Sailor publishes them: `{micro-batch: {degree: {layer: [forward, backward, update]}}}`, seconds, JSON.

Layer 0 is the embedding, the last the head. The kind of GPU is not in the file.

Source: Strati et al. 2025 (Sailor, SOSP), the profiles beside its planner.
"""

from collections.abc import Sequence
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import Cell, Named, ProfileFormat
from hetplanner.schema import parse_json


def _is_of(file: Named) -> bool:
    if not file.name.endswith(".json"):
        return False
    data = parse_json(file.content, file.name)
    return isinstance(data, dict) and bool(data) and all(key.isdecimal() for key in data)


def read_sailor(files: Sequence[Named]) -> list[Cell]:
    """The cells of files. Raises InvalidInput."""
    return [cell for file in files for cell in _cells(parse_json(file.content, file.name), file.name)]


def _cells(data: Any, place: str) -> list[Cell]:
    found = []
    for size, degrees in _numbered(data, place):
        for degree, layers in _numbered(degrees, f"{place}: {size}"):
            where = f"{place}: {size}.{degree}"
            by_layer = dict(_numbered(layers, where))
            if sorted(by_layer) != list(range(len(by_layer))):
                missing = next(i for i in range(len(by_layer)) if i not in by_layer)
                raise InvalidInput(f"{where}: layers must be numbered from 0 without a gap; {missing} is missing")
            rows = [_row(by_layer[i], f"{where}.{i}") for i in range(len(by_layer))]
            found.append(Cell("", degree, size, tuple(rows)))
    return found


def _numbered(data: Any, place: str) -> list[tuple[int, Any]]:
    if not isinstance(data, dict) or not data or not all(str(key).isdecimal() for key in data):
        raise InvalidInput(f"{place}: must be an object whose names are whole numbers")
    return [(int(key), value) for key, value in data.items()]


def _row(values: Any, place: str) -> tuple[float, float, float]:
    if not (isinstance(values, list) and len(values) == 3 and all(isinstance(v, int | float) for v in values)):
        raise InvalidInput(f"{place}: must be three numbers: forward, backward and update in seconds")
    forward, backward, update = map(float, values)
    return forward, backward, update


SAILOR = ProfileFormat(
    name="sailor",
    summary="Sailor's profile.json: seconds by micro-batch, degree and layer",
    is_of=_is_of,
    read=read_sailor,
)
