"""Copies of a swarm's checkpoints at an address: one file a stage, under the names that they have on the disk.

    ADDRESS/RUN/checkpoints/stage-0-lineage-0-step-200.safetensors …

There is no manifest: a step is whole when every stage has its file, and each file carries its own digest.
"""

from collections.abc import Iterable
from pathlib import Path

from hetplanner.atomic_files import check_free
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.stage_checkpoints import (
    FOLDER,
    StageVersion,
    check_checkpoint,
    checkpoint_path,
    older_names,
    whole_versions,
)
from hetplanner.storage.address import Storage
from hetplanner.storage.held_files import held_files


def copy_stages(run_dir: Path, stages: int, step: int, storage: Storage, kept: int) -> int:
    """Copies the checkpoints of all stages of a step. Older copies but `kept` are removed.

    Returns:
        Bytes copied.

    Raises:
        InvalidInput: a stage's checkpoint is not there any more, or the store refuses.
    """
    folder, copied = run_dir / FOLDER, 0
    names = _names((path.name for path in folder.iterdir()), stages, step, str(folder))
    with held_files(folder, names) as held:
        for name in names:
            storage.put(str(held / name), f"{FOLDER}/{name}")
            copied += (held / name).stat().st_size
    whole = copied_versions(storage, stages)
    for old in older_names(storage.list(FOLDER), whole[:kept][-1]):
        storage.remove(f"{FOLDER}/{old}")
    return copied


def copied_versions(storage: Storage, stages: int) -> list[StageVersion]:
    """Versions of which every stage has a copy, latest first. Raises InvalidInput: the store refuses."""
    return whole_versions(storage.list(FOLDER), stages)


def fetch_stages(storage: Storage, run_dir: Path, stages: int, step: int) -> None:
    """Fetches the checkpoints of all stages of a step. Raises InvalidInput: one is damaged, or the disk too full."""
    there = storage.list(FOLDER)
    names = _names(there, stages, step, storage.address)
    check_free(run_dir, sum(there[name].get("size") or 0 for name in names))
    (run_dir / FOLDER).mkdir()
    for name in names:
        storage.get(f"{FOLDER}/{name}", str(run_dir / FOLDER / name))
        check_checkpoint(run_dir / FOLDER / name)


def _names(there: Iterable[str], stages: int, step: int, place: str) -> list[str]:
    """Names of the stages' files of the latest version of a step. Raises InvalidInput: there is none."""
    version = next((one for one in whole_versions(there, stages) if one[1] == step), None)
    if version is None:
        raise InvalidInput(f"{place}: not every stage has a checkpoint of step {step}")
    return [checkpoint_path(Path(), stage, version).name for stage in range(stages)]
