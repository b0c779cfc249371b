"""Runs over four hosts by ssh, each in a network namespace with an sshd of its own, launched as a person does."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hetplanner.errors import Preempted
from hetplanner.liveness.processes import RUN_MARK
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.placement import ranks_by_host
from hetplanner.runs.run import Run
from tests.support.hosts import netns
from tests.support.hosts.cloud import Aws
from tests.support.hosts.host_bed import HEAD, HostBed
from tests.support.hosts.launches.ssh_lab import END_AGENT, HETPLANNER, HOSTS, Lab
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, until

pytestmark = pytest.mark.distributed

IMPOSTOR = """#!{python}
import importlib.metadata, runpy, sys, time
version, now = importlib.metadata.version, time.time
importlib.metadata.version = lambda package: {versions}.get(package) or version(package)
time.time = lambda: now() + {seconds}
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A Python on a host that says other versions, and another time, than there are."""


LISTENER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 29500))
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def lab(bed: HostBed, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(bed, tmp_path)
    yield lab
    lab.close()


@dataclass
class First:
    """A run to its end, as `train` said it, with what was left on the hosts."""

    lab: Lab
    run: Run
    done: subprocess.CompletedProcess[str]
    left: dict[str, list[str]]


FIRST_STEPS = 8


@pytest.fixture(scope="module")
def first(bed: HostBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    """For tests that read a run, or go on from it."""
    lab = Lab(bed, tmp_path_factory.mktemp("first"))
    done = lab.train("--steps", str(FIRST_STEPS), "--checkpoint-every", "4", "--json")
    yield First(lab, lab.run(), done, lab.left())
    lab.close()


def assert_complete(lab: Lab, run: Run, steps: int) -> None:
    """All ranks' files are on the head as they are on the hosts, and tell of every step."""
    run.read_all()
    folders = {host: lab.bed.home(host) / "hetplanner-runs" / host / run.id for host in HOSTS}
    for rank, host in enumerate(HOSTS):
        told = [json.loads(line) for line in (run.path / f"rank-{rank}.jsonl").read_text().splitlines()]
        assert {line["step"] for line in told if line["type"] == "step"} == set(range(steps))
        name, log = f"rank-{rank}.jsonl", f"log-{rank}.txt"
        assert (run.path / name).read_bytes() == (folders[host] / name).read_bytes()
        here = run.path / log  # nothing was brought where nothing was said
        assert (here.read_bytes() if here.exists() else b"") == (folders[host] / log).read_bytes()
    assert (run.path / "model.safetensors").read_bytes() == (folders["a"] / "model.safetensors").read_bytes()
    assert run.summary()["lost_lines"] == 0


# -- a run ----------------------------------------------------------------------------------------


def test_a_run_over_four_hosts_is_that_of_one_machine(first):
    lab, run = first.lab, first.run
    assert first.done.returncode == 0, first.done.stderr
    assert first.left == {}
    assert_complete(lab, run, FIRST_STEPS)
    here = lab.train("--steps", str(FIRST_STEPS), launcher="local")
    assert here.returncode == 0, here.stderr
    second = lab.run()
    second.read_all()
    assert second.id != run.id
    assert len(run.losses()) == FIRST_STEPS
    assert run.losses() == second.losses()
    assert run.validation_losses() == second.validation_losses()
    assert (run.path / "model.safetensors").read_bytes() == (second.path / "model.safetensors").read_bytes()
    report = lab.bed.run(HEAD, [HETPLANNER, "runs", "report", run.id], env=lab.env)
    assert report.returncode == 0, report.stderr
    states = json.loads((run.path / "hosts.json").read_text())["hosts"]
    assert set(states) == set(HOSTS)
    assert all(abs(state["clock_s"]) <= state["clock_error_s"] + 0.05 for state in states.values())


def test_a_run_goes_on_from_an_earlier_one_on_the_same_hosts(first):
    lab, steps = first.lab, str(FIRST_STEPS + 3)
    done = lab.train("--steps", steps, "--resume", first.run.id)
    assert done.returncode == 0, done.stderr
    assert f"resumed from step {FIRST_STEPS}" in done.stdout
    run = lab.run()
    run.read_all()
    assert [step for step, _ in run.losses()] == list(range(FIRST_STEPS, FIRST_STEPS + 3))
    here = lab.train("--steps", steps, "--resume", first.run.id, launcher="local")
    assert here.returncode == 2 or "no checkpoint" in here.stderr  # its parts are on the hosts


