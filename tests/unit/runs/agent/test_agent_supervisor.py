"""The owner of runs, with a launcher of small scripts instead of torchrun."""

import itertools
import json
import os
import signal
import stat

import psutil
import pytest

from hetplanner.errors import InvalidInput, RunError
from hetplanner.launchers.capacity import Machine
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.supervisor import Supervisor
from hetplanner.runs.directory import find_run
from hetplanner.runs.run import Run
from hetplanner.runs.status import read_status, write_status
from tests.support.plans.factories import chain_plan
from tests.support.processes import patience
from tests.support.processes.patience import HANG_S
from tests.support.runs.fake_launcher import FakeLauncher, check_all_ended, processes_under
from tests.support.runs.supervised import end_runs, reach, until

LONG = TrainConfig(steps=100_000)


@pytest.fixture
def plan():
    return chain_plan(shares=(1, 1), cuts=(4,))


@pytest.fixture
def home(tmp_path):
    yield tmp_path
    check_all_ended(tmp_path)


@pytest.fixture
def supervise(home):
    """Makes supervisors, and ends what they still run."""
    made = []

    def make(mode="train", **settings):
        made.append(Supervisor(home, launcher=FakeLauncher(mode), **settings))
        return made[-1]

    yield make
    for supervisor in made:
        end_runs(supervisor)


# -- a run from start to end ----------------------------------------------------------------------


def test_a_run_goes_from_starting_over_running_to_finished(supervise, plan, home):
    supervisor = supervise()
    run_id = supervisor.submit(plan, TrainConfig(steps=20)).run
    assert supervisor.status(run_id).state == "starting"
    assert reach(supervisor, run_id, "running").message == "training"
    status = reach(supervisor, run_id, "finished")
    assert status.created_unix_s <= status.started_unix_s <= status.ended_unix_s
    assert read_status(find_run(run_id, home)[1].status_file) == status
    run = Run(find_run(run_id, home)[1].path)
    assert run.summary()["steps"] == 20
    assert "fake_ranks.py train" in run.log(None)[0]  # the log begins with what was run


def test_every_launch_is_audited(supervise, plan, home):
    supervisor = supervise()
    run_id = supervisor.submit(plan, TrainConfig(steps=1)).run
    reach(supervisor, run_id, "finished")
    path = home / "agent" / "launches.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["event"] for r in records] == ["submit", "launch", "end"]
    assert {r["run"] for r in records} == {run_id}
    assert records[0]["plan"] == plan.digest()
    assert records[0]["config"]["steps"] == 1
    assert records[1]["argv"][2] == "train"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_rehearsal_is_labelled(supervise, plan):
    rehearsal = plan.replace(problem=plan.problem.replace(rehearsal_of="gpt3-xl on dtfm_5"))
    supervisor = supervise()
    assert supervisor.submit(rehearsal, TrainConfig(steps=1)).rehearsal
    assert supervisor.submit(plan, TrainConfig(steps=1)).rehearsal is False


def test_the_folder_of_the_callers_choice_is_used(supervise, plan, home):
    supervisor = supervise()
    run_id = supervisor.submit(plan, TrainConfig(steps=1), home / "mine").run
    reach(supervisor, run_id, "finished")
    assert read_status(home / "mine" / "status.json").run == run_id


def test_launched_processes_do_not_think_they_are_ranks_of_another_run(supervise, plan, home, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "other")
    supervisor = supervise("slow-start")
    run_id = supervisor.submit(plan, LONG).run
    process = psutil.Process(supervisor.status(run_id).pid)
    patience.until(process.environ, "the environment of the process stays empty")  # exec fills it after Popen returns
    env = process.environ()
    assert "MASTER_PORT" not in env
    assert "TORCHELASTIC_RUN_ID" not in env
    assert env["HETPLANNER_RUN"] == str(find_run(run_id, home)[1].path)


# -- failures -------------------------------------------------------------------------------------


