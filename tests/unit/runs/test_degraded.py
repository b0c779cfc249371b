"""What a run goes on without is told, and status and audit log come true again when the disk takes them."""

import json
import os
import re
from pathlib import Path

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.launchers import capacity
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.audit import AuditLog, audit_path, audit_records
from hetplanner.runs.agent.status_file import StatusFile
from hetplanner.runs.directory import create_run_directory, list_run_ids
from hetplanner.runs.reports.conditions import (
    Conditions,
    DiskFacts,
    LinkFacts,
    MemoryFacts,
    conditions,
    with_full_disk,
)
from hetplanner.runs.status import RunStatus, read_status
from tests.support.files.full_disks import Budget, full_for
from tests.support.plans.factories import chain_plan

GB = 10**9
HERE = Path("/runs/one")
WELL = DiskFacts(HERE, 50 * GB, 100 * GB, GB), MemoryFacts(8 * GB, 16 * GB), LinkFacts(1000, 10, 0.1)


def test_nothing_is_said_of_what_is_as_it_should_be():
    assert conditions(*WELL) == conditions(None, None, None) == ()


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (
            DiskFacts(HERE, 0, 8 * GB, GB),
            r"disk of /runs/one is full .0 B of 8 GB free.: .* wait for space; free 1 GB",
        ),
        (DiskFacts(HERE, GB // 2, 8 * GB, GB), "is nearly full .500 MB of 8 GB free.: .* takes 1 GB; free 500 MB"),
        (DiskFacts(HERE, 5 * GB, 8 * GB, GB, has_inodes=False), "takes no more files"),
    ],
)
def test_a_disk_is_named_with_its_numbers_and_the_remedy(disk, words):
    (found,) = conditions(disk, *WELL[1:])
    assert re.search(words, found), found


def test_little_memory_and_late_links_are_told():
    found = conditions(WELL[0], MemoryFacts(GB // 4, 16 * GB), LinkFacts(1000, 120, 0.36))
    assert "memory is nearly exhausted (200 MB of 16 GB free)" in found[0]
    assert "late (10 % of the deliveries, by 3 ms on average)" in found[1]


def test_the_words_rest_while_a_disk_fills_by_a_little():
    one, two = (conditions(DiskFacts(HERE, free, 8 * GB, 10 * GB), None, None) for free in (501_000_000, 498_000_000))
    assert one == two


def test_a_run_is_looked_at_once_a_second_and_others_add_their_words(tmp_path):
    now = [0.0]
    plan = chain_plan(shares=(1, 1), cuts=(4,))
    watch = Conditions(tmp_path, plan, TrainConfig(emulate_links=True), 2, timer=lambda: now[0])
    row = {"peer": 1, "role": "activation", "taken": 10, "late": 5, "late_s": 0.5}
    (tmp_path / "rank-1.jsonl").write_text(
        json.dumps({"type": "span"})
        + "\n"
        + json.dumps({"type": "links", "links": [row, row]})
        + '\n{"type": "links"}\n'
    )
    (text,) = watch.look()
    assert "emulated links are late (50 %" in text
    watch.others = ("rank 3 (d3) is silent for 4 s",)
    assert watch.look() == (text, *watch.others)
    now[0] = 5.0
    assert watch.look()[0] == text
    now[0] = 30.0
    assert watch.look() == watch.others, "what was late long ago is over"


def test_a_failure_for_want_of_space_names_the_disk(tmp_path):
    assert with_full_disk("rank 1 was killed", tmp_path) == "rank 1 was killed"
    text = with_full_disk("rank 0 failed: OSError: [Errno 28] No space left on device", tmp_path)
    assert f"the disk of {tmp_path} was full" in text
    assert "--resume" in text


def test_a_containers_memory_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(capacity, "CONTROL_GROUP", tmp_path)
    machine = capacity.memory()
    for name, text in {
        "memory.max": "1000000",
        "memory.current": "900000",
        "memory.stat": "anon 1\ninactive_file 300000\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert capacity.memory() == (400_000, 1_000_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.memory()[1] == machine[1]


def status(**changes):
    return RunStatus(**{"run": "r", "state": "running", "created_unix_s": 1.0, "ranks": 2} | changes)


def test_a_status_is_written_into_the_space_that_was_kept_for_it(tmp_path, monkeypatch):
    file = StatusFile(tmp_path / "status.json")
    file.write(status())
    with full_for(monkeypatch):
        file.write(status(degraded=("the disk is full",)))
        assert file.unwritten is None
        assert read_status(file.path).degraded == ("the disk is full",)
        file.write(status(state="failed"))
        assert file.unwritten == status(state="failed"), "there is no more spare, so it is kept"
        assert read_status(file.path).state == "running"
    file.retry()
    assert file.unwritten is None
    assert read_status(file.path) == status(state="failed")
    assert sorted(os.listdir(tmp_path)) == ["status.json"], "who is over needs no spare"


def test_a_status_whose_folder_is_gone_is_dropped(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    file = StatusFile(folder / "status.json")
    file.write(status())
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    file.write(status(state="failed"))
    assert file.unwritten is None


def test_a_run_whose_folder_takes_no_file_is_not_begun(tmp_path, monkeypatch):
    plan, out = chain_plan(shares=(1, 1), cuts=(4,)), tmp_path / "out"
    home = tmp_path / "home"
    assert list_run_ids(home) == []
    for folder in (None, out):
        with (
            full_for(monkeypatch),
            pytest.raises(InvalidInput, match=r"cannot be written: No space .* no run is begun"),
        ):
            create_run_directory(plan, TrainConfig(), folder, home)
    assert list((home / "runs").iterdir()) == list(out.iterdir()) == []


def test_an_old_status_loads_without_the_field(tmp_path):
    path = tmp_path / "status.json"
    StatusFile(path).write(status(state="finished"))
    data = json.loads(path.read_text())
    del data["degraded"]
    path.write_text(json.dumps(data))
    assert read_status(path).degraded == ()


def test_audit_lines_wait_for_space_in_order(tmp_path, monkeypatch):
    log = AuditLog(tmp_path)
    record = {"time_s": 1.0, "event": "submit", "run": "r"}
    log.write(record)
    disk = Budget(monkeypatch, 20)
    log.write(record | {"event": "launch"})
    log.write(record | {"event": "end"})
    assert audit_path(tmp_path).read_bytes().endswith(b"\n")
    assert [r.event for r in audit_records(tmp_path)] == ["submit"]
    disk.free = float("inf")
    log.retry()
    assert [r.event for r in audit_records(tmp_path)] == ["submit", "launch", "end"]
