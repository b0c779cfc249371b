"""A run's copy back on a disk: plan, settings and the newest whole checkpoint."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from hetplanner.atomic_files import check_free
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import FOLDER, MANIFEST, check_rank_file, checkpoint_folder
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.plan.files.train_files import load_config
from hetplanner.storage.address import Storage
from hetplanner.storage.copying import MOST_BYTES, RUN_FILES, copied_manifest, copied_steps
from hetplanner.storage.swarm_copies import copied_versions, fetch_stages


def fetch_run(storage: Storage, folder: Path, step: int | None = None) -> int:
    """Fetches a copy into a new folder, which `--resume` takes.

    Args:
        storage: the run's copy.
        folder: made; nothing is left of it where the copy cannot be fetched.
        step: of the checkpoint; None takes the newest whole one.

    Returns:
        The checkpoint's step.

    Raises:
        InvalidInput: the folder exists, there is no whole checkpoint, or a file is not what a rank has written.
        OSError: the disk is full.
    """
    if folder.exists() or folder.is_symlink():
        raise InvalidInput(f"{folder}: exists; give another folder with -o")
    draft = folder.with_name(folder.name + ".part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        for name in RUN_FILES:
            content = storage.read(name, MOST_BYTES)
            if content is None:
                raise InvalidInput(f"{storage.address}: holds no {name}; give the address of one run")
            (draft / name).write_bytes(content)
        plan = load_any_plan(draft / "plan.json")
        load_config(draft / "run.json")
        if isinstance(plan, ElasticPlan):
            chosen = _choose(storage, step, [version[1] for version in copied_versions(storage, len(plan.stages))])
            fetch_stages(storage, draft, len(plan.stages), chosen)
        else:
            chosen = _choose(storage, step, copied_steps(storage))
            _fetch_checkpoint(storage, checkpoint_folder(draft, chosen))
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return chosen


def _choose(storage: Storage, step: int | None, found: Sequence[int | str]) -> int:
    """The wanted step, or the newest whole one, of those that `copied_steps` found."""
    whole = [one for one in found if isinstance(one, int)]
    if step is not None and step in whole:
        return step
    if step is None and whole:
        return whole[0]
    there = f"has those of steps {', '.join(map(str, whole))}" if whole else "has no whole one"
    why = next((f" ({one})" for one in found if isinstance(one, str)), "")
    wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
    raise InvalidInput(f"{storage.address}: no {wanted} can be fetched; it {there}{why}")


def _fetch_checkpoint(storage: Storage, folder: Path) -> None:
    folder.mkdir(parents=True)
    manifest = copied_manifest(storage, folder.name)
    check_free(folder, sum(rank.bytes for rank in manifest.ranks))
    for name in (*(rank.file for rank in manifest.ranks), MANIFEST):
        storage.get(f"{FOLDER}/{folder.name}/{name}", str(folder / name))
    for rank in range(len(manifest.ranks)):
        check_rank_file(folder, manifest, rank)
