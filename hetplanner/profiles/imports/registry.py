"""The formats of other tools' profiles, and a profile from their files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hetplanner.cluster.catalog import plain_kind
from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.amp import AMP
from hetplanner.profiles.imports.csv_table import CSV
from hetplanner.profiles.imports.interface import MAX_FILES, Cell, Named, ProfileFormat
from hetplanner.profiles.imports.metis import METIS
from hetplanner.profiles.imports.sailor import SAILOR
from hetplanner.profiles.layers import layer_groups, layer_runs
from hetplanner.profiles.match import profile_of
from hetplanner.profiles.model import LayerCost, Profile
from hetplanner.reading import reader
from hetplanner.schema import checked, one_line, read_text
from hetplanner.workload.model import Op
from hetplanner.workload.workload import Workload

Part = tuple[int, float]
"""A layer of a cell, and a share of it."""

FORMATS = MappingProxyType({format.name: format for format in (CSV, SAILOR, METIS, AMP)})


def import_profile(paths: Sequence[str | os.PathLike[str]], workload: Workload, kind: str | None = None) -> Profile:
    """A profile from the files of another tool; see :func:`imported_profile`. Raises InvalidInput."""
    files: dict[str, bytes] = {}
    for path in paths:
        name = one_line(Path(path).name)
        if name in files:
            raise InvalidInput(f"{path}: another file is called {name} too; rename one, or import one after the other")
        files[name] = read_text(path)
    return imported_profile(files, workload, kind)


@reader("profile of another tool", at="files")
def imported_profile(files: Mapping[str, bytes], workload: Workload, kind: str | None = None) -> Profile:
    """A profile from the content of another tool's files, all of one format.

    Args:
        files: at least one, by name.
        workload: the model that was measured, in its number format and with its sequence length.
        kind: of the devices, where the files do not say it.

    Raises:
        InvalidInput: naming the file and the place.
    """
    if not 1 <= len(files) <= MAX_FILES:
        raise InvalidInput(f"profile: must be 1 to {MAX_FILES} files, got {len(files)}")
    return _profile([Named(name, content) for name, content in files.items()], workload, kind)


def _profile(files: Sequence[Named], workload: Workload, kind: str | None) -> Profile:
    format = _format_of(files)
    rows: list[LayerCost] = []
    for cell in format.read(files):
        rows += _rows(cell, workload, kind, files[0].name)
    named = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    return profile_of(
        workload, rows, name=f"{workload.name} from {named}", source=f"imported from {named} ({format.name})"
    )


def _format_of(files: Sequence[Named]) -> ProfileFormat:
    found = []
    for file in files:
        format = next((format for format in FORMATS.values() if format.is_of(file)), None)
        if format is None:
            known = "; ".join(f"{format.name}: {format.summary}" for format in FORMATS.values())
            raise InvalidInput(f"{file.name}: is of no known format of profiles ({known})")
        found.append(format)
    if len({format.name for format in found}) > 1:
        raise InvalidInput(
            f"{files[0].name} is of {found[0].name}, another file of {found[1].name}; give files of one format"
        )
    return found[0]


def _rows(cell: Cell, workload: Workload, kind: str | None, place: str) -> list[LayerCost]:
    """A cell as rows of the distinct layers; equal layers have the mean of theirs."""
    named = kind or cell.kind
    if not named:
        raise InvalidInput(f"{place}: does not say what kind of device was measured; give it (--kind GH200)")
    if kind and cell.kind and plain_kind(kind) != plain_kind(cell.kind):
        raise InvalidInput(f"{place}: is of {cell.kind!r:.60}, not of {kind!r:.60}; leave --kind out")
    where = f"{place}: {named} at micro-batch {cell.micro_batch}, degree {cell.degree}"
    rows = []
    for name, parts in _parts(cell, workload, where).items():
        mean = [_mean([(cell.layers[i][k], share) for i, share in parts]) for k in range(3)]
        kept = _mean([(cell.kept[i], share) for i, share in parts]) if cell.kept else None
        rows.append(
            checked(
                LayerCost,
                {
                    "kind": plain_kind(named),
                    "layer": name,
                    "micro_batch": cell.micro_batch,
                    "degree": cell.degree,
                    "forward": mean[0],
                    "backward": mean[1],
                    "update": mean[2],
                    "kept": kept,
                },
                f"{where}, layer {name}",
            )
        )
    return rows


def _parts(cell: Cell, workload: Workload, where: str) -> dict[str, list[Part]]:
    """By distinct layer of the model: which of the cell's layers it is, and what share of it."""
    runs = layer_runs(workload)
    if cell.names is not None:
        known = {run.name for run in runs}
        wrong = [name for name in cell.names if name not in known]
        missing = sorted(known - set(cell.names))
        if wrong or missing:
            what = f"unknown layer {wrong[0]!r:.60}" if wrong else f"layer {missing[0]!r:.60} is missing"
            raise InvalidInput(f"{where}: {what}; {workload.name} has {', '.join(sorted(known)[:8])}")
        return {name: [(i, 1.0)] for i, name in enumerate(cell.names)}
    groups = layer_groups(workload)
    parts = [(i, 1.0) for i in range(len(groups))]
    if len(cell.layers) != len(groups):
        parts = _with_one_head(groups)
    count = parts[-1][0] + 1
    if len(cell.layers) != count:
        raise InvalidInput(
            f"{where}: has {len(cell.layers)} layers, {workload.name} has {count} with embedding and head;"
            f" give the model that was measured{_layers_hint(workload, len(cell.layers) - count)}"
        )
    found: dict[str, list[Part]] = {}
    names = (name for run in runs for name in [run.name] * run.times)
    for name, part in zip(names, parts, strict=True):
        found.setdefault(name, []).append(part)
    return found


def _with_one_head(groups: Sequence[Sequence[Op]]) -> list[Part]:
    """Parts of a profile with one embedding and one head; a captured model has several layers in front and behind."""
    blocks = [i for i, ops in enumerate(groups) if ops[0].layer is not None]
    if not blocks:
        return [(i, 1.0) for i in range(len(groups))]
    first, end = blocks[0], blocks[-1] + 1
    front, behind = _shares(groups[:first]), _shares(groups[end:])
    inner = [(i - first + bool(front), 1.0) for i in range(first, end)]
    head = inner[-1][0] + 1
    return [*((0, share) for share in front), *inner, *((head, share) for share in behind)]


def _shares(groups: Sequence[Sequence[Op]]) -> list[float]:
    """Of their FLOPs; equal ones where there are none."""
    flops = [sum(op.forward_flops + op.backward_flops for op in ops) for ops in groups]
    return [n / sum(flops) if sum(flops) else 1.0 / len(flops) for n in flops]


def _layers_hint(workload: Workload, more: int) -> str:
    layers = workload.graph.num_layers + more
    return f" (--layers {layers})" if workload.transformer is not None and layers > 0 else ""


def _mean(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Of values times shares; None where one is not known."""
    known = [value * share for value, share in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