def test_lines_to_paste_run_as_they_stand(lab):
    dry = lab.train("--dry-run", "--out", str(lab.folder / "run"), launcher="torchrun")
    assert dry.returncode == 0, dry.stderr
    lines = [line for line in dry.stdout.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 4
    assert not (lab.folder / "run").exists()
    (lab.folder / "run").mkdir()
    save_plan(load_plan(lab.plan_file), lab.folder / "run" / "plan.json")
    (lab.folder / "run" / "run.json").write_text('{"format": "hetplanner/run@1", "steps": 3}')
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {"PATH": path_of_hosts()}}
    started = [lab.bed.popen(h, ["sh", "-c", line], **options) for h, line in zip(HOSTS, lines, strict=True)]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4, said
    assert (lab.folder / "run" / "model.safetensors").exists()
    refused = lab.train(launcher="torchrun")
    assert refused.returncode == 2
    assert "torchrun starts no process; paste its lines" in refused.stderr


def path_of_hosts() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def test_a_dry_run_says_what_each_host_runs_and_asks_none(lab):
    done = lab.train("--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)["commands"]
    assert [command["host"] for command in commands] == list(HOSTS)
    assert all("--rdzv-backend=hetplanner" in command["argv"] for command in commands)
    assert commands[2]["env"]["HETPLANNER_ADDRESS"] == lab.bed.address("c")
    assert not lab.home.exists()


@pytest.fixture(scope="module")
def chosen(
    bed: HostBed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lab, subprocess.CompletedProcess[str]]]:
    """A page's user has run a plan with two ranks on a host, in an order of hosts that is not theirs."""
    cluster = bed.cluster({"c": 2, "a": 1, "b": 1})
    ids = ("c-0", "b-0", "c-1", "a-0")
    plan = chain_plan(shares=(2, 2), cuts=(4,), cluster=cluster)
    renamed = dict(zip(plan.ranks, ids, strict=True))
    stages = tuple(s.replace(replicas=tuple((renamed[d],) for (d,) in s.replicas)) for s in plan.stages)
    lab = Lab(bed, tmp_path_factory.mktemp("chosen"), plan.replace(stages=stages, ranks=ids))
    lab.home.mkdir(mode=0o700)
    (lab.home / "agent.toml").write_text(f'[hosts]\nlab = "{lab.hosts_file}"\n')
    (lab.home / "agent.toml").chmod(0o600)
    yield lab, as_a_page(lab, "lab")
    lab.close()


def as_a_page(lab: Lab, choice: str) -> subprocess.CompletedProcess[str]:
    """Starts the lab's plan as the dashboard does."""
    code = (
        "import sys; from hetplanner.plan.files.plan_files import load_plan;"
        "from hetplanner.plan.train import TrainConfig;"
        "from hetplanner.runs.agent.client import AgentClient; from hetplanner.runs.agent.allowed_paths import Choice;"
        "run = AgentClient().start(load_plan(sys.argv[1]), TrainConfig(steps=5), launcher='ssh',"
        " choice=Choice(hosts=sys.argv[2])); print(run.wait(600).state)"
    )
    return lab.bed.run(HEAD, [sys.executable, "-c", code, str(lab.plan_file), choice], env=lab.env)


def test_a_page_chooses_hosts_by_the_name_that_the_agent_offers(chosen):
    lab, done = chosen
    assert done.stdout.strip() == "finished", done.stderr + lab.words(lab.run())
    refused = as_a_page(lab, "other")
    assert "hosts: 'other' is not offered by the agent (lab)" in refused.stderr


def test_two_ranks_on_a_host_and_an_order_of_hosts_that_is_not_theirs(chosen):
    lab, _ = chosen
    run = lab.run()
    assert lab.steps(run) == 5
    for rank, host in enumerate(("c", "b", "c", "a")):
        folder = lab.bed.home(host) / "hetplanner-runs" / host / run.id
        assert (folder / f"rank-{rank}.jsonl").read_bytes() == (run.path / f"rank-{rank}.jsonl").read_bytes()
        assert len(list(folder.glob("rank-*.jsonl"))) == (2 if host == "c" else 1)


