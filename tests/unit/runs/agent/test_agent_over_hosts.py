"""The agent's part of runs over hosts: where a run is launched outlives it; what is this machine's own is left out."""

import json
import os
import signal
import sys

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import HostEntry, Hosts, read_hosts
from hetplanner.launchers.interface import HostCommand, LaunchRequest
from hetplanner.launchers.launch_file import Launch, load_launch
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.allowed_paths import Choice, allowed_hosts, allowed_paths_file
from hetplanner.runs.agent.client import data_for
from hetplanner.runs.agent.protocol import StartRequest
from hetplanner.runs.agent.service import launch_of, read_start_request
from hetplanner.runs.agent.supervisor import Supervisor
from hetplanner.runs.directory import find_run
from hetplanner.runs.reading.host_states import read_host_warnings
from tests.support.plans.factories import chain_plan, hosted
from tests.support.runs.fake_launcher import FakeLauncher, check_all_ended
from tests.support.runs.supervised import end_runs, reach, until

PLAN = chain_plan(shares=(1, 1), cuts=(4,), cluster=hosted({"d0": "a", "d1": "b", "d2": "b", "d3": "c"}))
HOSTS = Hosts(hosts={"a": HostEntry(ssh="me@a.lab")})
SSH = Launch(launcher="ssh", hosts=HOSTS)
LONG = TrainConfig(steps=100_000)


class FakeSsh(FakeLauncher):
    """One process here in place of a head; remembers how it was made."""

    name = "ssh"

    def __init__(self, mode: str = "train", head: str = "") -> None:
        super().__init__(mode)
        self.made, self.head = [], head

    def __call__(self, name: str, hosts: Hosts | None = None) -> "FakeSsh":
        self.made.append((name, hosts))
        return self

    def request(self, plan, run_dir, config) -> LaunchRequest:
        request = super().request(plan, run_dir, config)
        (command,) = request.commands
        starter = HostCommand("localhost", (sys.executable, "-c", self.head)) if self.head else command
        return LaunchRequest(self.name, run_dir, tuple(HostCommand(h, ("torchrun",)) for h in "abc"), starter=starter)


@pytest.fixture
def supervise(tmp_path):
    made = []

    def make(launcher=None, **settings):
        made.append(Supervisor(tmp_path, launcher=launcher or FakeSsh(), **settings))
        return made[-1]

    yield make
    for supervisor in made:
        end_runs(supervisor)
    check_all_ended(tmp_path)


def test_a_run_over_hosts_needs_no_cores_here_and_has_no_heartbeats(supervise, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hetplanner.runs.agent.supervisor.check_capacity", lambda *_, **__: pytest.fail("looked at this machine")
    )
    launcher = FakeSsh()
    supervisor = supervise(launcher)
    run_id = supervisor.submit(PLAN, TrainConfig(steps=10), launch=SSH).run
    status = reach(supervisor, run_id, "finished")
    assert status.heartbeats is None
    assert launcher.made == [("ssh", HOSTS)]
    assert load_launch(find_run(run_id, tmp_path)[1].path) == SSH.replace(run=run_id)


def test_where_a_run_is_launched_outlives_its_agent(supervise):
    run_id = supervise(FakeSsh("killed-once")).submit(PLAN, TrainConfig(steps=10, max_restarts=1), launch=SSH).run
    later = FakeSsh("killed-once")
    supervisor = supervise(later)
    supervisor.adopt()
    assert reach(supervisor, run_id, "finished").restarts == 1
    assert later.made == [("ssh", HOSTS)]


def test_a_local_run_writes_no_launch_file(supervise, tmp_path):
    run_id = supervise(FakeLauncher()).submit(PLAN, TrainConfig(steps=10), launch=Launch()).run
    assert not (find_run(run_id, tmp_path)[1].path / "launch.json").exists()


HEAD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.pause()"])
def told(signum, frame):
    with open("told", "w") as file:
        file.write(str(child.poll()))
    child.kill()
    child.wait()
    print("preempted: rank 1 (d1, host b) was told to end", flush=True)
    os._exit(75)
signal.signal(signal.SIGTERM, told)
open("there", "w").close()
while True:
    time.sleep(1)
