"""Swarms whose coordinator, trainers, peers or launcher die or stop: run by the agent, they end with all steps done."""

import json
import os
import signal

import psutil
import pytest

from hetplanner.errors import Preempted
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runtime.train.reference import train_reference
from hetplanner.swarm.initial_state import read_ledger
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.launch.restarts import PROCESSES_FILE
from tests.support.plans.factories import slow_swarm
from tests.support.processes.patience import HANG_S, until
from tests.support.swarms.swarm_runs import losses_of, small_spec

pytestmark = pytest.mark.distributed

STEPS = 14
# Nobody moves, so that each stage keeps a peer when one dies.
PLAN = slow_swarm((2, 2), peaks=(4e9,), micro_batches=4).replace(rebalancing=Rebalancing(policy="none"))


def settings(**more):
    return TrainConfig(**({"steps": STEPS, "emulate_links": True, "checkpoint_every": 4, "max_restarts": 9} | more))


def until_step(run, step):
    """Waits until so many steps are committed, whatever happens meanwhile."""
    history = SwarmHistory(run.path)

    def is_there():
        assert not run.status().is_over, run.status().message
        return history.poll() and history.commits and history.commits[-1].step >= step

    until(is_there, lambda: run.log(None))


def process_of(run, log):
    """The living process of a run that writes this log."""
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/fd/1") == str(run.path / log) and process.is_running():
                return process
        except (OSError, psutil.Error):
            continue
    raise AssertionError(f"nobody writes {log}")


def restarted(run):
    lines = (run.path / PROCESSES_FILE).read_text().splitlines()
    return [(event["peer"], event["text"]) for event in map(json.loads, lines) if event["kind"] == "restarted"]


def losses(run):
    """Of every step as it was done last; each must have counted every micro-batch of every stage once."""
    lines = (run.path / "events.jsonl").read_text().splitlines()
    commits = {e["version"][1]: e for e in map(json.loads, lines) if e["kind"] == "commit"}
    for commit in commits.values():
        peers = commit.get("peers", [])  # an untold commit is told without
        by_stage = {sum(count for _, at, count, _ in peers if at == stage) for stage in (0, 1)} if peers else set()
        assert by_stage <= {PLAN.num_micro_batches}
    return [commits[step]["loss"] for step in sorted(commits)]


def check_end(run, steps=STEPS):
    """All steps are done, with the losses of one process."""
    status = run.wait(HANG_S)
    assert status.state == "finished", (status, run.log(None))
    _, wanted = train_reference(PLAN.problem.workload, TrainConfig(steps=steps))
    assert losses(run)[-steps:] == pytest.approx(wanted[-len(losses(run)) :], rel=1e-5)
    assert read_ledger(run.path).is_finished(steps)


def test_a_swarm_goes_on_whoever_of_it_dies_or_stops(client):
    run = client.start(PLAN, settings())
    until_step(run, 2)
    process_of(run, "log-0.txt").kill()
    process_of(run, "log-of-trainer-0.txt").terminate()
    until_step(run, 4)
    process_of(run, "log-of-d0.txt").kill()
    until_step(run, 6)
    process_of(run, "log-0.txt").send_signal(signal.SIGSTOP)
    process_of(run, "log-of-d3.txt").send_signal(signal.SIGSTOP)
    until_step(run, 8)
    process_of(run, "log-0.txt").terminate()
    check_end(run)
    told = restarted(run)
    assert [who for who, _ in told].count("coordinator") >= 2
    assert {"trainer-0", "d0", "d3"} <= {who for who, _ in told}
    assert any("was killed by SIGKILL" in text for who, text in told if who == "d0")
    assert any("is stopped" in text for who, text in told if who == "d3")
    assert len(losses_of(run.path)) == STEPS  # no step was done twice
    assert run.status().restarts == 0


def test_a_swarm_whose_launcher_dies_or_is_preempted_goes_on_from_its_checkpoint(client):
    run = client.start(PLAN, settings())
    until_step(run, 5)
    psutil.Process(run.status().pid).kill()
    until_step(run, 7)
    until_step(run, 9)
    psutil.Process(run.status().pid).terminate()
    check_end(run)
    assert run.status().restarts == 2
    history = SwarmHistory(run.path).read_all()
    steps = [commit.step for commit in history.commits]
    assert steps.count(5) == 2  # the checkpoint was of step 4
    assert all(steps.count(step) == 1 for step in range(9, STEPS + 1))  # a preemption writes one
    assert history.counts["set back"] == 1


def test_a_swarm_that_is_preempted_is_resumed_and_a_chain_of_runs_too(client):
    config = settings(max_restarts=0, checkpoint_every=None)
    run = client.start(PLAN, config)
    until_step(run, 3)
    psutil.Process(run.status().pid).terminate()
    assert run.wait(HANG_S).state == "preempted"
    done = read_ledger(run.path).version.step
    first = losses(run)
    second = client.start(PLAN, config.replace(resume=str(run.path)))
    until_step(second, done + 1)
    process_of(second, "log-0.txt").kill()  # before its first checkpoint, and it may not be started again
    assert second.wait(HANG_S).state == "failed"
    third = client.start(PLAN, config.replace(resume=str(second.path)))
    assert third.wait(HANG_S).state == "finished", third.log(None)
    assert third.read_all().resumed()[0] == done
    _, wanted = train_reference(PLAN.problem.workload, TrainConfig(steps=STEPS))
    assert first[:done] + losses(third) == pytest.approx(wanted, rel=1e-5)


def test_a_coordinator_that_waits_for_its_first_peers_ends_when_it_is_told_to(tmp_path):
    for number, code in ((signal.SIGTERM, Preempted.exit_code), (signal.SIGINT, 0)):
        with Rehearsal(small_spec(), tmp_path / number.name) as rehearsal:
            rehearsal.start_coordinator()
            until(lambda path=rehearsal.run_dir / "events.jsonl": path.exists() and b"boot" in path.read_bytes())
            rehearsal.signal("coordinator", number)
            rehearsal.processes["coordinator"].join(HANG_S)
            assert rehearsal.processes["coordinator"].exitcode == code