# -- its end --------------------------------------------------------------------------------------


def test_ctrl_c_at_the_start_leaves_no_process_on_any_host(lab):
    """While it trains: at the end of the story of faults."""
    process = lab.begin("--steps", "100000")
    begun = next(line for line in process.stdout if line.startswith("run "))
    run = lab.run()
    assert run.id in begun
    until(lambda: any(lab.on(name) for name in HOSTS), "nothing begins")
    end_by_ctrl_c(lab, process, run)
    assert not run.directory.model_file.exists()


def end_by_ctrl_c(lab: Lab, process: subprocess.Popen[str], run: Run) -> None:
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert run.status().state == "stopped", lab.words(run)
    assert lab.left() == {}


def test_ctrl_c_while_hosts_are_still_asked_starts_nothing(lab):
    process = lab.begin("--steps", "100000")
    until(lambda: any(lab.on(name) for name in HOSTS), "no host is asked")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    until(lambda: lab.left() == {}, "hosts are still asked")
    ended = lab.bed.run(HEAD, [sys.executable, "-c", END_AGENT], env=lab.env)  # it has no run that could go on
    assert ended.returncode == 0, ended.stderr
    assert list((lab.home / "runs").iterdir()) == []


def test_a_cloud_that_takes_a_host_away_has_the_run_saved_first(lab):
    lab.write_hosts(b={"notice": "aws"})
    cloud = Aws(lab.bed, "b")
    try:
        process = lab.begin("--steps", "100000")
        run = lab.reach(process, 5)
        cloud.give_notice()
        assert process.wait(HANG_S) == Preempted.exit_code, process.stdout.read()
    finally:
        cloud.close()
    assert run.status().state == "preempted"
    why = "preempted: AWS will terminate this machine at 2026-11-25T15:00:00Z (rank 1, b-0, host b); saved after step"
    assert run.status().message.startswith(why), f"{run.status().message}\n{lab.words(run)}"
    step = int(run.status().message.rpartition(" ")[2])
    assert step == lab.steps(run)
    saved = f"{run.id}/checkpoints/step-{step:08}/rank-*"
    assert all(list(lab.bed.home(host).rglob(saved)) for host in HOSTS), "each host can go on from there"


def test_a_run_goes_on_without_a_host_under_a_plan_made_anew(first):
    lab, steps = first.lab, FIRST_STEPS + 4
    rest = lab.train("--resume", first.run.id, "--steps", str(steps), "--without", "d", "--budget", "1s")
    assert rest.returncode == 0, rest.stderr
    assert "planned anew without d: " in rest.stderr
    run = lab.run()
    assert "d" not in ranks_by_host(load_plan(run.directory.plan_file))
    assert run.read_all().resumed()[0] == FIRST_STEPS
    before, after = first.run.read_all().losses(), run.losses()
    assert [step for step, _ in after] == list(range(FIRST_STEPS, steps))
    assert all(loss < before[0][1] for _, loss in after)  # equal losses: test_resume_other_plan.py


def test_a_run_goes_on_by_itself_without_a_host_and_with_it_when_it_is_back(lab):
    lab.write_hosts(return_s=3)
    lab.slow_down("a")
    steps = 200
    settings = ("--checkpoint-every", "10", "--max-restarts", "1", "--replan")
    process = lab.begin("--steps", str(steps), *settings)
    first = lab.reach(process, 15)
    lab.bed.kill_host("d")
    until(lambda: first.successor() is not None, lambda: lab.words(first))
    second = first.successor()
    assert first.status().state == "preempted"
    assert first.status().message.startswith("preempted: host d has not come back for 3")
    assert first.status().message.endswith(f"; goes on without d as run {second.id}")
    assert "d" not in ranks_by_host(load_plan(second.directory.plan_file))
    until(lambda: lab.steps(second) >= 3, lambda: lab.words(second))
    lab.bed.boot_host("d")
    until(lambda: second.successor() is not None, lambda: lab.words(second))
    third = second.successor()
    assert second.status().message.startswith("preempted: host d is back; saved after step")
    said = process.communicate()[0]
    assert process.returncode == 0, said + lab.words(third)
    assert f"goes on with all hosts as run {third.id}" in " ".join(said.split())
    assert third.status().state == "finished"
    assert load_plan(third.directory.plan_file).digest() == lab.plan.digest()
    assert lab.left() == {}
    losses: dict[int, float] = {}
    for run in (first, second, third):
        losses |= dict(run.read_all().losses())
    assert sorted(losses) == list(range(steps))
    assert losses[steps - 1] < losses[0]  # equal losses: test_resume_other_plan.py