"""
"""A head with an ssh."""


def test_a_preemption_is_told_to_the_head_alone(supervise, tmp_path):
    supervisor = supervise(FakeSsh(head=HEAD))
    run_id = supervisor.submit(PLAN, LONG, launch=SSH).run
    path = find_run(run_id, tmp_path)[1].path
    until(supervisor, (path / "there").exists)
    supervisor.preempt()
    assert reach(supervisor, run_id, "preempted").message.startswith("preempted: the agent was told to end")
    assert (path / "told").read_text() == "None"  # its ssh was alive


def test_what_a_heads_last_line_names_is_the_failed_rank(supervise):
    words = "rank 2 (d2, host b) has been silent for 1.7 s in training"
    supervisor = supervise(FakeSsh(head=f"import sys; print({words!r}); sys.exit(4)"))
    run_id = supervisor.submit(PLAN, LONG, launch=SSH).run
    status = reach(supervisor, run_id, "failed")
    assert (status.message, status.failed_rank) == (words, 2)


def test_a_head_that_is_stopped_is_given_up(supervise, tmp_path):
    supervisor = supervise(FakeSsh(head=HEAD))
    run_id = supervisor.submit(PLAN, LONG, launch=SSH).run
    until(supervisor, (find_run(run_id, tmp_path)[1].path / "there").exists)
    os.kill(supervisor.status(run_id).pid, signal.SIGSTOP)
    assert "the launcher has been silent" in reach(supervisor, run_id, "failed").message


def test_what_the_head_tells_of_hosts_is_told_of_the_run(supervise, tmp_path):
    supervisor = supervise()
    run_id = supervisor.submit(PLAN, LONG, launch=SSH).run
    path = find_run(run_id, tmp_path)[1].path
    (path / "hosts.json").write_text(json.dumps({"warnings": ["host b has not been heard of", "x" * 9000]}))
    until(supervisor, lambda: supervisor.status(run_id).degraded)
    assert supervisor.status(run_id).degraded[0] == "host b has not been heard of"


@pytest.mark.parametrize("text", ["", "[1]", '{"warnings": 3}', "{", '{"warnings": {"a": 1}}'])
def test_a_damaged_file_of_the_head_tells_nothing(tmp_path, text):
    assert read_host_warnings(tmp_path) == ()
    (tmp_path / "hosts.json").write_text(text)
    assert read_host_warnings(tmp_path) == ()


def test_hosts_that_cannot_run_the_plan_are_told_before_anything_is_made(supervise, tmp_path, monkeypatch):
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  ProxyCommand /bin/false\n")
    hosts = HOSTS.replace(ssh_config=str(config))
    words = r"hosts: 3 problems on 3 hosts, nothing was started\. \[a\] (ssh )?cannot be"  # reached, or started
    with pytest.raises(InvalidInput, match=words):
        supervise().check(PLAN, TrainConfig(), launch=SSH.replace(hosts=hosts))
    assert not (tmp_path / "runs").exists()


# -- what is asked for ----------------------------------------------------------------------------


def test_a_page_names_hosts_and_a_caller_of_the_same_user_gives_them(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text('format = "hetplanner/hosts@1"\n[hosts.a]\nssh = "me@a.lab"\n')
    allowed_paths_file(tmp_path).write_text(f'[hosts]\nlab = "{file}"\n')
    allowed_paths_file(tmp_path).chmod(0o600)
    file.chmod(0o600)
    assert allowed_hosts("lab", tmp_path) == read_hosts(file) == HOSTS
    chosen = StartRequest(plan={}, launcher="ssh", choice=Choice(hosts="lab"))
    given = StartRequest(plan={}, launcher="ssh", hosts=HOSTS)
    assert launch_of(chosen, tmp_path) == launch_of(given, tmp_path) == SSH
    assert launch_of(StartRequest(plan={}), tmp_path).is_local
    with pytest.raises(InvalidInput, match=r"hosts: 'other' is not offered by the agent \(lab\)"):
        allowed_hosts("other", tmp_path)
    file.chmod(0o666)
    with pytest.raises(InvalidInput, match="others may write it"):
        allowed_hosts("lab", tmp_path)


def test_hosts_that_a_page_gives_by_itself_are_refused():
    with pytest.raises(InvalidInput, match="a page chooses from the offered names"):
        read_start_request(b'{"plan": {}, "launcher": "ssh", "choice": {"hosts": "lab"}, "hosts": {"hosts": {}}}')
    with pytest.raises(InvalidInput, match="only by ssh"):
        read_start_request(b'{"plan": {}, "choice": {"hosts": "lab"}}')


def test_data_of_a_run_over_hosts_is_a_path_of_theirs():
    assert data_for("ssh", None) is None
    assert data_for("ssh", "~/words.txt") == "~/words.txt"
    assert data_for("ssh", "/data/words.txt") == "/data/words.txt"
    assert data_for("ssh", "digits") == "digits"
    with pytest.raises(InvalidInput, match="lies on the hosts, so it must be an absolute path"):
        data_for("ssh", "words.txt")
    assert data_for("local", "words.txt") == os.path.abspath("words.txt")


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    save_plan(PLAN, tmp_path / "plan.json")
    return lambda *words: CliRunner().invoke(app, ["train", str(tmp_path / "plan.json"), *words])


@pytest.mark.parametrize("launcher", ["ssh", "torchrun"])
def test_a_dry_run_prints_a_line_for_each_host(call, launcher, tmp_path):
    done = call("--launcher", launcher, "--dry-run")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line.split("HETPLANNER_HOST=")[1].split()[0] for line in lines if line] == ["a", "b", "c"]
    assert done.exit_code == 0
    assert not (tmp_path / "home").exists()


def test_lines_to_paste_are_not_started(call, tmp_path):
    done = call("--launcher", "torchrun")
    assert isinstance(done.exception, InvalidInput)
    assert "torchrun starts no process; paste its lines (--dry-run)" in str(done.exception)
    assert not (tmp_path / "home").exists()
