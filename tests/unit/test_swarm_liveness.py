"""When a process of a swarm counts as hung, and what is said of it; with a clock and a system that are made up."""

import os

import pytest

from hetplanner.runtime.heartbeat import HEARTBEAT_VARIABLE, Heartbeat, create_heartbeats
from hetplanner.swarm.liveness import SILENT_S, STARTING_S, STOPPED_S, Liveness


class Bench:
    """One process, whose counters are moved by hand."""

    def __init__(self, path):
        create_heartbeats(path, 2)
        self.now_s, self.state, self.pid = 0.0, "sleeping", os.getpid()
        self.liveness = Liveness(path, lambda: self.now_s, lambda pid: self.state)
        self.beat = Heartbeat.of_rank(1, 0)
        self.beat.end(0)  # its thread counts no longer

    def pass_time(self, seconds, beats=True, turns=True):
        """In looks of a tenth of a second; returns the words about it at the end, if there are any."""
        found = {}
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            self.beat._row[3] += beats
            if turns:
                self.beat.advance()
            found = self.liveness.find_hung({"d0": (1, self.pid)})
            if found:
                break
        return found.get("d0")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "beats"))
    bench = Bench(tmp_path / "beats")
    bench.beat.enter("training")
    assert bench.pass_time(1.0) is None
    return bench


def test_a_short_stop_is_nothing_and_a_long_one_is_noticed_in_time(bench):
    bench.state = "stopped"
    assert bench.pass_time(0.3, beats=False, turns=False) is None
    bench.state = "sleeping"
    assert bench.pass_time(1.0) is None
    bench.state, began_s = "tracing-stop", bench.now_s
    words = bench.pass_time(5.0, beats=False, turns=False)
    assert words is not None
    assert "has been stopped for 2." in words
    assert STOPPED_S < bench.now_s - began_s <= 3.0


def test_who_waits_for_a_core_has_more_time_and_is_not_called_stopped(bench):
    assert bench.pass_time(SILENT_S - 1, beats=False, turns=False) is None
    assert "no sign of life" in bench.pass_time(2.0, beats=False, turns=False)


def test_an_event_loop_that_does_not_turn_is_noticed_though_the_process_lives(bench):
    assert bench.pass_time(SILENT_S - 1, turns=False) is None
    assert "lives, but has taken no message" in bench.pass_time(2.0, turns=False)


def test_a_process_that_begins_has_time_to_load_what_it_needs(bench):
    bench.beat.enter("importing")
    assert bench.pass_time(SILENT_S + 5, turns=False) is None
    bench.pid += 1  # another process, of which nothing has come yet
    assert bench.pass_time(STARTING_S - 5) is None
    assert "no sign of life" in bench.pass_time(10.0)


def test_who_was_stopped_itself_accuses_nobody(bench):
    bench.state = "stopped"
    bench.now_s += 60.0
    assert bench.pass_time(STOPPED_S - 0.2, beats=False, turns=False) is None


def test_without_the_file_nobody_is_accused(bench, tmp_path):
    (tmp_path / "beats").unlink()
    assert bench.pass_time(2 * SILENT_S, beats=False, turns=False) is None
