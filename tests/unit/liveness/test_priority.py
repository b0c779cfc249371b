"""Work in the background gives way to what answers a person, also across Linux's sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetplanner.liveness.priority import AUTOGROUP, NICENESS, work_in_background

TELL = """
import os
from hetplanner.liveness.priority import AUTOGROUP, work_in_background
work_in_background()
print(os.nice(0), AUTOGROUP.read_text() if AUTOGROUP.exists() else "")
"""


def told(**how: bool) -> str:
    return subprocess.run([sys.executable, "-c", TELL], check=True, capture_output=True, text=True, **how).stdout


def has_autogroups() -> bool:
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return AUTOGROUP.exists() and switch.exists() and switch.read_text().strip() == "1"


def test_a_process_with_a_session_of_its_own_lowers_its_session_too():
    niceness, _, group = told(start_new_session=True).partition(" ")
    assert int(niceness) >= NICENESS
    if has_autogroups():
        assert group.strip().endswith(f"nice {NICENESS}")


def test_a_process_of_another_session_leaves_that_as_it_is():
    before = AUTOGROUP.read_text() if has_autogroups() else ""
    assert int(told().partition(" ")[0]) >= NICENESS
    assert (AUTOGROUP.read_text() if has_autogroups() else "") == before


def test_a_system_without_autogroups_has_the_niceness_alone(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "nice", asked.append)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    work_in_background(tmp_path / "none" / "autogroup")
    assert asked == [NICENESS]
    with pytest.raises(FileNotFoundError):
        (tmp_path / "none" / "autogroup").read_text()
