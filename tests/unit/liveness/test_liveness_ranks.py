"""Who is given up as silent, judged from made-up looks; and what the kernel tells of real processes."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from hetplanner.liveness.heartbeat import EVERYONE, HEARTBEAT_VARIABLE, Beat, Heartbeat, born_ticks, create_heartbeats
from hetplanner.liveness.process_facts import ProcessFacts, process_facts, tracer_of
from hetplanner.liveness.ranks import (
    LIMITS_S,
    MAX_COUNTED_S,
    LivenessWatch,
    Lost,
    Seen,
    find_lost,
    look,
    warnings,
)

TICK_S = 0.1
NAMES = ("d0, host h0", "d1, host h1", "d2, host h1")
BUSY = ProcessFacts("R", 100, 100)
ASLEEP = ProcessFacts("S", 100, 100)
STOPPED = ProcessFacts("T", 100, 100)
BEAT = Beat(
    pid=10, born_ticks=1, attempt=0, beats=0, activity="training", progress=0, steps=7, waits_for=None, step_s=0.05,
    exit_code=None, signum=0, sender=0,
)  # fmt: skip


class Ranks:
    """Looks at ranks that change as a test says, until one is given up."""

    def __init__(self, *beats: Beat) -> None:
        self.beats = list(beats)
        self.facts: list[ProcessFacts | None] = [ASLEEP] * len(beats)
        self.seen: list[Seen | None] = [None] * len(beats)

    def work(self, *ranks: int) -> None:
        """These live and get on; all others are as they were."""
        for rank in ranks:
            beat, facts = self.beats[rank], self.facts[rank]
            self.beats[rank] = replace(beat, beats=beat.beats + 1, progress=beat.progress + 1)
            self.facts[rank] = replace(facts, ticks=facts.ticks + 1, main_ticks=facts.main_ticks + 1)

    def beat(self, *ranks: int) -> None:
        for rank in ranks:
            self.beats[rank] = replace(self.beats[rank], beats=self.beats[rank].beats + 1)

    def look(self) -> Lost | None:
        parts = zip(self.seen, self.beats, self.facts, strict=True)
        self.seen = [look(before, beat, facts, TICK_S) for before, beat, facts in parts]
        return find_lost(self.seen, NAMES)

    def until_lost(self, limit_s: float, *working: int, beating: tuple[int, ...] = ()) -> tuple[float, Lost] | None:
        """Seconds of looks until somebody is given up, and who."""
        for number in range(int(limit_s / TICK_S)):
            self.work(*working)
            self.beat(*beating)
            if lost := self.look():
                return number * TICK_S, lost
        return None


def test_ranks_that_work_are_never_given_up():
    assert Ranks(BEAT, BEAT).until_lost(100, 0, 1) is None


def test_a_stopped_rank_is_named_with_device_host_and_step_within_two_seconds():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = STOPPED
    after_s, lost = ranks.until_lost(10, 0)
    assert after_s <= 2.0
    assert lost.rank == 1
    assert lost.message.startswith("rank 1 (d1, host h1) has been silent for 1.")
    assert lost.message.endswith("in training, step 7: process 10 is stopped")


def test_a_pause_of_a_fifth_of_a_second_again_and_again_is_nothing():
    ranks = Ranks(BEAT, BEAT)
    for _ in range(50):
        ranks.facts[1] = STOPPED
        assert ranks.until_lost(0.3, 0) is None
        ranks.facts[1] = ASLEEP
        assert ranks.until_lost(0.2, 0, 1) is None


def test_long_steps_give_more_time():
    slow = replace(BEAT, step_s=4.0)
    ranks = Ranks(slow, slow)
    ranks.facts[1] = STOPPED
    assert 8.0 <= ranks.until_lost(100, 0)[0] <= 8.5


def test_a_heart_that_stands_still_is_noticed_though_the_process_is_not_stopped():
    after_s, lost = Ranks(BEAT, BEAT).until_lost(10, 0)
    assert (lost.rank, after_s <= 3.0) == (1, True)
    assert "has been silent" in lost.message
    assert "process 10 sleeps" in lost.message


def test_a_main_thread_that_hangs_is_noticed_though_its_heart_beats():
    after_s, lost = Ranks(BEAT, BEAT).until_lost(10, 0, beating=(1,))
    assert (lost.rank, after_s <= 3.0) == (1, True)
    assert "has stood still" in lost.message


def test_who_waits_for_another_is_not_to_blame():
    waiting = replace(BEAT, waits_for=1)
    ranks = Ranks(waiting, BEAT)
    _, lost = ranks.until_lost(10, beating=(0, 1))
    assert lost.rank == 1


def test_a_process_that_starves_or_holds_the_interpreter_is_not_silent():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = BUSY  # ready, but gets no core
    assert ranks.until_lost(60, 0) is None
    ranks = Ranks(BEAT, BEAT)
    for _ in range(300):
        ranks.facts[1] = replace(ranks.facts[1], ticks=ranks.facts[1].ticks + 1)
        ranks.work(0)
        assert (ranks.look() or Lost(None, "")).message == "" or ranks.seen[1].silent_s == 0.0
        if ranks.seen[1].still_s > 2.5:
            break  # its main thread does nothing: that is another matter


def test_who_computes_without_getting_on_is_given_up_much_later():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = BUSY
    assert ranks.until_lost(100, 0, beating=(1,)) is None
    _, lost = ranks.until_lost(60, 0, beating=(1,))
    assert "has computed for" in lost.message


def test_a_rank_that_is_not_given_up_yet_is_told_of():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = ProcessFacts("D", 100, 100)
    assert ranks.until_lost(0.9, 0) is None
    assert warnings(ranks.seen, NAMES) == ()
    assert ranks.until_lost(2.0, 0) is None
    (words,) = warnings(ranks.seen, NAMES)
    assert words.startswith("rank 1 (d1, host h1) is silent in training, step 7: process 10 waits for a disk")
    ranks.work(1)
    ranks.look()
    assert warnings(ranks.seen, NAMES) == ()
    ranks.facts[1] = BUSY
    assert ranks.until_lost(11.0, 0, beating=(1,)) is None
    assert "computes without getting on" in warnings(ranks.seen, NAMES)[0]


def test_a_disk_or_network_file_system_may_take_longer():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = ProcessFacts("D", 100, 100)
    after_s, lost = ranks.until_lost(60, 0)
    assert after_s > 9.0
    assert "waits for a disk" in lost.message


@pytest.mark.parametrize("activity", ["importing", "checkpointing", "saving", "building"])
def test_outside_of_training_a_long_silence_is_work_and_a_stopped_process_still_silent(activity):
    at = replace(BEAT, activity=activity, step_s=None)
    assert Ranks(at, at).until_lost(LIMITS_S[activity] - 1, 0) is None
    ranks = Ranks(at, at)
    ranks.facts[1] = STOPPED
    assert ranks.until_lost(3, 0)[1].rank == 1


def test_the_first_steps_may_take_longer():
    new = replace(BEAT, step_s=None)
    assert Ranks(new, new).until_lost(50, 0, beating=(1,)) is None


def test_when_all_wait_for_each_other_nobody_is_blamed_and_what_is_known_is_said():
    ranks = Ranks(replace(BEAT, waits_for=1), replace(BEAT, waits_for=0), replace(BEAT, waits_for=EVERYONE))
    after_s, lost = ranks.until_lost(60, beating=(0, 1, 2))
    assert after_s >= 29.0
    assert lost.rank is None
    assert "rank 0 in training, step 7, waiting for rank 1" in lost.message
    assert "rank 2 in training, step 7, waiting for the others" in lost.message


def test_a_rank_that_is_gone_without_a_word_is_noticed_and_one_that_ended_is_not():
    ranks = Ranks(BEAT, BEAT)
    ranks.facts[1] = None
    _, lost = ranks.until_lost(10, 0)
    assert "ended without a word" in lost.message
    ranks = Ranks(BEAT, replace(BEAT, exit_code=0))
    ranks.facts[1] = None
    assert ranks.until_lost(60, 0) is None


def test_a_new_attempt_begins_anew():
    ranks = Ranks(BEAT)
    ranks.facts[0] = STOPPED
    assert ranks.until_lost(1.5) is None
    ranks.beats[0] = replace(BEAT, attempt=1)
    ranks.look()
    assert ranks.seen[0].silent_s == 0.0


# -- with real processes --------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"],
                               stdout=subprocess.PIPE)  # fmt: skip
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def state(pid: int) -> str:
    return process_facts(pid).state


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_kernel_tells_sleeping_stopped_traced_and_gone(sleeper):
    until(lambda: state(sleeper.pid) == "S")
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: process_facts(sleeper.pid).is_stopped)
    assert tracer_of(sleeper.pid) is None
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: state(sleeper.pid) == "S")
    assert process_facts(sleeper.pid, born_ticks(sleeper.pid)) is not None
    assert process_facts(sleeper.pid, 1) is None  # its number, but another process
    sleeper.kill()
    until(lambda: process_facts(sleeper.pid) is None)  # a zombie is gone, too


def watched(tmp_path, monkeypatch, clock) -> tuple[LivenessWatch, Heartbeat]:
    path = tmp_path / "beats"
    create_heartbeats(path, 1)
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    return LivenessWatch(path, NAMES[:1], timer=lambda: clock[0]), Heartbeat.of_rank(0, 0)


def test_a_stopped_launcher_is_silent_too(tmp_path, monkeypatch, sleeper):
    clock = [0.0]
    watch, beat = watched(tmp_path, monkeypatch, clock)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: process_facts(sleeper.pid).is_stopped)
    found = None
    for _ in range(25):
        beat.advance()
        clock[0] += TICK_S
        found = found or watch.find_lost(0, sleeper.pid)
    assert found.rank is None
    assert found.message.startswith("the launcher has been silent for 1.")
    assert watch.warnings() == ()
    beat.end(0)


def test_time_in_which_the_agent_did_not_look_counts_against_nobody(tmp_path, monkeypatch, sleeper):
    """It was stopped or starved itself, or the machine slept."""
    clock = [0.0]
    watch, beat = watched(tmp_path, monkeypatch, clock)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: process_facts(sleeper.pid).is_stopped)
    for _ in range(10):
        clock[0] += 100.0
        assert watch.find_lost(0, sleeper.pid) is None
    for _ in range(5):  # late looks count a part of their time
        clock[0] += 0.9
        assert watch.find_lost(0, sleeper.pid) is None
    assert 5 * MAX_COUNTED_S < 5 * 0.9
    beat.end(0)


def test_what_cannot_be_read_gives_nobody_up(tmp_path):
    watch = LivenessWatch(tmp_path / "none", NAMES)
    assert watch.find_lost(0, os.getpid()) is None
    (tmp_path / "none").write_bytes(os.urandom(500))
    assert watch.find_lost(0, os.getpid()) is None
