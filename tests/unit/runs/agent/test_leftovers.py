"""A folder holds documented files alone, however its run has ended."""

import re
import time

import pytest

from hetplanner.launchers.local import LocalLauncher
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.leftovers import remove_leftovers
from hetplanner.runs.agent.supervisor import Supervisor
from hetplanner.runs.directory import RunDirectory, find_run
from tests.support.plans.factories import chain_plan
from tests.support.runs.fake_launcher import FakeLauncher

DOCUMENTED = re.compile(
    r"plan\.json|run\.json|status\.json|prediction\.json|swarm\.json|links\.json|model\.json|model\.safetensors"
    r"|model-stage-\d+\.safetensors|rank-\d+\.jsonl|events\.jsonl|asked\.jsonl|processes\.jsonl|decisions\.log"
    r"|log-\d+\.txt|log-of-.*\.txt|launcher(-\d+)?\.txt|stop|checkpoints"
)
REMAINS = (
    ".0123456789abcdef.draft", ".tmpAbC123", "emulation.clocks", "stop.signalled", "coordinator.socket",
    "checkpoints/step-00000010.part/rank-0.safetensors", "checkpoints/.fedcba9876543210.draft",
)  # fmt: skip


def litter(folder):
    for name in REMAINS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")


def odd_names(folder):
    return sorted(p.name for p in folder.iterdir() if not DOCUMENTED.fullmatch(p.name))


@pytest.mark.parametrize("mode", ["train", "crash", "killed-once", "broken", "orphans"])
@pytest.mark.parametrize("stopped", [False, True])
def test_after_every_kind_of_end_the_folder_holds_documented_files_alone(tmp_path, mode, stopped):
    supervisor = Supervisor(tmp_path, launcher=FakeLauncher(mode))
    run_id = supervisor.submit(chain_plan(shares=(1, 1), cuts=(4,)), TrainConfig(steps=3)).run
    folder = find_run(run_id, tmp_path)[1].path
    litter(folder)
    if stopped:
        supervisor.stop(run_id)
    until = time.monotonic() + 120
    while not supervisor.status(run_id).is_over:
        assert time.monotonic() < until
        supervisor.tick()
        time.sleep(0.02)
    assert odd_names(folder) == []
    assert list((folder / "checkpoints").iterdir()) == []


def test_a_models_parts_stay_where_they_are_the_model_and_nothing_of_others_goes(tmp_path):
    directory = RunDirectory(tmp_path)
    (tmp_path / "model-stage-0.safetensors").write_text("weights")
    (tmp_path / "mine.txt").write_text("mine")
    litter(tmp_path)
    remove_leftovers(directory, is_over=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "mine.txt", "model-stage-0.safetensors"]
    directory.model_file.write_text("whole")
    remove_leftovers(directory, is_over=True)
    assert not (tmp_path / "model-stage-0.safetensors").exists()
    remove_leftovers(RunDirectory(tmp_path / "gone"), is_over=True)


def test_a_launcher_makes_no_folder_of_its_own(tmp_path):
    (command,) = LocalLauncher().request(chain_plan(shares=(1, 1), cuts=(4,)), tmp_path, TrainConfig()).commands
    assert "--log-dir=/dev/null" in command.argv
