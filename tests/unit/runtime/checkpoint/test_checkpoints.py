"""Checkpoints on disk: what is whole, what is refused, what stays."""

import json

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.files import checkpoints
from hetplanner.plan.files.resumable import check_resumable
from hetplanner.plan.files.train_files import resume_chain, save_config
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan


def write_checkpoint(run_dir, plan, step, *, ranks=2, seed=0):
    folder = checkpoints.checkpoint_folder(run_dir, step)
    part = folder.with_name(folder.name + checkpoints.PART)
    part.mkdir(parents=True)
    files = []
    for rank in range(ranks):
        path = part / checkpoints.rank_file(rank)
        path.write_bytes(bytes([rank, step % 256]) * 100)
        files.append(checkpoints.RankFile(file=path.name, bytes=200, sha256=checkpoints.file_digest(path)))
    manifest = checkpoints.Manifest(step=step, plan=plan.digest(), seed=seed, ranks=tuple(files))
    checkpoints.publish(part, folder, manifest)
    return folder


@pytest.fixture
def plan():
    return chain_plan(shares=(2,), cuts=(4,))


def test_a_published_checkpoint_is_read_back(plan, tmp_path):
    folder = write_checkpoint(tmp_path, plan, 20)
    manifest = checkpoints.load_manifest(folder)
    assert (manifest.step, manifest.plan, manifest.seed) == (20, plan.digest(), 0)
    for rank in range(2):
        checkpoints.check_rank_file(folder, manifest, rank)
    assert list(checkpoints.readable_steps(tmp_path, plan.digest())) == [20]
    assert not list((tmp_path / checkpoints.FOLDER).glob(f"*{checkpoints.PART}"))


def test_a_truncated_and_a_damaged_file_are_told_apart(plan, tmp_path):
    folder = write_checkpoint(tmp_path, plan, 20)
    manifest = checkpoints.load_manifest(folder)
    (folder / checkpoints.rank_file(0)).write_bytes(b"\0" * 150)
    (folder / checkpoints.rank_file(1)).write_bytes(b"\0" * 200)
    with pytest.raises(InvalidInput, match=r"step-00000020/rank-0.safetensors: is truncated, 150 of 200 bytes"):
        checkpoints.check_rank_file(folder, manifest, 0)
    with pytest.raises(InvalidInput, match=r"rank-1.safetensors: is damaged"):
        checkpoints.check_rank_file(folder, manifest, 1)
    (folder / checkpoints.rank_file(1)).unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        checkpoints.check_rank_file(folder, manifest, 1)
    with pytest.raises(InvalidInput, match="holds 2 ranks, rank 2 is not among them"):
        checkpoints.check_rank_file(folder, manifest, 2)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "hetplanner/checkpoint@9"}', '{"format": "hetplanner/plan@1"}']
)
def test_a_checkpoint_without_a_whole_manifest_is_passed_over(plan, tmp_path, text):
    write_checkpoint(tmp_path, plan, 10)
    (write_checkpoint(tmp_path, plan, 20) / "manifest.json").write_text(text)
    why, step = checkpoints.readable_steps(tmp_path, plan.digest())
    assert step == 10
    assert why.startswith("step-00000020/manifest.json")


def test_a_manifest_names_no_file_elsewhere(plan, tmp_path):
    folder = write_checkpoint(tmp_path, plan, 10)
    data = json.loads((folder / "manifest.json").read_text())
    data["ranks"][0]["file"] = "../../secret"
    (folder / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=r"ranks\[0\].file"):
        checkpoints.load_manifest(folder)


def test_the_last_checkpoints_stay_and_unfinished_ones_behind_them_go(plan, tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, plan, step)
    for step in (25, 40):
        (tmp_path / checkpoints.FOLDER / f"step-{step:08d}{checkpoints.PART}").mkdir()
    checkpoints.prune(tmp_path, 2)
    assert checkpoints.checkpoint_steps(tmp_path) == [30, 20]
    (part,) = (tmp_path / checkpoints.FOLDER).glob(f"*{checkpoints.PART}")
    assert part.name == f"step-00000040{checkpoints.PART}"


def test_one_that_is_written_again_replaces_the_old_one(plan, tmp_path):
    folder = write_checkpoint(tmp_path, plan, 10)
    (folder / checkpoints.rank_file(0)).write_bytes(b"")
    write_checkpoint(tmp_path, plan, 10)
    checkpoints.check_rank_file(folder, checkpoints.load_manifest(folder), 0)


def test_what_cannot_be_resumed_is_refused(plan, tmp_path):
    config = TrainConfig(steps=30, resume=str(tmp_path))
    with pytest.raises(InvalidInput, match="holds no checkpoint"):
        check_resumable(plan, config)
    write_checkpoint(tmp_path, plan, 20)
    check_resumable(plan, config)
    check_resumable(plan, TrainConfig())
    with pytest.raises(InvalidInput, match=r"is of another plan; that plan is not in plan.json there"):
        check_resumable(chain_plan(shares=(1, 1), cuts=(4,)), config)
    with pytest.raises(InvalidInput, match="begun with seed 0, got 3"):
        check_resumable(plan, config.replace(seed=3))
    with pytest.raises(InvalidInput, match="has done 20 steps, so 20 leave nothing to do"):
        check_resumable(plan, config.replace(steps=20))


def child_of(parent, folder):
    """A run that went on from another one and was stopped before its first checkpoint."""
    folder.mkdir()
    save_config(TrainConfig(steps=30, resume=str(parent)), folder / "run.json")
    return folder


def test_a_run_without_a_checkpoint_stands_for_the_one_it_went_on_from(plan, tmp_path):
    (tmp_path / "a").mkdir()
    write_checkpoint(tmp_path / "a", plan, 20)
    save_config(TrainConfig(steps=30), tmp_path / "a" / "run.json")
    last = child_of(child_of(tmp_path / "a", tmp_path / "b"), tmp_path / "c")
    assert resume_chain(str(last)) == [tmp_path / name for name in "cba"]
    check_resumable(plan, TrainConfig(steps=30, resume=str(last)))
    with pytest.raises(InvalidInput, match="a has done 20 steps"):
        check_resumable(plan, TrainConfig(steps=20, resume=str(last)))


def test_a_chain_that_bites_its_tail_or_breaks_off_ends(plan, tmp_path):
    a = child_of(tmp_path / "b", tmp_path / "a")
    child_of(a, tmp_path / "b")
    assert resume_chain(str(a)) == [a, tmp_path / "b"]
    with pytest.raises(InvalidInput, match="holds no checkpoint, nor do the 1 that it went on from"):
        check_resumable(plan, TrainConfig(steps=30, resume=str(a)))
    (tmp_path / "b" / "run.json").write_text("{")
    assert resume_chain(str(a)) == [a, tmp_path / "b"]
    assert resume_chain(None) == []


def test_a_run_whose_checkpoints_are_all_damaged_stands_for_its_parent_too(plan, tmp_path):
    (tmp_path / "a").mkdir()
    write_checkpoint(tmp_path / "a", plan, 10)
    child = child_of(tmp_path / "a", tmp_path / "b")
    (write_checkpoint(child, plan, 20) / "manifest.json").write_text("{")
    check_resumable(plan, TrainConfig(steps=30, resume=str(child)))
