"""How an end is judged: by steps, not by exit codes; a preemption is told from a failure."""

import json
import signal
from dataclasses import replace

import pytest

from hetplanner.elastic.coordinator.decisions import Finished, Resumed
from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import Preempted
from hetplanner.liveness.heartbeat import Beat
from hetplanner.liveness.ranks import Lost
from hetplanner.runs.agent import memory_events
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reports.outcome import Departure, judge_end
from hetplanner.swarm.decision_file import DECISIONS_FILE, DecisionFile
from tests.support.runs.fake_ranks import SUMMARY

LABELS = ("tokyo", "paris")
STEPS, LAUNCHER = 300, 77
BEAT = Beat(
    pid=10, born_ticks=1, attempt=0, beats=9, activity="done", progress=99, steps=STEPS, waits_for=None, step_s=0.05,
    exit_code=0, signum=0, sender=0,
)  # fmt: skip
TOLD = replace(BEAT, exit_code=Preempted.exit_code, signum=signal.SIGTERM, sender=LAUNCHER)


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path)


def save(directory, steps):
    (directory.path / "model.json").write_text(json.dumps({"steps_of_stages": [steps, steps]}))
    directory.model_file.write_bytes(b"weights")


def checkpoint(directory, step):
    (directory.path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


def report(directory, rank, code, others=1):
    text = SUMMARY.replace("exitcode  : 1 ", f"exitcode  : {others} ")
    directory.launcher_log.write_text(text.format(rank=rank, code=code, signal="", why="…"))


def judged(directory, code, beats=(BEAT, BEAT), **left):
    return judge_end(directory, LABELS, STEPS, Departure(code, LAUNCHER, beats, **left))


def test_all_steps_saved_is_finished(directory):
    save(directory, STEPS)
    assert judged(directory, 0).state == "finished"
    assert judged(directory, 0, beats=()).state == "finished"


@pytest.mark.parametrize("code", [1, -9, -15, None])
def test_a_launcher_that_was_killed_after_everything_was_done_changes_nothing(directory, code):
    save(directory, STEPS)
    assert judged(directory, code).state == "finished"
    assert judged(directory, code, beats=(BEAT, replace(BEAT, exit_code=None))).state != "finished"


@pytest.mark.parametrize("info", [6, None, "damaged"])
def test_exit_code_0_without_the_steps_is_not_finished(directory, info):
    if info == 6:
        save(directory, 6)
    elif info == "damaged":
        save(directory, STEPS)
        (directory.path / "model.json").write_text('{"steps_of_stages": [')
    end = judged(directory, 0)
    assert (end.state, end.may_go_on) == ("failed", True)
    assert f"of {STEPS} steps" in end.message


def test_a_stop_is_a_stop_and_what_was_done_is_done(directory):
    assert judged(directory, 0, stop_asked=True).state == "stopped"
    assert "before a model was saved" in judged(directory, 0, stop_asked=True).message
    save(directory, 6)
    assert judged(directory, 0, stop_asked=True).message == "stopped"
    save(directory, STEPS)
    assert judged(directory, 0, stop_asked=True).state == "finished"


def test_a_rank_that_was_sent_a_signal_is_named_with_the_sender_and_what_is_saved(directory):
    report(directory, 1, 75, others=75)
    checkpoint(directory, 12)
    beats = (replace(TOLD, signum=0, sender=0), replace(TOLD, sender=4711))
    end = judged(directory, 1, beats)
    assert (end.state, end.may_go_on) == ("preempted", True)
    assert end.message == "preempted: rank 1 (paris) was sent SIGTERM from process 4711; saved after step 12"


def test_a_launcher_that_was_told_to_end_has_told_its_ranks(directory):
    end = judged(directory, 1, (TOLD, TOLD))
    assert end.state == "preempted"
    assert end.message == "preempted: the launcher was told to end; there was nothing to save yet"


def test_what_the_agent_passed_on_is_the_agents(directory):
    end = judged(directory, 1, (TOLD, TOLD), agent_told=True)
    assert (end.state, "the agent was told to end" in end.message) == ("preempted", True)


def test_ranks_that_the_launcher_ends_because_one_was_killed_were_not_preempted(directory):
    report(directory, 1, -9)
    end = judged(directory, 1, (TOLD, replace(BEAT, exit_code=None)))
    assert (end.state, end.failed_rank, end.may_go_on) == ("failed", 1, True)
    assert end.message == "rank 1 (paris) was killed by SIGKILL; the sender is not known"


def test_an_error_of_its_own_is_the_cause_though_the_others_were_told_to_end(directory):
    record = {"type": "error", "text": "ValueError: no text in data", "traceback": ""}
    directory.telemetry_file(1).write_text(json.dumps(record) + "\n")
    report(directory, 1, 1)
    end = judged(directory, 1, (TOLD, replace(BEAT, exit_code=1)))
    assert (end.state, end.may_go_on) == ("failed", False)


@pytest.mark.parametrize("code", [-9, -15, None])
def test_a_launcher_that_was_killed_is_no_reason_not_to_go_on(directory, code):
    directory.telemetry_file(0).write_text("")
    left = (replace(BEAT, exit_code=None), replace(BEAT, exit_code=None))
    assert judged(directory, code, left).may_go_on
    assert judged(directory, code, ()).may_go_on


def test_ranks_that_saved_after_their_launcher_was_killed_are_preempted(directory):
    checkpoint(directory, 12)
    alone = replace(TOLD, signum=0, sender=0)
    end = judged(directory, -9, (alone, alone))
    assert end.state == "preempted"
    assert "the launcher was killed by SIGKILL; the sender is not known; saved after step 12" in end.message


def test_a_rank_that_was_given_up_is_told_as_it_was_found(directory):
    lost = Lost(1, "rank 1 (paris) has been silent for 1.7 s")
    end = judged(directory, -9, (BEAT, replace(BEAT, exit_code=None)), lost=lost)
    assert (end.state, end.message, end.failed_rank, end.may_go_on) == ("failed", lost.message, 1, True)


def test_a_swarms_launcher_knows_by_itself(directory):
    def elastic(code, **left):
        return judge_end(directory, ("coordinator",), STEPS, Departure(code, LAUNCHER, **left), elastic=True)

    assert elastic(0).state == "finished"
    assert elastic(0, stop_asked=True).state == "stopped"
    assert elastic(75).state == "preempted"
    assert elastic(75).may_go_on
    directory.telemetry_file(0).write_text("")
    directory.launcher_log.write_text("$ command\nno trainer is left\n")
    assert elastic(4).message == "no trainer is left"
    assert elastic(4).may_go_on
    directory.launcher_log.write_text("told to end by SIGTERM, after step 6 of 300\n")
    assert elastic(75).message.startswith("preempted: told to end by SIGTERM, after step 6 of 300; ")
    assert not elastic(2).may_go_on
    assert elastic(-9).state == "failed"
    log = DecisionFile(directory.path / DECISIONS_FILE)
    for decision in (Resumed(0, Version(0, STEPS)), Finished(1, Version(0, STEPS))):
        log.append(decision)
    log.close()
    assert elastic(-9).state == "finished"
    assert elastic(None).state == "finished"


# -- lack of memory -------------------------------------------------------------------------------


def test_only_what_the_kernel_counted_is_called_lack_of_memory(directory):
    report(directory, 1, -9)
    told = judged(directory, 1, (), oom="/sys/fs/cgroup/x/memory.events: oom_kill 3 to 4").message
    assert "the kernel was short of memory: /sys/fs/cgroup/x/memory.events: oom_kill 3 to 4" in told


def test_counters_of_both_kinds_of_control_groups_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_events, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_events, "VMSTAT", tmp_path / "vmstat")
    monkeypatch.setattr(memory_events, "_cgroup_files", lambda: [tmp_path / "memory.events"])
    assert memory_events.oom_kills() == {}
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\noom 1\noom_kill 3\n")
    before = memory_events.oom_kills()
    assert before == {str(tmp_path / "memory.events"): 3}
    assert memory_events.new_oom_kills(before, memory_events.oom_kills()) == ""
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    (tmp_path / "vmstat").write_text("oom_kill 9\n")  # not known before
    assert memory_events.new_oom_kills(before, memory_events.oom_kills()).endswith("memory.events: oom_kill 3 to 4")
    assert memory_events.new_oom_kills({}, memory_events.oom_kills()) == ""
