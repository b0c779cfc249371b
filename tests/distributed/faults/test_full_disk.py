"""A disk that fills up costs no step: what could not be written waits, and the model is the same to the bit."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hetplanner.plan.files.checkpoints import checkpoint_steps, file_digest
from tests.support.processes.patience import until
from tests.support.training.full_disk_story import CONFIG, STEPS, static_plan
from tests.support.training.real_ranks import start_ranks, train

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[3]
SMALL_FILES = 40_000
"""Bytes: some steps' telemetry fits, no checkpoint does."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the model that an undisturbed run saves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(static_plan(), CONFIG, folder)
    return file_digest(folder / "model.safetensors")


def limit_files(rank: int) -> None:
    """No file of this process may grow beyond SMALL_FILES, until another one allows it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILES, resource.RLIM_INFINITY))


@pytest.mark.parametrize("beside_the_steps", [False, True])
def test_ranks_whose_files_may_not_grow_go_on_and_write_everything_later(
    tmp_path: Path, expected: str, beside_the_steps: bool
) -> None:
    config = CONFIG.replace(checkpoints_async=beside_the_steps)
    ranks = start_ranks(static_plan(), config, tmp_path, fault=limit_files)
    ranks.wait_for_log("the model cannot be written, it is tried again")
    until(lambda: not list((tmp_path / "checkpoints").iterdir()), "what is of no use gives its space back")
    for process in ranks.processes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert ranks.wait() == [0, 0], ranks.logs()
    assert [line["step"] for line in ranks.lines(0, "step")] == list(range(STEPS))
    *failed, last = ranks.lines(1, "checkpoint")
    assert {line["error"] for line in failed} == {"rank 0 could not write its part: File too large"}
    assert "error" not in last, "tried again once the model was written"
    assert checkpoint_steps(tmp_path) == [STEPS]
    assert file_digest(tmp_path / "model.safetensors") == expected


def told(kind: str, folder: Path, size: int) -> dict:
    """What a run tells whose disk of `size` bytes was full for some seconds.

    Where this user may mount nothing, the disk stays as it is: `test_ranks_whose_files_may_not_grow…` has to do.
    """
    namespace = ["unshare", "-rm"]
    may_mount = subprocess.run([*namespace, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True)
    command = [sys.executable, "-m", "tests.support.training.full_disk_story", kind, str(folder)]
    if may_mount.returncode == 0:
        command = [*namespace, *command, str(size)]
    else:
        command.append("0")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_static_run_outlives_a_full_disk(tmp_path: Path, expected: str) -> None:
    found = told("static", tmp_path, 4 * 2**20)
    assert found["codes"] == [0, 0], found["logs"]
    assert found["parts"] == 0
    assert found["steps"] == sorted([*range(STEPS), *range(STEPS)])
    last, older = found["checkpoints"]
    assert last == STEPS, "tried again once the model was written"
    assert older < STEPS, "older ones stay"
    assert found["whole lines"]
    assert found["drafts"] == []
    assert found["digest"] == expected


def test_a_swarm_outlives_a_full_disk_and_counts_every_step_once(tmp_path: Path) -> None:
    found = told("swarm", tmp_path, 4 * 2**20)
    assert found["commits"] == found["told"] == list(range(1, STEPS + 1))
    assert found["whole lines"]
    assert found["model"]
    assert found["parts"] == found["drafts"] == []
