"""Checkpoints of a swarm's stages on a disk: their names, which of them are kept, and whether one is whole. No torch.

    RUN/checkpoints/stage-0-lineage-0-step-200.safetensors

One file a stage, written by one of its peers. A swarm can begin with those of all stages at a step.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.reading import reader

StageVersion = tuple[int, int]
"""Of a stage's state: how often the swarm has been set back, and committed steps."""
FOLDER = "checkpoints"
DIGEST = "sha256"
"""Of the tensors' bytes, in the order of their names; files of older versions have none."""
_NAME = re.compile(r"^stage-(\d{1,6})-lineage-(\d{1,9})-step-(\d{1,9})\.safetensors$")


def checkpoint_path(folder: Path, stage: int, version: StageVersion) -> Path:
    """Where a stage's checkpoint is."""
    lineage, step = version
    return folder / f"stage-{stage}-lineage-{lineage}-step-{step}.safetensors"


def lineage_of(name: str) -> int:
    """The lineage in a checkpoint's name; 0 where it has none."""
    parts = _NAME.match(name)
    return 0 if parts is None else int(parts[2])


def of_first_lineage(name: str) -> str:
    """A checkpoint's name in a run that begins with it."""
    parts = _NAME.match(name)
    return name if parts is None else checkpoint_path(Path(), int(parts[1]), (0, int(parts[3]))).name


def digest_of(parts: Iterable[Any]) -> str:
    """SHA-256 of the bytes of some arrays, one after the other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


@reader("checkpoint", at="path")
def check_checkpoint(path: Path) -> None:
    """Refuses a checkpoint that is not what its peer has written. Raises InvalidInput, saying how it differs."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            wanted = (file.metadata() or {}).get(DIGEST)
            found = digest_of(file.get_tensor(name).data for name in sorted(file.keys()))
    except (OSError, SafetensorError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read as a checkpoint: {error!s:.300}") from None
    if wanted not in (None, found):
        raise InvalidInput(f"{path}: is damaged, its digest is another")


def is_whole(folder: Path, stage: int, version: StageVersion) -> bool:
    """Whether a stage's checkpoint can be read."""
    try:
        check_checkpoint(checkpoint_path(folder, stage, version))
    except InvalidInput:
        return False
    return True


def is_there(folder: Path, stage: int, version: StageVersion) -> bool:
    """Whether a stage has a checkpoint of that name, however damaged."""
    return checkpoint_path(folder, stage, version).is_file()


def saved_steps(folder: Path, stages: int) -> list[int]:
    """Steps of which all stages have a checkpoint, latest first, as far as names tell."""
    return steps_of_names(_names(folder), stages)


def steps_of_names(names: Iterable[str], stages: int) -> list[int]:
    """Steps of which all stages have a checkpoint among these files, latest first."""
    saved: dict[int, set[int]] = defaultdict(set)
    for (_, step), there in _stages_by_version(names).items():
        saved[step] |= there
    return sorted((step for step, there in saved.items() if there >= set(range(stages))), reverse=True)


def whole_versions(names: Iterable[str], stages: int) -> list[StageVersion]:
    """Versions of which all stages have a checkpoint among these files, latest first."""
    found = _stages_by_version(names)
    return sorted((version for version, there in found.items() if there >= set(range(stages))), reverse=True)


def older_names(names: Iterable[str], version: StageVersion) -> list[str]:
    """Those of these files that are checkpoints of stages of an older version."""
    parts = {name: _NAME.match(name) for name in names}
    return [name for name, found in parts.items() if found is not None and (int(found[2]), int(found[3])) < version]


def newest_lineage(folder: Path, step: int) -> int:
    """The greatest lineage of a stage's checkpoint of this step in a folder; 0 if there is none."""
    return max((lineage for lineage, there in _stages_by_version(_names(folder)) if there == step), default=0)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _stages_by_version(names: Iterable[str]) -> dict[StageVersion, set[int]]:
    found: dict[StageVersion, set[int]] = defaultdict(set)
    for parts in filter(None, map(_NAME.match, names)):
        found[int(parts[2]), int(parts[3])].add(int(parts[1]))
    return found


def prune(folder: Path, stage: int, kept: int) -> None:
    """Removes a stage's older checkpoints, so that `kept` stay of those that all stages have.

    Where the others' are elsewhere the last `kept` of this stage stay.
    """
    saved = _stages_by_version(_names(folder))
    everyone = set().union(*saved.values())
    mine = sorted(version for version, stages in saved.items() if stage in stages)
    common = [version for version in mine if saved[version] == everyone]
    if len(common) < kept and len(everyone) > 1:
        return
    oldest = common[-max(1, kept) :][0]
    for version in mine:
        if version < oldest:
            checkpoint_path(folder, stage, version).unlink(missing_ok=True)
