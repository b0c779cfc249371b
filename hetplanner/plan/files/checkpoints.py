"""Checkpoints of a run on disk: what is there, whether it is whole, and which one is the latest. No torch.

    RUN/checkpoints/step-00000200/rank-0.safetensors …   one file a rank, written and synchronised by the rank
    RUN/checkpoints/step-00000200/manifest.json          sizes and digests of all of them, written last

A folder is made under another name and renamed when it is whole, so a crash leaves the checkpoint before. Every rank
writes all that it needs itself: hosts that share no folder resume too, and replicas go on exactly as they were.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.atomic_files import synchronise, write_whole
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import Noun, check_format, checked, parse_json, read_text

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
VERSION = 1
PART = ".part"
MAX_MANIFEST_BYTES = 16 * 2**20

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class RankFile(Noun):
    """What one rank has written."""

    file: Annotated[str, Field(pattern=r"^rank-[0-9]{1,6}\.safetensors$")]
    bytes: Annotated[int, Field(strict=True, ge=1)]
    sha256: Digest


class Manifest(Noun):
    """What a checkpoint holds.

    Attributes:
        step: optimiser steps that are in the weights; the next one to do.
        plan: its digest.
        seed: of weights, data and dropout.
    """

    step: Annotated[int, Field(strict=True, ge=1)]
    plan: Digest
    seed: Annotated[int, Field(strict=True, ge=0)]
    ranks: Annotated[tuple[RankFile, ...], Field(min_length=1)]


def rank_file(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank-{rank}.safetensors"


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after so many steps lies once it is whole."""
    return run_dir / FOLDER / f"step-{step:08d}"


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Steps of all checkpoints that were finished, latest first; whether they are still whole is not looked at."""
    try:
        names = [p.name for p in (run_dir / FOLDER).iterdir() if p.is_dir()]
    except OSError:
        return []
    steps = [name.removeprefix("step-") for name in names if name.startswith("step-")]
    return sorted((int(step) for step in steps if step.isdecimal()), reverse=True)


@reader("checkpoint", at="folder")
def load_manifest(folder: Path) -> Manifest:
    """A checkpoint's manifest. Raises InvalidInput (missing, damaged, of a newer version)."""
    place = f"{folder.name}/{MANIFEST}"
    data = check_format(
        parse_json(read_text(folder / MANIFEST, MAX_MANIFEST_BYTES), place), "checkpoint", VERSION, place
    )
    return checked(Manifest, data, place)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@reader("checkpoint", at="folder")
def check_rank_file(folder: Path, manifest: Manifest, rank: int) -> None:
    """Refuses a rank's file that is not what the rank has written. Raises InvalidInput, saying how it differs."""
    if rank >= len(manifest.ranks):
        raise InvalidInput(f"{folder.name}: holds {len(manifest.ranks)} ranks, rank {rank} is not among them")
    wanted = manifest.ranks[rank]
    path = folder / wanted.file
    try:
        size = path.stat().st_size
        if size != wanted.bytes:
            how = "truncated" if size < wanted.bytes else "too long"
            raise InvalidInput(f"{folder.name}/{wanted.file}: is {how}, {size} of {wanted.bytes} bytes")
        if file_digest(path) != wanted.sha256:
            raise InvalidInput(f"{folder.name}/{wanted.file}: is damaged, its digest is another")
    except OSError as error:
        raise InvalidInput(f"{folder.name}/{wanted.file}: cannot be read: {error.strerror}") from None


def publish(temporary: Path, folder: Path, manifest: Manifest) -> None:
    """Makes a checkpoint of a folder that holds all ranks' files: writes its manifest, then gives it its name."""
    text = manifest.model_dump_json(indent=1)
    head = f'{{\n "format": "hetplanner/checkpoint@{VERSION}",'
    write_whole(temporary / MANIFEST, head + text.removeprefix("{") + "\n", sync=True)
    if folder.exists():  # one that could not be read, or was written before a restart
        shutil.rmtree(folder)
    temporary.rename(folder)
    synchronise(folder.parent)


def prune(run_dir: Path, kept: int, max_age_s: float | None = None) -> None:
    """Removes finished checkpoints, and what was never finished before them.

    Args:
        run_dir: of the run.
        kept: so many of the last ones stay.
        max_age_s: those that are older go, too, but for the last one.
    """
    steps = checkpoint_steps(run_dir)
    for i, step in enumerate(steps):
        folder = checkpoint_folder(run_dir, step)
        if i >= kept or (i and max_age_s is not None and _age_s(folder) > max_age_s):
            shutil.rmtree(folder, ignore_errors=True)
    for path in (run_dir / FOLDER).glob(f"step-*{PART}"):
        if steps and path.name < checkpoint_folder(run_dir, steps[0]).name:
            shutil.rmtree(path, ignore_errors=True)


def _age_s(folder: Path) -> float:
    """Seconds since it was finished; 0 where that cannot be told."""
    try:
        return time.time() - (folder / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def readable_steps(run_dir: Path, plan_digest: str) -> Iterator[int | str]:
    """Checkpoints of a plan, latest first: the step of each, or why it is passed over."""
    for step in checkpoint_steps(run_dir):
        try:
            manifest = load_manifest(checkpoint_folder(run_dir, step))
        except InvalidInput as error:
            yield str(error)
            continue
        if manifest.plan == plan_digest and manifest.step == step:
            yield step
        else:
            yield f"{checkpoint_folder(run_dir, step).name}: is of another plan"
