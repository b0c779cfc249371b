"""Ranks that are forks of their torchrun end, speak and are waited for as other programs are."""

import os
import signal
import subprocess
import sys
import time

import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from hetplanner.runtime import worker
from hetplanner.runtime.forked_ranks import WORKER_MODULE, ForkedProcess, ForkHandler


def start(*words: str, **env: str) -> SubprocessHandler:
    return ForkHandler(sys.executable, words, env, None, None, 0, None)


def rank(*arguments: str, **env: str) -> ForkedProcess:
    process = start("-u", "-m", WORKER_MODULE, *arguments, **env).proc
    assert isinstance(process, ForkedProcess)
    return process


def test_a_rank_ends_with_its_exit_code_and_what_it_says_is_heard(capfd, tmp_path, monkeypatch):
    for number, name in ((1, "stdout"), (2, "stderr")):  # as they are in torchrun, which pytest's are not
        monkeypatch.setattr(sys, name, os.fdopen(number, "w", closefd=False))
    assert rank("--help").wait(600) == 0
    assert "One rank of a run" in capfd.readouterr().out
    assert rank("plan.json", "--no-such-option").wait(600) == 2
    assert "unrecognized arguments" in capfd.readouterr().err
    process = rank(str(tmp_path / "none.json"), RANK="3")
    assert process.wait(600) == 1
    assert "hetplanner worker: " in capfd.readouterr().err
    assert "none.json" in (tmp_path / "none-run" / "log-3.txt").read_text()
    assert process.poll() == 1, "asked again, it says the same"


def test_a_rank_has_a_session_of_its_own_and_no_descriptor_of_its_torchrun(monkeypatch):
    monkeypatch.setattr(worker, "run_to_exit", lambda arguments: time.sleep(600))
    reader, writer = os.pipe()
    process = rank("plan.json")
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"", "the rank holds the pipe open"
        assert os.getsid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    finally:
        os.close(reader)
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_any_other_program_is_started_as_torchrun_does():
    process = start("-c", "raise SystemExit(5)").proc
    assert isinstance(process, subprocess.Popen)
    assert process.wait() == 5
