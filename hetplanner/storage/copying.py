"""Copies a checkpoint of a run to an address: `python -m hetplanner.storage.copying ADDRESS [--run DIR --step N]`.

    ADDRESS/RUN/plan.json, run.json
    ADDRESS/RUN/checkpoints/step-00000200/rank-0.safetensors …   by each host those of its own ranks
    ADDRESS/RUN/checkpoints/step-00000200/manifest.json          last

Of a swarm, see `swarm_copies`, there is one file a stage instead, and no manifest.
Without a run the store is only asked whether it can be written to.
"""

import argparse
import sys
from pathlib import Path

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import FOLDER, MANIFEST, Manifest, checkpoint_folder, load_manifest
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.reading import reader
from hetplanner.schema import checked_json
from hetplanner.storage.address import Storage
from hetplanner.storage.held_files import held_files
from hetplanner.storage.swarm_copies import copy_stages

MOST_BYTES = 16 * 2**20
RUN_FILES = ("plan.json", "run.json")


def copy_checkpoint(run_dir: Path, step: int, storage: Storage, kept: int) -> int:
    """Copies what this host has of a checkpoint, and plan and settings of its run.

    Older whole ones but `kept` are removed there.

    Returns:
        Bytes of the checkpoint copied.

    Raises:
        InvalidInput: the checkpoint is not there any more, or the store refuses.
    """
    for name in RUN_FILES:
        storage.put(str(run_dir / name), name)
    plan = load_any_plan(run_dir / RUN_FILES[0])
    if isinstance(plan, ElasticPlan):
        return copy_stages(run_dir, len(plan.stages), step, storage, kept)
    folder = checkpoint_folder(run_dir, step)
    with held_files(folder) as held:
        manifest, copied = load_manifest(held), 0
        for rank in manifest.ranks:
            if (held / rank.file).is_file():
                storage.put(str(held / rank.file), f"{FOLDER}/{folder.name}/{rank.file}")
                copied += rank.bytes
        storage.put(str(held / MANIFEST), f"{FOLDER}/{folder.name}/{MANIFEST}")
    whole = [one for one in copied_steps(storage) if isinstance(one, int)]
    for old in whole[kept:]:
        storage.remove(f"{FOLDER}/{checkpoint_folder(run_dir, old).name}")
    return copied


def copied_steps(storage: Storage) -> list[int | str]:
    """Copies, latest first: the step of each that has all files in their sizes, or why it is passed over.

    Raises:
        InvalidInput: the store refuses.
    """
    found: list[int | str] = []
    for name in sorted(storage.list(FOLDER), reverse=True):
        step = name.removeprefix("step-")
        if not step.isdecimal() or checkpoint_folder(Path(), int(step)).name != name:
            continue
        try:
            manifest = copied_manifest(storage, name)
        except InvalidInput as error:
            found.append(str(error))
            continue
        sizes = {file: info.get("size") for file, info in storage.list(f"{FOLDER}/{name}").items()}
        odd = next((rank.file for rank in manifest.ranks if sizes.get(rank.file) != rank.bytes), None)
        found.append(f"{name}: {odd} is missing or cut off" if odd is not None else int(step))
    return found


@reader("copied checkpoint", at="name")
def copied_manifest(storage: Storage, name: str) -> Manifest:
    """The manifest of a copy. Raises InvalidInput: there is none, or it is damaged."""
    place = f"{name}/{MANIFEST}"
    content = storage.read(f"{FOLDER}/{place}", MOST_BYTES)
    if content is None:
        raise InvalidInput(f"{place}: is missing; the copy was not finished")
    manifest = checked_json(Manifest, content, "checkpoint", 1, place)
    if checkpoint_folder(Path(), manifest.step).name != name:
        raise InvalidInput(f"{place}: is of step {manifest.step}")
    return manifest


def main() -> int:
    """The command; what is wrong is one line on standard error, the bytes copied one on standard output."""
    parser = argparse.ArgumentParser(prog="hetplanner.storage.copying", description="A checkpoint to an address.")
    parser.add_argument("address")
    parser.add_argument("--run", type=Path, help="the run's folder; without it the store is only tried")
    parser.add_argument("--step", type=int)
    parser.add_argument("--kept", type=int, default=2)
    arguments = parser.parse_args()
    try:
        storage = Storage(arguments.address)
        if arguments.run is None:
            storage.check()
        else:
            sys.stdout.write(f"{copy_checkpoint(arguments.run, arguments.step, storage, arguments.kept)}\n")
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