def test_a_crash_names_the_rank_and_its_last_lines(supervise, plan):
    supervisor = supervise("crash")
    status = reach(supervisor, supervisor.submit(plan, LONG).run, "failed")
    assert status.failed_rank == 1
    assert status.message == "rank 1 (d1) failed: ValueError: the data folder has 3 bytes of text"
    assert status.last_lines[-1] == "ValueError: the data folder has 3 bytes of text"


def test_a_killed_rank_is_named(supervise, plan):
    supervisor = supervise("killed")
    status = reach(supervisor, supervisor.submit(plan, LONG).run, "failed")
    assert status.failed_rank == 1
    assert "killed by SIGKILL" in status.message
    assert status.last_lines == ("rank 1 of 4", "ready")


def test_a_run_whose_rank_was_killed_is_started_again_and_goes_on(supervise, plan, home):
    supervisor = supervise("killed-once")
    run_id = supervisor.submit(plan, TrainConfig(steps=60, max_restarts=1)).run
    status = reach(supervisor, run_id, "running")
    until(supervisor, lambda: supervisor.status(run_id).restarts == 1)
    assert supervisor.status(run_id).message.startswith("restarting, since rank 1 (d1) was killed by SIGKILL")
    until(supervisor, lambda: supervisor.status(run_id).state == "running")
    assert supervisor.status(run_id).message == "training, restarted from step 3"
    end = reach(supervisor, run_id, "finished")
    assert (end.restarts, end.failed_rank, end.started_unix_s) == (1, None, status.started_unix_s)
    run = Run(find_run(run_id, home)[1].path).read_all()
    assert [s.step for s in run.steps()] == list(range(60)), "no step twice, none missing"
    assert [s.step for s in run.steps() if s.step_s is None] == [0, 5]
    assert (run.restarts, run.resumed()[0], run.corrupted_lines) == (1, 3, 0)
    assert run.ranks[0].error is None
    assert not (run.path / "stop.signalled").exists()
    assert "SIGKILL" in (run.path / "launcher-0.txt").read_text()
    events = [json.loads(line)["event"] for line in (home / "agent" / "launches.jsonl").read_text().splitlines()]
    assert events == ["submit", "launch", "restart", "launch", "end"]


@pytest.mark.parametrize(("mode", "restarts"), [("killed", 2), ("crash", 0), ("broken", 0)])
def test_restarts_are_bounded_and_no_cure_for_what_would_repeat(supervise, plan, mode, restarts):
    supervisor = supervise(mode)
    run_id = supervisor.submit(plan, TrainConfig(steps=10, max_restarts=2)).run
    status = reach(supervisor, run_id, "failed")
    assert status.restarts == restarts


def test_the_worker_knows_the_agents_word_for_attempts():
    from hetplanner.launchers.interface import ATTEMPT_VARIABLE
    from hetplanner.runtime import worker

    assert worker.ATTEMPT_VARIABLE == ATTEMPT_VARIABLE


def test_a_launcher_that_breaks_is_told(supervise, plan):
    supervisor = supervise("broken")
    status = reach(supervisor, supervisor.submit(plan, LONG).run, "failed")
    assert status.failed_rank is None
    assert "exit code 3" in status.message
    assert "no module named nothing" in status.last_lines


def test_processes_that_outlive_the_launcher_are_ended(supervise, plan, home):
    supervisor = supervise("orphans")
    reach(supervisor, supervisor.submit(plan, LONG).run, "failed")
    assert processes_under(home) == []


def test_a_killed_launcher_takes_its_orphans_with_it(supervise, plan, home):
    supervisor = supervise("deaf")
    run_id = supervisor.submit(plan, LONG).run
    reach(supervisor, run_id, "running")
    until(supervisor, lambda: len(processes_under(home)) == 3)
    os.kill(supervisor.status(run_id).pid, signal.SIGKILL)
    status = reach(supervisor, run_id, "failed")
    assert "killed by SIGKILL" in status.message
    assert processes_under(home) == []


