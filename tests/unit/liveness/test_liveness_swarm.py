"""When a process of a swarm counts as hung, and what is said of it; with a clock and a kernel that are made up."""

import os

import pytest

from hetplanner.liveness.heartbeat import HEARTBEAT_VARIABLE, Heartbeat, create_heartbeats
from hetplanner.liveness.process_facts import ProcessFacts
from hetplanner.liveness.ranks import DISK_WAIT_S, SILENT_S, STOPPED_S
from hetplanner.liveness.swarm import SLOW_S, STARTING_S, SwarmLiveness

TICK_S = 0.1


class Bench:
    """One process, whose counters are moved by hand."""

    def __init__(self, path):
        create_heartbeats(path, 2)
        self.now_s, self.state, self.ticks, self.pid = 0.0, "S", 0, os.getpid()
        self.liveness = SwarmLiveness(path, lambda: self.now_s, lambda pid: ProcessFacts(self.state, self.ticks, 0))
        self.beat = Heartbeat.of_rank(1, 0)
        self.beat.end(0)  # its thread counts no longer

    def pass_time(self, seconds, beats=True, turns=True, computes=False):
        """Looks every tenth of a second; returns the words about it at the end, if there are any."""
        found = {}
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.beat._row[3] += beats
            self.ticks += computes
            if turns:
                self.beat.advance()
            found = self.liveness.find_hung({"d0": (1, self.pid)})
            if found:
                break
        return found.get("d0")

    def is_noticed_after(self, seconds, words, **still):
        """Whether it hangs after so long, and not before."""
        assert self.pass_time(seconds - 2 * TICK_S, **still) is None
        return words in (self.pass_time(1.0, **still) or "")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "beats"))
    bench = Bench(tmp_path / "beats")
    bench.beat.enter("training")
    assert bench.pass_time(1.0) is None
    return bench


@pytest.mark.parametrize(("state", "words"), [("T", "is stopped"), ("t", "is held by a debugger")])
def test_a_short_stop_is_nothing_and_a_long_one_is_noticed_in_time(bench, state, words):
    bench.state = state
    assert bench.pass_time(0.3, beats=False, turns=False) is None
    bench.state = "S"
    assert bench.pass_time(1.0) is None
    bench.state = state
    assert bench.is_noticed_after(STOPPED_S, words, beats=False, turns=False)


def test_a_silent_process_is_noticed_within_three_seconds_though_it_is_not_stopped(bench):
    assert SILENT_S <= 3.0
    assert bench.is_noticed_after(SILENT_S, "has been silent", beats=False, turns=False)


def test_an_event_loop_that_does_not_turn_is_noticed_though_the_process_lives(bench):
    assert bench.is_noticed_after(SILENT_S, "has taken no message", turns=False)


def test_an_event_loop_that_waits_for_a_computing_thread_has_more_time(bench):
    assert bench.is_noticed_after(SLOW_S, "without taking a message", turns=False, computes=True)


def test_who_waits_for_a_core_is_slow_and_who_waits_for_a_disk_has_more_time(bench):
    bench.state = "R"
    assert bench.pass_time(SLOW_S - 1, beats=False, turns=False) is None
    assert bench.pass_time(1.0) is None
    bench.state = "D"
    assert bench.is_noticed_after(DISK_WAIT_S, "waits for a disk", beats=False, turns=False)


def test_a_process_that_begins_has_time_to_load_what_it_needs(bench):
    bench.beat.enter("importing")
    assert bench.pass_time(SLOW_S + 5, turns=False) is None
    bench.pid += 1  # another process, of which nothing has come yet
    assert bench.is_noticed_after(STARTING_S, "has been silent", beats=False, turns=False)


def test_who_was_stopped_itself_accuses_nobody(bench):
    bench.state = "T"
    bench.now_s += 60.0
    assert bench.pass_time(STOPPED_S - 0.2, beats=False, turns=False) is None


def test_without_the_file_nobody_is_accused(bench, tmp_path):
    (tmp_path / "beats").unlink()
    assert bench.pass_time(2 * SILENT_S, beats=False, turns=False) is None
