"""Swarms over four hosts by ssh, in one command: hosts that go and return, stops, agents that end."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hetplanner.plan.elastic.model import ElasticPlan, ElasticTimes
from hetplanner.plan.files.stage_checkpoints import steps_of_names
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runs.run import Run
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.presets import preset
from tests.support.hosts.host_bed import HEAD, HostBed
from tests.support.hosts.launches.ssh_lab import HETPLANNER, HOSTS, Lab
from tests.support.plans.factories import swarm_plan
from tests.support.plans.grouped import in_groups
from tests.support.processes.patience import until

pytestmark = pytest.mark.distributed

MICRO_BATCHES = 8


@pytest.fixture
def lab(bed: HostBed, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(bed, tmp_path, swarm_over(bed))
    yield lab
    lab.close()


def swarm_over(bed: HostBed) -> ElasticPlan:
    """Two stages of two peers each, a host for each peer; that of host b is a group of two devices."""
    workload = preset("tiny-gpt", global_batch=MICRO_BATCHES, micro_batch=1).replace(seq_len=16)
    plan = swarm_plan([2, 2], [workload.boundaries[1]], cluster=bed.cluster(), workload=workload, in_flight=4)
    times = ElasticTimes(silence=6.0, answer=10.0, reduce=10.0, lease=30.0)
    return in_groups(plan.replace(times=times), [1, 2, 1, 1])


def history_of(run: Run) -> SwarmHistory:
    return SwarmHistory(run.path).read_all()


def stage_files(lab: Lab, run: Run) -> list[str]:
    """Names of a run's checkpoints on all hosts. The bed is the module's: other runs have left theirs, too."""
    of_run = f"{run.id}/checkpoints/stage-*.safetensors"
    return [path.name for host in HOSTS for path in lab.bed.home(host).rglob(of_run)]


def assert_whole(lab: Lab, run: Run, steps: int) -> None:
    """Every step was committed with every micro-batch counted once, and the losses are those of one process."""
    commits = history_of(run).commits
    assert [commit.step for commit in commits][-1] == steps
    losses = {commit.step: commit.loss for commit in commits}
    _, wanted = train_reference(lab.plan.problem.workload, TrainConfig(steps=steps))
    assert [losses[step] for step in sorted(losses)] == pytest.approx(wanted, rel=2e-3)  # sums in another order drift
    for step in history_of(run).steps:
        counted = Counter[int]()
        for peer in step.peers:
            counted[peer.stage] += peer.micro_batches
        assert counted == {0: MICRO_BATCHES, 1: MICRO_BATCHES}


def test_one_command_runs_a_swarm_over_four_hosts(lab):
    done = lab.train("--steps", "8", "--json")
    assert done.returncode == 0, done.stderr
    run = lab.run()
    assert run.status().state == "finished"
    assert_whole(lab, run, 8)
    assert {stay.peer for stay in history_of(run).stays if stay.peer} == {"a-0", "b-0", "c-0", "d-0"}
    assert (run.path / "model.safetensors").read_bytes() == (folder(lab, run, "a") / "model.safetensors").read_bytes()
    assert lab.left() == {}
    assert "gradients that are averaged inside a stage do not" in " ".join(done.stderr.split())
    keys = [path for host in HOSTS for path in lab.bed.home(host).rglob("*.key")]
    assert len(keys) == 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
    assert not list(lab.home.rglob("authority.key"))


def folder(lab: Lab, run: Run, host: str) -> Path:
    return lab.bed.home(host) / "hetplanner-runs" / host / run.id


def commits(lab: Lab, run: Run, step: int) -> bool:
    """Whether a step is committed, as far as the head knows; the run must go on."""
    assert not run.status().is_over, lab.words(run)
    return any(commit.step >= step for commit in history_of(run).commits)


def peers_of(run: Run) -> set[str]:
    return set(history_of(run).now)


def test_processes_are_killed_and_a_host_goes_and_returns_and_no_work_is_lost_or_done_twice(lab):
    """In one run, one after the other."""
    process = lab.begin("--steps", "100000", "--max-restarts", "2")
    run = lab.run()
    until(lambda: commits(lab, run, 3), lambda: lab.words(run))
    kill_process(lab, run, "b", "peer")
    kill_process(lab, run, "a", "coordinator")

    lab.bed.kill_host("c")
    until(lambda: "c-0" not in peers_of(run), lambda: lab.words(run))
    goes_on(lab, run)
    words = "host c: the swarm continues without its peers and takes them back when the host returns"
    until(lambda: words in run.status().degraded, lambda: lab.words(run))
    lab.bed.boot_host("c")
    until(lambda: "c-0" in peers_of(run), lambda: lab.words(run))
    goes_on(lab, run)

    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    status = run.status()
    assert (status.state, status.restarts) == ("stopped", 0), lab.words(run)
    assert lab.left() == {}
    assert run.directory.model_file.exists(), said
    assert_whole(lab, run, history_of(run).commits[-1].step)


def kill_process(lab: Lab, run: Run, host: str, role: str) -> None:
    """A process that is killed is started again on its host, and the run goes on; of a group its last device's."""
    found = [each for each in lab.on(host) if each.cmdline() and role in process_words(lab, run, host, each)]
    assert len(found) == (2 if host == "b" else 1)
    max(found, key=lambda process: process.pid).kill()
    until(lambda: "started again (1 of 2)" in told(lab, run, host), lambda: lab.words(run))
    goes_on(lab, run)


def goes_on(lab: Lab, run: Run) -> None:
    last = history_of(run).commits[-1].step
    until(lambda: commits(lab, run, last + 4), lambda: lab.words(run))