def test_a_program_that_cannot_be_started_fails_the_run_and_nothing_else(supervise, plan, monkeypatch):
    monkeypatch.setattr("tests.support.runs.fake_launcher.sys.executable", "/no/such/python")
    supervisor = supervise()
    status = reach(supervisor, supervisor.submit(plan, LONG).run, "failed")
    assert "No such file" in status.message


def test_a_machine_that_filled_up_while_a_run_waited_fails_it(supervise, plan, monkeypatch):
    monkeypatch.setattr("hetplanner.launchers.capacity.this_machine", lambda: Machine(8, 10**6))
    supervisor = supervise()
    assert "this machine cannot hold the run" in supervisor.submit(plan, LONG).message


def test_missing_data_is_refused_before_anything_is_made(supervise, plan, home):
    supervisor = supervise()
    with pytest.raises(InvalidInput, match=r"data: /no/such is neither a file nor a folder"):
        supervisor.check(plan, TrainConfig(data="/no/such"))
    assert not (home / "runs").exists()


# -- stop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "slow-start", "deaf"])
def test_stop_ends_every_process(supervise, plan, home, mode):
    supervisor = supervise(mode)
    run_id = supervisor.submit(plan, LONG).run
    if mode == "slow-start":
        until(supervisor, lambda: supervisor.status(run_id).message == "importing")
    else:
        reach(supervisor, run_id, "running")
    if mode == "deaf":
        until(supervisor, lambda: len(processes_under(home)) == 3)
    assert supervisor.stop(run_id).state == "stopping"
    status = reach(supervisor, run_id, "stopped")
    assert processes_under(home) == []
    assert status.message == ("stopped" if mode == "train" else "stopped before a model was saved")
    assert supervisor.stop(run_id) == status  # a second stop changes nothing


def test_the_deadlines_of_a_stop_leave_room_in_five_seconds(supervise, plan):
    from hetplanner.runs.agent import supervisor as module
    from hetplanner.runs.agent.service import TICK_S

    assert module.GRACE_S + module.TERMINATE_S + 5 * TICK_S <= 4.5
    now = [100.0]
    supervisor = supervise("deaf", timer=lambda: now[0])
    run_id = supervisor.submit(plan, LONG).run
    reach(supervisor, run_id, "running")
    supervisor.stop(run_id)
    now[0] += module.GRACE_S + module.TERMINATE_S
    reach(supervisor, run_id, "stopped")


def test_stopping_a_waiting_run_starts_nothing(supervise, plan):
    supervisor = supervise("slow-start")
    supervisor.submit(plan, LONG)
    waiting = supervisor.submit(plan, LONG).run
    assert supervisor.stop(waiting).state == "stopped"
    assert supervisor.num_live == 1


def test_an_unknown_run_is_refused(supervise):
    with pytest.raises(InvalidInput, match="no such run"):
        supervise().stop("nope")


# -- queue ----------------------------------------------------------------------------------------


def test_runs_take_turns_in_order(supervise, plan):
    supervisor = supervise()
    ids = [supervisor.submit(plan, LONG).run for _ in range(2)] + [supervisor.submit(plan, TrainConfig(steps=3)).run]
    assert supervisor.status(ids[1]).message == f"waits for {ids[0]}"
    supervisor.stop(ids[0])
    ends = [reach(supervisor, ids[0], "stopped")]
    until(supervisor, lambda: supervisor.status(ids[2]).message == f"waits for {ids[1]}")
    supervisor.stop(ids[1])
    ends += [reach(supervisor, ids[1], "stopped"), reach(supervisor, ids[2], "finished")]
    for before, after in itertools.pairwise(ends):
        assert before.ended_unix_s <= after.started_unix_s


def test_the_queue_is_bounded(supervise, plan, home):
    supervisor = supervise("slow-start", max_queued=2)
    for _ in range(3):
        supervisor.submit(plan, LONG)
    with pytest.raises(RunError, match=r"the queue is full: 1 run\(s\) alive, 2 waiting \(at most 2\)"):
        supervisor.submit(plan, LONG)
    assert len(list((home / "runs").iterdir())) == 3


