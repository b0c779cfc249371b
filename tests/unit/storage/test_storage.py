"""Copies of checkpoints at an address: whole ones are found and fetched, everything else is one line."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.checkpoints import (
    MANIFEST,
    Manifest,
    RankFile,
    checkpoint_folder,
    checkpoint_steps,
    file_digest,
    prune,
    publish,
    rank_file,
)
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.stage_checkpoints import DIGEST, checkpoint_path, digest_of
from hetplanner.plan.files.stage_checkpoints import FOLDER as STAGES_FOLDER
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.resuming import check_copy_to
from hetplanner.storage.address import Storage, check_address
from hetplanner.storage.copying import copied_steps, copy_checkpoint
from hetplanner.storage.fetching import fetch_run
from hetplanner.storage.sending import CheckpointCopies
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, swarm_plan


def write_checkpoint(run_dir: Path, step: int, ranks: int = 2) -> None:
    folder = checkpoint_folder(run_dir, step)
    draft = folder.with_name(folder.name + ".part")
    draft.mkdir(parents=True)
    files = []
    for rank in range(ranks):
        path = draft / rank_file(rank)
        path.write_bytes(f"state of rank {rank} after step {step}".encode())
        files.append(RankFile(file=path.name, bytes=path.stat().st_size, sha256=file_digest(path)))
    publish(draft, folder, Manifest(step=step, plan=chain_plan([2], []).digest(), seed=0, ranks=tuple(files)))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a-run"
    folder.mkdir()
    save_plan(chain_plan([2], []), folder / "plan.json")
    save_config(TrainConfig(checkpoint_every=1), folder / "run.json")
    for step in (3, 6, 9):
        write_checkpoint(folder, step)
    return folder


@pytest.fixture
def swarm_dir(tmp_path: Path) -> Path:
    """Of a swarm of two stages with checkpoints of three steps."""
    folder = tmp_path / "a-swarm"
    (folder / STAGES_FOLDER).mkdir(parents=True)
    save_plan(swarm_plan([1, 1], [preset("tiny-gpt").boundaries[1]]), folder / "plan.json")
    save_config(TrainConfig(checkpoint_every=1), folder / "run.json")
    for step in (3, 6, 9):
        for stage in (0, 1):
            weights = np.full(4, stage + step, dtype=np.float32)
            path = checkpoint_path(folder / STAGES_FOLDER, stage, (0, step))
            save_file({"weights": weights}, path, metadata={DIGEST: digest_of([weights.data])})
    return folder


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}/copies/a-run")


def test_a_copy_is_fetched_as_it_was_written(run_dir: Path, storage: Storage, tmp_path: Path) -> None:
    for step in (3, 6, 9):
        copy_checkpoint(run_dir, step, storage, kept=2)
    assert copied_steps(storage) == [9, 6]
    assert fetch_run(storage, tmp_path / "back") == 9
    assert fetch_run(storage, tmp_path / "earlier", step=6) == 6
    for name in (
        "plan.json",
        "run.json",
        *(f"checkpoints/step-00000009/{n}" for n in (rank_file(0), rank_file(1), MANIFEST)),
    ):
        assert (tmp_path / "back" / name).read_bytes() == (run_dir / name).read_bytes()
    with pytest.raises(InvalidInput, match=r"no checkpoint of step 3 can be fetched; it has those of steps 9, 6"):
        fetch_run(storage, tmp_path / "third", step=3)


def test_hosts_that_share_no_folder_make_one_copy(run_dir: Path, storage: Storage, tmp_path: Path) -> None:
    other = tmp_path / "other-host"
    shutil.copytree(run_dir, other)
    (checkpoint_folder(run_dir, 9) / rank_file(1)).unlink()
    (checkpoint_folder(other, 9) / rank_file(0)).unlink()
    copy_checkpoint(run_dir, 9, storage, kept=1)
    assert copied_steps(storage) == ["step-00000009: rank-1.safetensors is missing or cut off"]
    copy_checkpoint(other, 9, storage, kept=1)
    assert copied_steps(storage) == [9]


def test_an_older_copy_stays_until_the_new_one_is_whole(run_dir: Path, storage: Storage) -> None:
    copy_checkpoint(run_dir, 3, storage, kept=1)
    (checkpoint_folder(run_dir, 6) / rank_file(1)).unlink()
    copy_checkpoint(run_dir, 6, storage, kept=1)
    assert copied_steps(storage)[1:] == [3]
    copy_checkpoint(run_dir, 9, storage, kept=1)
    assert [step for step in copied_steps(storage) if isinstance(step, int)] == [9]


def test_a_damaged_copy_is_told_and_nothing_is_left(run_dir: Path, storage: Storage, tmp_path: Path) -> None:
    copy_checkpoint(run_dir, 3, storage, kept=2)
    copy_checkpoint(run_dir, 9, storage, kept=2)
    there = tmp_path / "copies/a-run/checkpoints"
    (there / "step-00000009" / MANIFEST).write_text("{")
    assert fetch_run(storage, tmp_path / "back") == 3
    path = there / "step-00000003" / rank_file(0)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(InvalidInput, match=r"rank-0\.safetensors: is damaged, its digest is another"):
        fetch_run(storage, tmp_path / "new")
    assert not list(tmp_path.glob("new*"))
    with pytest.raises(InvalidInput, match="exists; give another folder"):
        fetch_run(storage, tmp_path / "back")


def test_a_copy_without_plan_or_checkpoint_is_told(run_dir: Path, storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no plan\.json; give the address of one run"):
        fetch_run(storage, tmp_path / "back")
    copy_checkpoint(run_dir, 3, storage, kept=2)
    manifest = tmp_path / "copies/a-run/checkpoints/step-00000003" / MANIFEST
    content = manifest.read_text()
    manifest.unlink()
    with pytest.raises(InvalidInput, match="no checkpoint can be fetched; it has no whole one"):
        fetch_run(storage, tmp_path / "back")
    manifest.write_text(content)
    plan = tmp_path / "copies/a-run/plan.json"
    plan.rename(tmp_path / "plan.json")
    with pytest.raises(InvalidInput, match=r"holds no plan\.json; give the address of one run"):
        fetch_run(storage, tmp_path / "back")
    (tmp_path / "plan.json").rename(plan)
    fields = json.loads(manifest.read_text())
    fields["ranks"][0]["file"] = "../../plan.json"
    manifest.write_text(json.dumps(fields))
    with pytest.raises(InvalidInput, match=r"no checkpoint can be fetched.*ranks"):
        fetch_run(storage, tmp_path / "back")


def test_stages_of_a_swarm_are_copied_and_fetched(swarm_dir: Path, storage: Storage, tmp_path: Path) -> None:
    for step in (3, 6, 9):
        copy_checkpoint(swarm_dir, step, storage, kept=2)
    there = tmp_path / "copies/a-run/checkpoints"
    assert sorted(path.name for path in there.iterdir()) == [
        f"stage-{stage}-lineage-0-step-{step}.safetensors" for stage in (0, 1) for step in (6, 9)
    ]
    assert fetch_run(storage, tmp_path / "back") == 9
    name = "checkpoints/stage-1-lineage-0-step-9.safetensors"
    assert (tmp_path / "back" / name).read_bytes() == (swarm_dir / name).read_bytes()
    (there / "stage-1-lineage-0-step-9.safetensors").unlink()
    assert fetch_run(storage, tmp_path / "earlier") == 6, "one stage's copy was not finished"
    with pytest.raises(InvalidInput, match=r"no checkpoint of step 9 can be fetched; it has those of steps 6"):
        fetch_run(storage, tmp_path / "third", step=9)


def test_a_damaged_copy_of_a_stage_is_told_and_nothing_is_left(
    swarm_dir: Path, storage: Storage, tmp_path: Path
) -> None:
    copy_checkpoint(swarm_dir, 3, storage, kept=2)
    path = tmp_path / "copies/a-run/checkpoints/stage-0-lineage-0-step-3.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InvalidInput, match="is damaged, its digest is another"):
        fetch_run(storage, tmp_path / "back")
    assert not list(tmp_path.glob("back*"))
    with pytest.raises(InvalidInput, match="not every stage has a checkpoint of step 5"):
        copy_checkpoint(swarm_dir, 5, storage, kept=2)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/mnt/copies", "must be an address that begins with one of file://, s3://"),
        ("ftp://host/folder", "must be an address that begins with one of"),
        ("simplecache::s3://bucket", "must be an address that begins with one of"),
        ("s3://key:secret@bucket/folder", "holds credentials; put them into"),
        ("s3://", "names no bucket; give s3://BUCKET/FOLDER"),
        ("file://host/folder", "must name a folder, such as file:///mnt/copies"),
        ("file:///", "must name a folder"),
        ("s3://bucket/../other", "must be an address"),
        ("gs://bucket/folder", "package gcsfs is not installed; run: pip install gcsfs"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(address: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")) as told:
        check_address(address)
    assert "secret" not in str(told.value)


def test_a_swarm_over_hosts_takes_no_address() -> None:
    plan, config = swarm_plan([1, 1], [3]), TrainConfig(checkpoint_every=1, copy_to="file:///mnt/copies")
    check_copy_to(plan, config, is_here=True)
    with pytest.raises(InvalidInput, match="a swarm over hosts keeps its checkpoints on its peers' disks"):
        check_copy_to(plan, config, is_here=False)


def test_a_checkpoint_that_made_room_for_a_newer_one_is_passed_over(run_dir: Path, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    config = TrainConfig(checkpoint_every=1, copy_to=f"file://{tmp_path / 'store'}")
    copies = CheckpointCopies(config, run_dir, told.append)
    for step in (2, 9):  # of step 2 nothing is kept
        copies.look(step)
    deadline_s = time.monotonic() + 60
    while not copies.look() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert [(one["step"], "error" in one) for one in told] == [(9, False)]


def test_older_checkpoints_go_by_age_but_for_the_last(run_dir: Path) -> None:
    prune(run_dir, kept=3, max_age_s=3600)
    assert checkpoint_folder(run_dir, 3).exists()
    prune(run_dir, kept=3, max_age_s=1e-9)
    assert checkpoint_steps(run_dir) == [9]


def test_nothing_to_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="copy_to: there is nothing to copy; give checkpoint_every"):
        TrainConfig(copy_to="file:///mnt/copies")
