"""Profiles as Metis publishes them: `DeviceType.<kind>_tp<degree>_bs<micro-batch>.json`, milliseconds by layer.

Forward and backward are one number a layer: a third is taken for the forward. The optimizer's time is of the whole
model; it is divided by the bytes of the layers' weights. Memory is of layers with their states, in Metis' runtime, and
is left out.

Source: Um et al. 2024 (Metis, USENIX ATC), its profile data guide.
"""

import re
from collections.abc import Sequence
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import SPLIT, Cell, Named, ProfileFormat
from hetplanner.schema import parse_json

_NAME = re.compile(r"DeviceType\.(?P<kind>.{1,80})_tp(?P<degree>\d{1,3})_bs(?P<size>\d{1,7})\.json")


def read_metis(files: Sequence[Named]) -> list[Cell]:
    """The cells of files, one each. Raises InvalidInput."""
    return [_cell(file) for file in files]


def _cell(file: Named) -> Cell:
    said = _NAME.fullmatch(file.name)
    if said is None:
        raise InvalidInput(f"{file.name}: must be called DeviceType.KIND_tpDEGREE_bsSIZE.json, as Metis names them")
    data = parse_json(file.content, file.name)
    times = data.get("execution_time") if isinstance(data, dict) else None
    if not isinstance(times, dict):
        raise InvalidInput(f"{file.name}: execution_time: must be an object; is this a profile of Metis?")
    totals_ms = _numbers(times.get("layer_compute_total_ms"), f"{file.name}: execution_time.layer_compute_total_ms")
    update_ms = times.get("optimizer_time_ms")
    shares = _shares(data, len(totals_ms))
    known = isinstance(update_ms, int | float) and shares is not None
    layers = [
        (
            total / 1e3 / SPLIT,
            total / 1e3 * (SPLIT - 1.0) / SPLIT,
            float(update_ms) / 1e3 * shares[i] if known and shares else None,  # type: ignore[arg-type]
        )
        for i, total in enumerate(totals_ms)
    ]
    return Cell(said["kind"], int(said["degree"]), int(said["size"]), tuple(layers))


def _numbers(values: Any, place: str) -> list[float]:
    if not isinstance(values, list) or not values or not all(isinstance(v, int | float) and v >= 0 for v in values):
        raise InvalidInput(f"{place}: must be a list of numbers that are 0 or more")
    return [float(value) for value in values]


def _shares(data: dict[str, Any], count: int) -> list[float] | None:
    """Each layer's share of the weights' bytes, where the file says them."""
    model = data.get("model")
    parameters = model.get("parameters") if isinstance(model, dict) else None
    sizes = parameters.get("parameters_per_layer_bytes") if isinstance(parameters, dict) else None
    if not isinstance(sizes, list) or len(sizes) != count:
        return None
    numbers = _numbers(sizes, "model.parameters.parameters_per_layer_bytes")
    return [size / sum(numbers) for size in numbers] if sum(numbers) else None


METIS = ProfileFormat(
    name="metis",
    summary="Metis' DeviceType.KIND_tpDEGREE_bsSIZE.json: milliseconds by layer",
    is_of=lambda file: file.name.startswith("DeviceType."),
    read=read_metis,
)