def test_more_than_one_may_run_where_asked(supervise, plan):
    supervisor = supervise("slow-start", max_running=2)
    states = [supervisor.submit(plan, LONG).state for _ in range(3)]
    assert states == ["starting", "starting", "queued"]


# -- an agent that comes back ---------------------------------------------------------------------


def test_living_runs_are_adopted_and_followed_to_their_end(supervise, plan):
    first = supervise()
    run_id = first.submit(plan, TrainConfig(steps=100)).run
    reach(first, run_id, "running")
    pid = first.status(run_id).pid
    process = first._runs.pop(run_id).process  # the first agent is gone; as its children's parent we still reap
    second = supervise()
    second.adopt()
    assert second.status(run_id).pid == pid
    assert second.status(run_id).state == "running"
    process.wait(HANG_S)
    assert reach(second, run_id, "finished").message == "finished"


def test_a_run_is_adopted_once_though_an_earlier_run_had_its_folder(supervise, plan, home):
    first = supervise()
    run_id = first.submit(plan, TrainConfig(steps=100), home / "out").run
    earlier = home / "runs" / f"20200101-{run_id}"
    earlier.symlink_to(home / "out", target_is_directory=True)
    reach(first, run_id, "running")
    process = first._runs.pop(run_id).process
    second = supervise()
    second.adopt()
    assert second.live_ids == (run_id,)
    second.stop(run_id)
    reach(second, run_id, "stopped")
    process.wait(HANG_S)


def test_an_adopted_run_can_be_stopped(supervise, plan, home):
    first = supervise("deaf")
    run_id = first.submit(plan, LONG).run
    reach(first, run_id, "running")
    process = first._runs.pop(run_id).process
    second = supervise()
    second.adopt()
    second.stop(run_id)
    until(second, lambda: process.poll() is not None)
    reach(second, run_id, "stopped")
    assert processes_under(home) == []


def test_waiting_runs_keep_their_place(supervise, plan):
    first = supervise("slow-start")
    running, waiting = (first.submit(plan, TrainConfig(steps=2)).run for _ in range(2))
    process = first._runs.pop(running).process
    first._runs.clear()
    second = supervise()
    second.adopt()
    assert second.status(waiting).state == "queued"
    second.stop(running)
    until(second, lambda: process.poll() is not None)
    reach(second, waiting, "finished")


def test_a_lost_run_is_failed_and_what_is_left_of_it_ended(supervise, plan, home):
    first = supervise("deaf")
    run_id = first.submit(plan, LONG).run
    reach(first, run_id, "running")
    until(first, lambda: len(processes_under(home)) == 3)
    process = first._runs.pop(run_id).process
    process.kill()
    process.wait()
    second = supervise()
    second.adopt()
    status = reach(second, run_id, "failed")
    assert "while no agent was watching" in status.message
    assert processes_under(home) == []


def test_a_reused_pid_is_not_mistaken_for_the_run(supervise, plan, home):
    first = supervise("slow-start")
    run_id = first.submit(plan, LONG).run
    file = find_run(run_id, home)[1].status_file
    first.stop(run_id)
    reach(first, run_id, "stopped")
    lost = read_status(file).replace(state="running", ended_unix_s=None, pid=os.getpid())
    write_status(file, lost)
    find_run(run_id, home)[1].stop_file.unlink()
    second = supervise()
    second.adopt()
    reach(second, run_id, "failed")  # and this test's own process, whose pid the file names, lives on


def test_damaged_runs_are_passed_over(supervise, plan, home):
    first = supervise()
    run_id = first.submit(plan, TrainConfig(steps=1)).run
    reach(first, run_id, "finished")
    find_run(run_id, home)[1].status_file.write_text("{")
    (home / "runs" / "20200101-000000-x-0000").mkdir()
    second = supervise()
    second.adopt()
    assert second.num_live == 0