def process_words(lab: Lab, run: Run, host: str, process: psutil.Process) -> str:
    """Which process of a host's part this is: forked ones have no command line of their own, but a log."""
    files = {Path(each.path).name for each in process.open_files()}
    return " ".join(files).replace("log-0.txt", "coordinator").replace("log-of-", "peer ")


def told(lab: Lab, run: Run, host: str) -> str:
    path = folder(lab, run, host) / "processes.jsonl"
    return path.read_text() if path.exists() else ""


def test_an_agent_that_is_told_to_end_has_the_swarm_saved_and_the_next_one_goes_on(lab):
    process = lab.begin("--steps", "100000", "--checkpoint-every", "1000", "--max-restarts", "1", "--detach")
    assert process.wait() == 0
    run = lab.run()
    until(lambda: commits(lab, run, 4), lambda: lab.words(run))
    agent = lab.agent()
    agent.send_signal(signal.SIGTERM)
    until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE, lambda: lab.words(run))
    until(lambda: not lab.left(), lab.left)  # on a busy machine hosts end after the agent that hung up
    assert "its checkpoints are on the hosts" in json.loads(run.directory.status_file.read_text())["message"]
    saved = stage_files(lab, run)
    step = history_of(run).commits[-1].step
    assert {name.rpartition("-")[2] for name in saved} == {f"{step}.safetensors"}, saved
    begin = [sys.executable, "-c", "from hetplanner.runs.agent.client import AgentClient; AgentClient()"]
    lab.bed.popen(HEAD, begin, env=lab.env).wait()
    until(lambda: commits(lab, run, step + 3), lambda: lab.words(run))
    stopped = lab.bed.run(HEAD, [HETPLANNER, "runs", "stop", run.id], env=lab.env)
    assert stopped.returncode == 0, stopped.stderr
    assert_whole(lab, run, history_of(run).commits[-1].step)
    assert lab.left() == {}


def test_the_coordinators_host_may_restart_and_the_swarm_goes_on_from_its_checkpoint(lab):
    lab.write_hosts(return_s=12)
    process = lab.begin("--steps", "100000", "--max-restarts", "1", "--checkpoint-every", "5")
    run = lab.run()
    until(lambda: commits(lab, run, 12), lambda: lab.words(run))
    lab.bed.kill_host("a")
    lab.bed.kill_host("d")  # the swarm does not wait for it
    until(lambda: run.status().restarts == 1, lambda: lab.words(run))
    lab.bed.boot_host("a")
    until(lambda: run.status().state == "running", lambda: lab.words(run))
    assert run.status().message.startswith("training, restarted from step 1"), lab.words(run)
    goes_on(lab, run)
    lab.bed.boot_host("d")
    until(lambda: "d-0" in peers_of(run), lambda: lab.words(run))
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert_whole(lab, run, history_of(run).commits[-1].step)
    assert lab.left() == {}


def ask(lab: Lab, run: Run, act: str, peer: str) -> None:
    done = lab.bed.run(HEAD, [HETPLANNER, "runs", act, run.id, peer], env=lab.env)
    assert done.returncode == 0, done.stderr


def test_peers_leave_are_killed_and_come_back_when_asked_and_the_run_goes_on_later(lab):
    process = lab.begin("--steps", "100000", "--max-restarts", "2", "--checkpoint-every", "5")
    run = lab.run()
    until(lambda: commits(lab, run, 3), lambda: lab.words(run))
    for act, peer in (("drain", "c-0"), ("kill", "b-0")):  # each the only one of its host
        ask(lab, run, act, peer)
        until(lambda peer=peer: peer not in peers_of(run), lambda: lab.words(run))
    goes_on(lab, run)
    assert peers_of(run) == {"a-0", "d-0"}, "who was asked to go stays away"
    for peer in ("b-0", "c-0"):
        ask(lab, run, "rejoin", peer)
        until(lambda peer=peer: peer in peers_of(run), lambda: lab.words(run))
    ask(lab, run, "drain", "b-0")
    until(lambda: "b-0" not in peers_of(run), lambda: lab.words(run))
    goes_on(lab, run)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert run.status().state == "stopped", lab.words(run)
    assert_whole(lab, run, history_of(run).commits[-1].step)
    assert lab.left() == {}
    saved = steps_of_names(stage_files(lab, run), 2)[0]

    few = lab.train("--resume", run.id, "--steps", "2")
    assert few.returncode == 2
    assert f"the run has done {saved} steps, so 2 leave nothing to do" in " ".join(few.stderr.split())
    done = lab.train("--resume", run.id, "--steps", str(saved + 4), "--json")
    assert done.returncode == 0, done.stderr
    again = lab.run()
    assert again.id != run.id
    made = history_of(again).commits
    assert [commit.step for commit in made] == list(range(made[0].step, saved + 5))
    assert saved - 10 < made[0].step <= saved + 1, "of the last two, only one stage's may have been decided"
    _, wanted = train_reference(lab.plan.problem.workload, TrainConfig(steps=saved + 4))
    assert [commit.loss for commit in made] == pytest.approx(wanted[made[0].step - 1 :], rel=2e-3)
    assert lab.left() == {}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--emulate-links",), "hosts have links of their own"),
        (("--resume", "last"), "no such run"),
        (("--replan", "--max-restarts", "1"), "a swarm continues without a lost host"),
    ],
)
def test_what_a_swarm_over_hosts_cannot_do_is_refused_before_anything_starts(lab, more, words):
    done = lab.train("--steps", "4", *more)
    assert done.returncode == 2, done.stdout
    assert words in " ".join(done.stderr.split())
    assert lab.left() == {}
