"""What ranks tell the agent through shared memory."""

import os
import signal
import struct
import time

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import (
    ACTIVITIES,
    EVERYONE,
    HEARTBEAT_VARIABLE,
    Heartbeat,
    born_ticks,
    create_heartbeats,
    read_heartbeats,
)
from hetplanner.runs.reading.telemetry import PHASES


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "beats"
    create_heartbeats(path, 3)
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    return path


def test_what_a_rank_writes_is_what_the_agent_reads(path):
    size = path.stat().st_size
    beat = Heartbeat.of_rank(1, attempt=2)
    beat.enter("training")
    for _ in range(3):
        beat.end_step(7, 0.25)
    beat.wait_for(2)
    silent, mine, _ = read_heartbeats(path)
    assert (silent.pid, silent.activity, silent.step_s, silent.exit_code) == (0, "starting", None, None)
    assert (mine.pid, mine.born_ticks, mine.attempt) == (os.getpid(), born_ticks(os.getpid()), 2)
    assert (mine.activity, mine.steps, mine.step_s, mine.waits_for) == ("training", 7, 0.25, 2)
    before = mine.progress
    beat.advance()
    beat.note_signal(signal.SIGTERM, 4711)
    mine = read_heartbeats(path)[1]
    assert (mine.progress, mine.waits_for, mine.signum, mine.sender) == (before + 1, None, signal.SIGTERM, 4711)
    beat.wait_for(EVERYONE)
    beat.end(0)
    assert read_heartbeats(path)[1].waits_for == EVERYONE
    assert read_heartbeats(path)[1].exit_code == 0
    assert path.stat().st_size == size


def test_the_heart_beats_by_itself(path):
    beat = Heartbeat.of_rank(0, attempt=0)
    before, deadline = read_heartbeats(path)[0].beats, time.monotonic() + 20
    while read_heartbeats(path)[0].beats < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    beat.end(0)


def test_a_file_that_is_cleared_forgets_the_attempt_before(path):
    Heartbeat.of_rank(0, attempt=0).end(75)
    create_heartbeats(path, 3)
    assert read_heartbeats(path)[0].exit_code is None


@pytest.mark.parametrize("variable", [None, "/no/such/file", "damaged"])
def test_a_rank_works_without_a_file_too(path, monkeypatch, variable):
    if variable is None:
        monkeypatch.delenv(HEARTBEAT_VARIABLE)
    elif variable == "damaged":
        path.write_bytes(b"x" * 1000)
    else:
        monkeypatch.setenv(HEARTBEAT_VARIABLE, variable)
    beat = Heartbeat.of_rank(0, attempt=0)
    beat.enter("saving")
    beat.end(0)


def test_a_link_or_another_runs_rank_is_refused(path, tmp_path, monkeypatch, caplog):
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        create_heartbeats(link, 3)
    Heartbeat.of_rank(3, attempt=0)
    assert "is of 3 ranks, this is rank 3" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "short", "long", "version", "magic", "activity"])
def test_damage_is_told(path, damage):
    data = bytearray(path.read_bytes())
    match damage:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(data[:70])
        case "long":
            path.write_bytes(data + b"x")
        case "version":
            struct.pack_into("<I", data, 16, 99)
        case "magic":
            data[0] ^= 1
        case "activity":
            struct.pack_into("<Q", data, 64 + 4 * 8, 12345)
    if damage in ("version", "magic", "activity"):
        path.write_bytes(data)
    with pytest.raises(InvalidInput, match="beats: "):
        read_heartbeats(path)


def test_every_phase_that_is_told_is_an_activity():
    assert [name for name in ACTIVITIES if name in PHASES] == list(PHASES)