def audit(lab: Lab, event: str) -> list[dict]:
    """What the agent did."""
    lines = (lab.home / "agent" / "launches.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def test_an_error_of_a_rank_is_told_and_not_repeated(lab):
    for name in HOSTS:
        (lab.bed.home(name) / "words.txt").write_text("too little")
    done = lab.train("--steps", "5", "--data", "~/words.txt", "--max-restarts", "3")
    assert done.returncode == 4
    status = lab.run().status()
    assert status.restarts == 0
    assert "words.txt" in status.message
    assert lab.left() == {}


# -- what befalls hosts, network and agent --------------------------------------------------------


def test_a_run_outlives_a_cut_an_agent_ranks_and_its_head_and_has_the_losses_of_an_undisturbed_one(lab):
    """One run that all this befalls, one after the other; then Ctrl-C."""
    lab.env["SECRET_TOKEN"] = "do-not-tell"
    lab.slow_down("a")
    process = lab.begin("--steps", "100000", "--checkpoint-every", "4", "--max-restarts", "3")
    run = lab.reach(process, 5)
    assert_nothing_secret_is_in_arguments(lab, run)

    lab.bed.cut("b")
    noticed = "host b has not been heard of for"
    until(lambda: any(noticed in text for text in run.status().degraded), lambda: lab.words(run))
    lab.bed.join("b")
    goes_on(lab, process, run)

    lab.agent().kill()
    until(lambda: audit(lab, "adopt"), lambda: lab.words(run))
    goes_on(lab, process, run)
    assert run.status().restarts == 0

    lab.rank_on("d").kill()
    restarts(lab, process, run, 1)
    assert "killed by SIGKILL" in audit(lab, "restart")[0]["why"]

    lab.rank_on("c").send_signal(signal.SIGSTOP)
    restarts(lab, process, run, 2)
    assert audit(lab, "restart")[1]["why"].startswith("rank 2 (c-0, host c) has been silent for")

    psutil.Process(run.status().pid).kill()
    restarts(lab, process, run, 3)

    end_by_ctrl_c(lab, process, run)
    assert run.directory.model_file.exists()
    steps = lab.steps(run)
    assert_complete(lab, run, steps)
    assert_losses_of_an_undisturbed_run(lab, run, steps)


def goes_on(lab: Lab, process: subprocess.Popen[str], run: Run) -> None:
    """The run does more steps."""
    lab.reach(process, lab.steps(run) + 3)


def restarts(lab: Lab, process: subprocess.Popen[str], run: Run, times: int) -> None:
    """The run is started again, from a checkpoint, and does more steps."""
    until(lambda: run.status().restarts == times, lambda: lab.words(run))
    until(lambda: run.status().message.startswith("training, restarted from step"), lambda: lab.words(run))
    goes_on(lab, process, run)


def assert_losses_of_an_undisturbed_run(lab: Lab, run: Run, steps: int) -> None:
    """On one machine: that this is the same, says the test of a run over four hosts."""
    undisturbed = lab.train("--steps", str(steps), launcher="local")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert lab.run().read_all().losses()[:steps] == run.read_all().losses()[:steps]


def assert_nothing_secret_is_in_arguments(lab: Lab, run: Run) -> None:
    """Nor anything of the environment; processes carry the run's mark."""
    words = [" ".join(p.cmdline()) for name in (HEAD, *HOSTS) for p in lab.on(name)]
    assert any("hetplanner.hosts.on_host.node" in text for text in words)
    assert "do-not-tell" not in " ".join(words)
    assert all("do-not-tell" not in p.environ().values() for name in HOSTS for p in lab.on(name))
    assert any(p.environ().get(RUN_MARK) for p in lab.on("a"))
    assert "do-not-tell" not in run.directory.launcher_log.read_text()


def test_a_host_that_restarts_is_waited_for_and_one_that_stays_away_ends_the_run_which_frees_all_others(lab):
    lab.write_hosts(lost_s=10)
    process = lab.begin("--steps", "100000", "--checkpoint-every", "2", "--max-restarts", "1")
    run = lab.reach(process, 5)
    lab.bed.kill_host("c", silently=True)
    until(lambda: run.status().restarts == 1, lambda: lab.words(run))
    lab.bed.boot_host("c")
    restarts(lab, process, run, 1)
    [why] = [record["why"] for record in audit(lab, "restart")]
    assert why.startswith("host c is lost: it did not answer for 10 s")

    lab.bed.cut("b")
    try:
        said = process.communicate()[0]
        assert process.returncode == 4, said
        assert run.status().message.startswith("host b is lost"), lab.words(run)
        until(lambda: set(lab.left()) <= {"b"}, lambda: f"left: {lab.left()}")
        until(lambda: lab.left() == {}, lambda: f"left: {lab.left()}")  # it ends by itself
    finally:
        lab.bed.join("b")
    steps = min(len(run.read_all().losses()), 200)
    assert_losses_of_an_undisturbed_run(lab, run, steps)


def test_an_agent_that_is_told_to_end_has_its_run_saved_and_the_next_one_goes_on(lab):
    process = lab.begin("--steps", "100000", "--checkpoint-every", "1000", "--max-restarts", "1", "--detach")
    assert process.wait() == 0
    run = lab.run()
    until(lambda: lab.steps(run) >= 3, lambda: lab.words(run))
    agent = lab.agent()
    agent.send_signal(signal.SIGTERM)
    until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE, lambda: lab.words(run))
    assert lab.left() == {}
    assert "the next agent starts it again" in json.loads(run.directory.status_file.read_text())["message"]
    begin = [HETPLANNER, "runs", "stop", run.id]
    lab.bed.popen(
        HEAD, [sys.executable, "-c", "from hetplanner.runs.agent.client import AgentClient; AgentClient()"], env=lab.env
    ).wait()
    until(lambda: run.status().state == "running", lambda: lab.words(run))
    run.read_all()
    assert run.status().message.startswith("training, restarted from step")
    stopped = lab.bed.run(HEAD, begin, env=lab.env)
    assert stopped.returncode == 0, stopped.stderr
    assert lab.left() == {}


