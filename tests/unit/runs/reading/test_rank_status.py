"""The status of a run that no agent started, from the files of its ranks."""

import json
import os
import time

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.rank_status import SILENT_S
from hetplanner.runs.run import open_run
from tests.support.plans.factories import chain_plan

NOW = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path):
    """Of a run of two ranks and three steps; nothing is written yet."""
    save_plan(chain_plan(shares=(2,), cuts=(4,)), tmp_path / "plan.json")
    save_config(TrainConfig(steps=3), tmp_path / "run.json")
    return tmp_path


def write(folder, rank, *, steps=3, done=True, attempt=0, error="", quiet_s=0.0):
    lines = [{"type": "phase", "name": "importing", "time_s": NOW + rank}]
    if attempt:
        lines.insert(0, {"type": "restart", "attempt": attempt, "time_s": NOW})
    fields = {"loss_sum": 1.0, "num_tokens": 1, "grad_norm": 1.0}
    counts = dict.fromkeys(("boundary_bytes", "reduce_bytes", "late", "late_s", "memory_bytes"), 0)
    lines += [{"type": "step", "step": i, "start_s": i, "end_s": i + 1} | fields | counts for i in range(steps)]
    lines += [{"type": "error", "text": error, "traceback": "a\nb", "time_s": NOW}] if error else []
    lines += [{"type": "phase", "name": "done", "time_s": NOW + 9}] if done else []
    path = folder / f"rank-{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (time.time() - quiet_s,) * 2)


def status(folder):
    return open_run(folder, folder / "home").status()


def test_all_ranks_have_done_all_steps(folder, no_agent_stays):
    write(folder, 0), write(folder, 1)
    found = status(folder)
    assert (found.state, found.ranks, found.created_unix_s, found.is_over) == ("finished", 2, NOW, True)
    assert open_run(folder, folder / "home").wait(1.0).state == "finished"


def test_fewer_steps_than_asked_for(folder):
    write(folder, 0, steps=2), write(folder, 1, steps=2)
    assert (status(folder).state, status(folder).message) == ("stopped", "after 2 of 3 steps")


def test_a_rank_that_says_why_it_failed(folder):
    write(folder, 0, done=False), write(folder, 1, done=False, error="no data")
    found = status(folder)
    assert (found.state, found.failed_rank, found.message, found.last_lines) == (
        "failed",
        1,
        "rank 1: no data",
        ("a", "b"),
    )


def test_files_of_another_host_are_asked_for(folder):
    write(folder, 0)
    assert status(folder).message == "rank-1.jsonl is not here; copy the files of all hosts into this folder"


def test_ranks_that_still_write_run_and_silent_ones_are_lost(folder):
    assert (status(folder).state, status(folder).message) == ("running", "starting")
    write(folder, 0, steps=1, done=False), write(folder, 1, steps=1, done=False)
    assert (status(folder).state, status(folder).message) == ("running", "importing")
    write(folder, 1, steps=1, done=False, quiet_s=SILENT_S + 60)
    assert (status(folder).state, status(folder).message) == ("failed", "lost: a rank wrote nothing for 180 s")


def test_restarts_are_those_of_the_ranks(folder):
    write(folder, 0, attempt=2), write(folder, 1, attempt=2)
    assert status(folder).restarts == 2


def test_nobody_can_stop_it_from_here(folder):
    write(folder, 0, done=False), write(folder, 1, done=False)
    with pytest.raises(InvalidInput, match="no agent started it; end it where it was started"):
        open_run(folder, folder / "home").stop()
