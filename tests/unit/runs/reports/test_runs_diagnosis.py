import json

import pytest

from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reports.diagnosis import diagnose, launcher_exit_codes
from tests.support.runs.fake_ranks import SUMMARY

LABELS = ("tokyo", "paris", "oregon")
ECHO = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711"


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path)


def error(directory, rank, text, traceback="Traceback\n  deep\n" + "last words"):
    record = {"type": "error", "text": text, "traceback": traceback}
    directory.telemetry_file(rank).write_text(json.dumps(record) + "\n")


def report(directory, rank, code, name=""):
    text = SUMMARY.format(rank=rank, code=code, signal=name, why="…")
    directory.launcher_log.write_text("W1120 noise\n" + text)


def test_exit_codes_are_read_from_torchruns_summary_first_failure_first(directory):
    report(directory, 2, -9, "(SIGKILL)")
    assert list(launcher_exit_codes(directory).items()) == [(2, -9), (0, 1)]


def test_a_killed_rank_is_named_though_its_peers_report_errors(directory):
    error(directory, 0, ECHO)
    error(directory, 1, ECHO)
    report(directory, 2, -9, "(SIGKILL)")
    directory.log_file(2).write_text("step 3\nstep 4\n")
    found = diagnose(directory, LABELS, 1)
    assert found.failed_rank == 2
    assert found.message.startswith("rank 2 (oregon) was killed by SIGKILL")
    assert found.last_lines == ("step 3", "step 4")


def test_a_rank_that_failed_by_itself_is_named_before_the_echoes(directory):
    error(directory, 0, ECHO)
    error(directory, 1, "ValueError: no text in data")
    error(directory, 2, ECHO)
    report(directory, 0, 1)
    found = diagnose(directory, LABELS, 1)
    assert found.failed_rank == 1
    assert found.message == "rank 1 (paris) failed: ValueError: no text in data"
    assert found.last_lines[-1] == "last words"


def test_among_equals_the_one_the_launcher_saw_first_is_named(directory):
    error(directory, 0, "same")
    error(directory, 2, "same")
    report(directory, 2, 1)
    assert diagnose(directory, LABELS, 1).failed_rank == 2


def test_a_rank_ended_by_the_launcher_is_not_to_blame(directory):
    error(directory, 1, "ValueError: own fault")
    report(directory, 2, -15, "(SIGTERM)")
    assert diagnose(directory, LABELS, 1).failed_rank == 1


def test_an_exit_code_alone_is_told(directory):
    report(directory, 2, 7)
    found = diagnose(directory, LABELS, 1)
    assert found.failed_rank in (0, 2)
    assert "ended with exit code" in found.message


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "exit code 3"), (-11, "killed by SIGSEGV"), (-99, "killed by signal 99"), (None, "no agent was watching")],
)
def test_a_launcher_that_started_no_rank_is_told_with_its_last_lines(directory, code, text):
    directory.launcher_log.write_text("$ torchrun\nno module named x\n")
    found = diagnose(directory, LABELS, code)
    assert found.failed_rank is None
    assert text in found.message
    assert found.last_lines == ("$ torchrun", "no module named x")


def test_garbage_is_survived(directory):
    directory.telemetry_file(0).write_bytes(b'{"type":"error"\n\xff\xfe\n' + b"x" * 10**6)
    directory.launcher_log.write_bytes(b"rank : zzz\n" + bytes(range(256)) * 100)
    assert diagnose(directory, LABELS, 1).failed_rank is None


def test_messages_are_bounded(directory):
    error(directory, 0, "x" * 100_000)
    directory.log_file(0).write_text("y" * 100_000)
    found = diagnose(directory, LABELS, 1)
    assert len(found.message) <= 2000
    assert all(len(line) <= 400 for line in found.last_lines)