# -- bad input: named with host and remedy before anything starts ---------------------------------


def refused(lab: Lab, *more: str, code: int = 2) -> str:
    """What is said; nothing may have begun."""
    done = lab.train("--steps", "3", *more)
    assert done.returncode == code, done.stderr + done.stdout
    runs = lab.home / "runs"
    assert not runs.is_dir() or list(runs.iterdir()) == []
    assert lab.left() == {}
    assert not [p for name in HOSTS for p in lab.bed.home(name).rglob(lab.folder.name)]
    return " ".join(done.stderr.split())


def python_that_says(lab: Lab, versions: dict[str, str] | None = None, seconds: float = 0.0) -> str:
    path = lab.folder / "python"
    path.write_text(IMPOSTOR.format(python=sys.executable, versions=versions or {}, seconds=seconds))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def other_config(lab: Lab, *changes: tuple[str, str]) -> Path:
    text = lab.bed.ssh_config.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = lab.folder / "ssh_config"
    path.write_text(text)
    return path


def test_everything_that_is_wrong_is_told_at_once(lab):
    lab.write_hosts(
        a={"ssh": "nobody"},
        b={"python": "/no/such/python"},
        c={"address": lab.bed.address(HEAD)},
        d={"python": python_that_says(lab, {"hetplanner": "9.9", "torch": "2.99"}, seconds=3600.0)},
    )
    said = refused(lab)
    assert "hosts: 6 problems on 4 hosts, nothing was started." in said
    assert "[a] cannot be reached: ssh: Could not resolve hostname nobody" in said
    assert "try `ssh nobody true`" in said
    assert "[b] /no/such/python cannot be run" in said
    assert f"[c] its address {lab.bed.address(HEAD)} is not assigned to this host" in said
    assert "[d] has hetplanner 9.9, this is" in said
    assert "[d] its clock is 60 min ahead of this one" in said
    assert "[d] its torch is 2.99, that of host c is" in said


