"""Faults thrown at one real run of two ranks, one after the other, with nothing done by hand."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hetplanner.liveness.processes import processes_of_run
from hetplanner.plan.files.checkpoints import checkpoint_folder, checkpoint_steps
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from hetplanner.runs.run import open_run
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.processes.patience import HANG_S, until
from tests.support.runs.fake_launcher import rank_of

pytestmark = pytest.mark.distributed

STEPS = 240
FAULTS = {
    "pause": "",
    "term a rank": "was sent SIGTERM",
    "stop a rank": "is stopped",
    "kill the launcher": "the launcher was killed by SIGKILL",
    "term the launcher": "preempted",
    "kill the agent": "",
    "term the agent": "the agent was told to end",
}
"""With what the message of the restart says; without: there is none."""


def faulty_plan():
    """Two ranks whose steps take some 50 ms."""
    return chain_plan([4], [4], cluster=small_cluster(2, latency="20 ms"))


def train(home, *options: str) -> subprocess.Popen:
    """`hetplanner train` in the foreground."""
    command = [sys.executable, "-m", "hetplanner.cli", "train", str(home / "plan.json"), "--emulate-links", "--json"]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)


def started(client: subprocess.Popen):
    return open_run(json.loads(client.stdout.readline())["id"])


def throw(fault: str, run, agent_pid: int) -> None:
    match fault:
        case "pause":
            victim = rank_of(run, 1)
            for _ in range(3):
                victim.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                victim.send_signal(signal.SIGCONT)
                time.sleep(0.1)
        case "term a rank":
            rank_of(run, 1).send_signal(signal.SIGTERM)
        case "stop a rank":
            rank_of(run, 0).send_signal(signal.SIGSTOP)
        case "kill the launcher":
            os.kill(run.status().pid, signal.SIGKILL)
        case "term the launcher":
            os.kill(run.status().pid, signal.SIGTERM)
        case "kill the agent":
            os.kill(agent_pid, signal.SIGKILL)
        case "term the agent":
            os.kill(agent_pid, signal.SIGTERM)


def survive(run, fault: str, words: str, restarts: int) -> int:
    """Throws a fault at a run that trains, and sees that it is noticed. Returns how often the run was restarted."""
    until(lambda: run.status().state == "running" and run.status().restarts == restarts)
    before, agent = steps_done(run), find_agent(run.home)
    until(lambda: steps_done(run) >= before + 5)
    throw(fault, run, agent.pid)
    if words:
        until(lambda: run.status().restarts > restarts)
        assert words in run.status().message, (fault, run.status())
    elif fault == "kill the agent":
        until(lambda: (new := find_agent(run.home)) is not None and new.pid != agent.pid)
    assert not run.status().is_over, (fault, run.status())
    return restarts + bool(words)


def steps_done(run) -> int:
    run.poll()
    return max((s.step for s in run.steps()), default=-1) + 1


def digest(run) -> str:
    return hashlib.sha256((run.path / "model.safetensors").read_bytes()).hexdigest()


def test_after_every_fault_the_run_goes_on_and_its_model_is_the_undisturbed_ones(home):
    save_plan(faulty_plan(), home / "plan.json")
    with train(home, "--steps", str(STEPS), "--checkpoint-every", "10", "--max-restarts", "20") as client:
        run = started(client)
        restarts = 0
        for fault, words in FAULTS.items():
            restarts = survive(run, fault, words, restarts)
        assert client.wait(HANG_S) == 0
    status = run.status()
    assert (status.state, status.restarts) == ("finished", restarts), status
    run.read_all()
    assert [s.step for s in run.steps()] == list(range(STEPS))
    assert processes_of_run(run.path) == []
    assert not os.path.exists(status.heartbeats)
    with train(home, "--steps", str(STEPS)) as undisturbed:
        undisturbed_run = started(undisturbed)
        assert undisturbed.wait(HANG_S) == 0
    assert digest(run) == digest(undisturbed_run)


def test_a_preempted_run_without_restarts_ends_with_75_and_is_resumed_through_a_chain(home):
    save_plan(faulty_plan(), home / "plan.json")
    with train(home, "--steps", "60") as client:
        first = started(client)
        until(lambda: steps_done(first) >= 5)
        rank_of(first, 1).send_signal(signal.SIGTERM)
        assert client.wait(HANG_S) == 75
    assert first.status().state == "preempted"
    (saved,) = checkpoint_steps(first.path)
    assert f"saved after step {saved}" in first.status().message
    # A run that is stopped before its first checkpoint stands for the one that it went on from.
    second = AgentClient(home).start(faulty_plan(), TrainConfig(steps=60, resume=str(first.path)))
    assert second.stop().state == "stopped"
    assert not checkpoint_folder(second.path, saved).exists()
    with train(home, "--resume", "last") as client:
        third = started(client)
        assert client.wait(HANG_S) == 0
    assert third.status().state == "finished"
    assert third.read_all().resumed()[:2] == (saved, str(first.path))