def test_an_unknown_host_key_and_a_refused_key_are_told(lab):
    lab.write_hosts(config=other_config(lab, (str(lab.bed.folder / "known_hosts"), str(lab.folder / "none"))))
    said = refused(lab)
    assert all(
        f"[{name}] its host key is not known here; log in once and compare it: ssh {name}" in said for name in HOSTS
    )
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(lab.folder / "other")], check=True)
    lab.write_hosts(
        config=other_config(lab, (f"IdentityFile {lab.bed.folder / 'key'}", f"IdentityFile {lab.folder / 'other'}"))
    )
    said = refused(lab)
    assert "[a] ssh as a is refused" in said
    assert "add your key there" in said


def test_a_python_without_hetplanner_is_told(lab):
    lab.write_hosts(c={"python": "/usr/bin/python3"})
    assert "[c] /usr/bin/python3 has no hetplanner; install it there, or name its python" in refused(lab)


def test_a_port_in_use_is_told(lab):
    taker = lab.bed.popen("a", [sys.executable, "-c", LISTENER, lab.bed.address("a")], stdout=subprocess.PIPE)
    try:
        assert taker.stdout.readline() == "there\n"
        done = lab.train("--steps", "3")
    finally:
        taker.kill()
        taker.wait()
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"[a] the store cannot listen at {lab.bed.address('a')} (Address already in use); end the process" in said


def test_missing_and_unlike_data_are_told(lab):
    assert "[a] data: /no/such: No such file or directory; copy it there" in refused(lab, "--data", "/no/such")
    for name in HOSTS:
        (lab.bed.home(name) / "words.txt").write_text(f"words of {name if name == 'c' else 'all'} " * 2000)
    assert "[c] its data is" in refused(lab, "--data", "~/words.txt")
    assert "must be an absolute path or begin with ~/" in refused(lab, "--data", "words.txt")


def test_gpus_that_are_not_there_are_told(lab):
    cluster = lab.plan.problem.cluster
    devices = tuple(d.replace(kind="A100-80") if d.host == "b" else d for d in cluster.devices)
    save_plan(
        lab.plan.replace(problem=lab.plan.problem.replace(cluster=cluster.replace(devices=devices))), lab.plan_file
    )
    assert "[b] the plan has 1 × A100-80 there, and nvidia-smi lists none" in refused(lab)


def test_a_host_that_does_not_reach_another_is_told(lab):
    namespace, address = lab.bed.namespace("b"), lab.bed.address("d")
    netns.inside(namespace, "route", "add", "unreachable", address)
    try:
        assert "[b] does not reach host d (No route to host); open the network" in refused(lab)
    finally:
        netns.inside(namespace, "route", "del", "unreachable", address)


def test_a_hosts_file_that_does_not_fit_is_told(lab):
    lab.write_hosts(e={"ssh": "a"})
    assert "hosts.e: the cluster has no such host" in refused(lab)
    lab.write_hosts(b={"address": lab.bed.address("a")})
    assert f"a and b have one address, {lab.bed.address('a')}" in refused(lab)
    lab.write_hosts(b={"ssh": "b; touch /tmp/x"})
    assert "must be HOST or USER@HOST" in refused(lab)
    done = lab.bed.run(HEAD, [*lab.argv("--steps", "3", launcher="local"), "--hosts", str(lab.hosts_file)], env=lab.env)
    assert done.returncode == 2
    lab.write_hosts()
    done = lab.bed.run(HEAD, [*lab.argv("--steps", "3", launcher="local"), "--hosts", str(lab.hosts_file)], env=lab.env)
    assert "hosts: launcher local runs on this machine alone" in done.stderr.replace("\n", " ")
