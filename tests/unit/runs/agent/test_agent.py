"""The agent as a process of its own: socket, requests, life cycle, and the client that starts it."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from hetplanner.cluster.model import Cluster
from hetplanner.errors import Infeasible, InvalidInput, Preempted, RunError
from hetplanner.launchers.capacity import this_machine
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent import connection
from hetplanner.runs.agent import keeper as agent_keeper
from hetplanner.runs.agent.allowed_paths import Choice
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import ensure_agent, find_agent
from hetplanner.runs.agent.protocol import PROTOCOL
from hetplanner.runs.home import socket_path
from hetplanner.runs.run import open_run
from hetplanner.runs.status import raise_if_lost
from hetplanner.schema import checked
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, until
from tests.support.runs.fake_launcher import processes_under

FAKE = Path(__file__).parents[3] / "support/runs/fake_launcher.py"
LONG = TrainConfig(steps=100_000)


@pytest.fixture
def plan():
    return chain_plan(shares=(1, 1), cuts=(4,))


@pytest.fixture
def agent(home):
    """Starts an agent with the fake launcher; returns its process."""
    started = []

    def start(mode="train", max_queued=8) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, str(FAKE), mode, str(max_queued)])
        started.append(process)
        until(lambda: (info := find_agent(home)) is not None and info.pid == process.pid)
        return process

    yield start
    if find_agent(home):
        AgentClient(home, start=False).shutdown(stop_runs=True)
    for process in started:
        process.wait(HANG_S)


def raw(home, method, path, content=None) -> httpx.Response:
    transport = httpx.HTTPTransport(uds=str(socket_path(home)), verify=False)
    with httpx.Client(transport=transport, base_url="http://agent", timeout=HANG_S) as client:
        return client.request(method, path, content=content)


def wide_plan():
    """One rank more on each of two stages than this machine's cores may hold; all devices at one site."""
    replicas = 4 * this_machine().cores + 1
    here = {"name": "here", "latitude": 0, "longitude": 0}
    data = {
        "name": "wide",
        "sites": [here],
        "hosts": [{"id": "h", "site": "here"}],
        "devices": [{"id": f"d{i}", "kind": "CPU generic", "host": "h"} for i in range(2 * replicas)],
        "host_links": [{"host": "h", "latency": "1 ms", "bandwidth": "1 Gbit/s"}],
    }
    return chain_plan(shares=(1,) * replicas, cuts=(4,), cluster=checked(Cluster, data, "wide", from_file=True))


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- life of the agent ----------------------------------------------------------------------------


def test_the_client_starts_an_agent_and_the_next_finds_it(home):
    assert find_agent(home) is None
    info = AgentClient(home).info
    assert info.protocol == PROTOCOL
    assert AgentClient(home).info.pid == info.pid
    process = psutil.Process(info.pid)
    assert os.getsid(info.pid) == info.pid  # a session of its own: it outlives this terminal
    assert Path(process.cwd()) == home / "agent"
    AgentClient(home).shutdown()
    until(lambda: not processes_under(home))
    assert not socket_path(home).exists()


def test_many_clients_at_once_start_one_agent(home):
    code = "from hetplanner.runs.agent.connection import ensure_agent; print(ensure_agent().pid)"
    starts = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    pids = {process.communicate(timeout=HANG_S)[0].strip() for process in starts}
    assert len(pids) == 1
    # A loser of the race, if there was one, goes by itself.
    until(lambda: [str(p.pid) for p in processes_under(home)] == list(pids))


def test_only_its_user_can_reach_the_agent(home):
    ensure_agent(home)
    assert mode(socket_path(home)) == 0o600
    assert stat.S_ISSOCK(socket_path(home).stat().st_mode)
    assert mode(home / "agent") == 0o700
    assert mode(home / "agent" / "lock") == 0o600
    assert mode(home / "agent" / "agent.log") == 0o600


def test_the_agent_listens_on_no_network(home):
    process = psutil.Process(ensure_agent(home).pid)
    assert process.net_connections(kind="inet") == []


def test_a_stale_socket_is_recovered(home):
    first = ensure_agent(home)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(first.pid) or not processes_under(home))
    assert socket_path(home).exists()
    assert find_agent(home) is None
    assert ensure_agent(home).pid != first.pid


def test_a_file_in_place_of_the_socket_is_recovered(home):
    path = socket_path(home)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert ensure_agent(home).pid


def test_a_second_agent_refuses_and_names_the_first(home, agent, capfd):
    first = agent()
    second = subprocess.run(
        [sys.executable, "-m", "hetplanner.runs.agent.service"], capture_output=True, text=True, check=False
    )
    assert second.returncode == RunError.exit_code
    assert f"an agent is running already (process {first.pid}, version " in second.stderr


def test_an_idle_agent_ends(home):
    done = subprocess.run(
        [sys.executable, "-m", "hetplanner.runs.agent.service", "--idle-exit-s", "0.2"], timeout=HANG_S, check=False
    )
    assert done.returncode == 0
    assert not socket_path(home).exists()


def test_an_agent_whose_home_was_removed_ends(home, agent):
    process = agent()
    socket_path(home).unlink()
    assert process.wait(HANG_S) == 0


def test_without_start_a_missing_agent_is_an_error(home):
    with pytest.raises(RunError, match=r"no agent is running for .*`hetplanner agent` starts one"):
        AgentClient(home, start=False)


def test_an_agent_that_cannot_start_tells_why(home, monkeypatch):
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 5.0)
    monkeypatch.setenv("PYTHONPATH", str(home / "broken"))
    (home / "broken").mkdir()
    (home / "broken" / "tornado.py").write_text("raise ImportError('tornado is broken here')")
    with pytest.raises(RunError, match=r"the agent did not start: ImportError: tornado is broken here; its log is"):
        AgentClient(home)


# -- versions -------------------------------------------------------------------------------------


def test_an_idle_agent_of_another_version_is_replaced(home, agent, monkeypatch):
    first = agent()
    monkeypatch.setattr(connection, "package_version", lambda: "9.9.9")
    monkeypatch.setattr(connection, "_start_agent", lambda home: "started ours")
    assert ensure_agent(home) == "started ours"
    assert first.wait(HANG_S) == 0


@pytest.mark.parametrize(
    ("name", "other", "text"),
    [
        ("package_version", "9.9.9", r"process \d+\) is of hetplanner .*, this is 9\.9\.9, and it has 1 run"),
        ("installation", "/elsewhere:/x", r"process \d+\) is of another installation \(/"),
    ],
)
def test_a_busy_agent_of_another_version_is_left_alone(home, agent, plan, monkeypatch, name, other, text):
    agent("slow-start")
    AgentClient(home).start(plan, LONG)
    with monkeypatch.context() as patch:
        patch.setattr(connection, name, lambda: other)
        for start in (True, False):
            with pytest.raises(RunError, match=text):
                AgentClient(home, start=start)
    assert AgentClient(home).runs()[0].state == "starting"


# -- runs -----------------------------------------------------------------------------------------


def test_start_follow_stop(home, agent, plan):
    agent()
    client = AgentClient(home)
    run = client.start(plan, LONG)
    until(lambda: run.poll() and len(run.losses()) > 3)
    assert [status.run for status in client.runs()] == [run.id]
    until(lambda: client.status(run.id[:-1]).state == "running")
    status = run.stop()
    assert status.state == "stopped"
    assert open_run(run.id, home).summary()["status"] == "stopped"
    assert client.stop(run.id).state == "stopped"


def test_a_run_outlives_its_client(home, agent, plan, tmp_path):
    agent()
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_data(plan)))
    code = (
        "import sys; from hetplanner.plan.files.plan_files import load_plan;"
        "from hetplanner.plan.train import TrainConfig;"
        "from hetplanner.runs.agent.client import AgentClient;"
        "print(AgentClient().start(load_plan(sys.argv[1]), TrainConfig(steps=50)).id)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "plan.json")]
    run_id = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert open_run(run_id, home).wait(HANG_S).state == "finished"


def test_an_agent_that_is_told_to_end_preempts_its_runs_and_the_next_one_goes_on(home, agent, plan):
    first = agent()
    client = AgentClient(home)
    running = client.start(plan, LONG.replace(max_restarts=1))
    waiting = client.start(plan, TrainConfig(steps=1))
    until(lambda: running.status().state == "running")
    first.send_signal(signal.SIGTERM)
    assert first.wait(HANG_S) == 0
    assert processes_under(home) == []
    status = running.status()
    assert (status.state, status.restart_due, status.is_over) == ("preempted", True, False)
    assert status.message.startswith("preempted: the agent was told to end")
    assert waiting.status().state == "queued"
    agent()
    until(lambda: running.status().state == "running")
    assert (running.status().restarts, running.status().restart_due) == (1, False)
    assert running.stop().state == "stopped"
    assert waiting.wait(HANG_S).state == "finished"


def test_without_restarts_left_a_preempted_run_is_over(home, agent, plan):
    first = agent()
    run = AgentClient(home).start(plan, LONG)
    until(lambda: run.status().state == "running")
    first.send_signal(signal.SIGTERM)
    assert first.wait(HANG_S) == 0
    assert run.status().state == "preempted"
    assert run.status().is_over
    with pytest.raises(Preempted):
        raise_if_lost(run.id, run.status())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_who_waits_for_a_run_replaces_an_agent_that_is_gone_or_stopped(home, agent, plan, monkeypatch, how):
    monkeypatch.setattr(agent_keeper, "STOPPED_S", 0.3)
    first = agent()
    run = AgentClient(home).start(plan, TrainConfig(steps=30))
    until(lambda: run.status().state == "running")
    reaper = threading.Thread(target=first.wait)  # as init does with whose parent is gone
    first.send_signal(how)
    reaper.start()
    status = run.wait(HANG_S)
    assert status.state == "finished", status
    assert find_agent(home).pid != first.pid
    reaper.join(HANG_S)


def test_a_killed_agent_loses_no_run(home, agent, plan):
    first = agent("deaf")
    run = AgentClient(home).start(plan, LONG)
    until(lambda: run.status().state == "running")
    first.kill()
    first.wait()
    agent("train")
    assert AgentClient(home).status(run.id).state == "running"
    assert run.stop().state == "stopped"


def test_the_queue_is_bounded_over_the_socket(home, agent, plan):
    agent("slow-start", max_queued=1)
    client = AgentClient(home)
    states = [client.start(plan, LONG).status().state for _ in range(2)]
    assert states == ["starting", "queued"]
    with pytest.raises(RunError, match="the queue is full"):
        client.start(plan, LONG)


def test_shutdown_refuses_while_runs_are_alive(home, agent, plan):
    process = agent("deaf")
    client = AgentClient(home)
    run = client.start(plan, LONG)
    with pytest.raises(RunError, match=rf"1 run\(s\) are alive \({run.id}\); stop them first"):
        client.shutdown()
    client.shutdown(stop_runs=True)
    assert process.wait(HANG_S) == 0
    assert run.status().state == "stopped"


def test_relative_paths_are_the_callers(home, agent, plan, tmp_path, monkeypatch):
    agent()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text " * 1000)
    monkeypatch.chdir(tmp_path)
    run = AgentClient(home).start(plan, TrainConfig(steps=1, data="texts"), out="mine")
    assert run.path == tmp_path / "mine"
    assert run.config.data == str(tmp_path / "texts")
    run.wait(HANG_S)


# -- what the agent refuses -----------------------------------------------------------------------


def test_errors_keep_their_class_over_the_socket(home, agent, plan, monkeypatch):
    agent()
    client = AgentClient(home)
    with pytest.raises(InvalidInput, match="data: /no/such/folder is neither a file nor a folder"):
        client.start(plan, TrainConfig(data="/no/such/folder"))
    with pytest.raises(InvalidInput, match="must be one of kubernetes, local, slurm, ssh, torchrun, got 'k8s'"):
        client.start(plan, TrainConfig(), launcher="k8s")
    with pytest.raises(InvalidInput, match="torchrun starts no process; paste its lines"):
        client.start(plan, TrainConfig(), launcher="torchrun")
    with pytest.raises(Infeasible, match=r"\d+ ranks on \d+ cores? is more than 8 a core"):
        client.start(wide_plan(), TrainConfig())
    monkeypatch.setattr(connection, "MAX_REQUEST_BYTES", 1000)
    with pytest.raises(InvalidInput, match="plan: must be at most"):
        client.start(plan, TrainConfig())
    assert client.runs() == []


def bad_requests() -> list[tuple[bytes, str]]:
    plan = plan_to_data(chain_plan(shares=(1,), cuts=(4,)))
    good = {"plan": plan, "config": {"steps": 1}}
    return [
        (b"", "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"[1]", "request"),
        (b"[" * 100 + b"]" * 100, "nested at most"),
        (b'{"plan": NaN}', "NaN"),
        (b'{"plan": {}, "plan": {}}', "given twice"),
        (json.dumps({"config": {}}).encode(), "plan: required field is missing"),
        (json.dumps(good | {"command": "rm -rf /"}).encode(), "command: unknown field"),
        (json.dumps(good | {"env": {"LD_PRELOAD": "x"}}).encode(), "env: unknown field"),
        (json.dumps(good | {"launcher": "torchrun"}).encode(), "launcher"),
        (json.dumps(good | {"hosts": {"hosts": {}}}).encode(), "hosts: belong to the launchers ssh and slurm"),
        (
            json.dumps(good | {"launcher": "ssh", "hosts": {"hosts": {"a": {"ssh": "-oProxyCommand=x"}}}}).encode(),
            "ssh",
        ),
        (json.dumps(good | {"launcher": "ssh", "choice": {}}).encode(), "hosts that the agent offers by name"),
        (json.dumps(good | {"out": "relative"}).encode(), "absolute path"),
        (json.dumps(good | {"out": "/dev/null"}).encode(), "cannot be used"),
        (json.dumps(good | {"out": "/tmp/\x00x"}).encode(), "cannot be used"),
        (json.dumps(good | {"config": {"steps": -1}}).encode(), "config.steps"),
        (json.dumps(good | {"config": {"step": 1}}).encode(), "config.step: unknown field"),
        (json.dumps({"plan": {}}).encode(), "request.plan: format"),
        (json.dumps({"plan": plan | {"format": "hetplanner/plan@99"}}).encode(), "newer than this hetplanner"),
        (json.dumps({"plan": plan | {"stages": []}}).encode(), "request.plan: stages"),
        (json.dumps({"plan": plan | {"code": "os:system"}}).encode(), "code: unknown field"),
    ]


@pytest.mark.parametrize(("body", "law"), bad_requests(), ids=lambda value: value if isinstance(value, str) else "")
def test_malformed_requests_get_one_line(shared_agent, body, law):
    response = raw(shared_agent, "POST", "/runs", body)
    assert response.status_code == 400
    error = response.json()
    assert error["error"] == "InvalidInput"
    assert law in error["message"]
    assert "\n" not in error["message"]
    assert raw(shared_agent, "GET", "/runs").json() == {"runs": []}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/runs/..%2f..%2fetc", 404),
        ("GET", "/runs/nope", 400),
        ("POST", "/runs/nope/stop", 400),
        ("POST", "/runs/nope/peers", 400),
        ("GET", "/runs/nope/peers", 405),
        ("POST", "/runs/..%2fnope/peers", 404),
        ("DELETE", "/runs", 405),
        ("GET", "/shutdown", 405),
        ("POST", "/shutdown", 400),
    ],
)
def test_odd_requests_are_refused_as_json(shared_agent, method, path, code):
    response = raw(shared_agent, method, path, b"[]" if method == "POST" else None)
    assert response.status_code == code
    assert set(response.json()) == {"error", "message"}


@pytest.mark.parametrize(
    ("body", "law"),
    [
        ({}, "peer: required field is missing"),
        ({"peer": "a"}, "act: required field is missing"),
        ({"peer": "a", "act": "SIGSTOP"}, "act"),
        ({"peer": "a", "act": ["kill"]}, "act"),
        ({"peer": ["a"], "act": "kill"}, "peer"),
        ({"peer": "a" * 5000, "act": "kill"}, "peer"),
        ({"peer": "a", "act": "kill", "pid": 1}, "pid: unknown field"),
        ({"peer": "a", "act": "kill", "signal": 9}, "signal: unknown field"),
        ({"peer": "a", "act": "kill"}, "no such run"),
    ],
)
def test_a_request_to_a_peer_that_is_none_gets_one_line(shared_agent, body, law):
    response = raw(shared_agent, "POST", "/runs/20261122-000000-x-0000/peers", json.dumps(body).encode())
    assert response.status_code == 400
    assert law in response.json()["message"]
    assert "\n" not in response.json()["message"]


def test_a_run_of_a_static_plan_has_no_peers(home, agent, plan):
    agent()
    client = AgentClient(home, start=False)
    run = client.start(plan, LONG)
    waiting = client.start(plan, LONG)
    for name in (plan.ranks[0], "../" + plan.ranks[0], "1", ""):
        with pytest.raises(InvalidInput, match=r"its plan is static: it has ranks and no peers|peer: "):
            client.ask_peer(run.id, name, "kill")
    with pytest.raises(InvalidInput, match="is queued; only peers of a running swarm"):
        client.ask_peer(waiting.id, plan.ranks[0], "drain")
    assert not (run.path / "asked.jsonl").exists()
    assert run.status().state in ("starting", "running")
    for each in (waiting, run):
        client.stop(each.id)
    with pytest.raises(InvalidInput, match="is stopped"):
        client.ask_peer(run.id, plan.ranks[0], "kill")


def test_a_huge_request_is_cut_off(shared_agent):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(shared_agent)))
        connection.sendall(b"POST /runs HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 400 " in connection.recv(1000)


def test_garbage_on_the_socket_is_survived(shared_agent):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(shared_agent)))
        connection.sendall(os.urandom(4096) + b"\r\n\r\n")
    assert find_agent(shared_agent) is not None


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory):
    """One agent for the requests that must leave no trace."""
    home = tmp_path_factory.mktemp("home")
    env = os.environ | {"HETPLANNER_HOME": str(home)}
    process = subprocess.Popen([sys.executable, str(FAKE), "train"], env=env)
    until(lambda: find_agent(home) is not None)
    yield home
    AgentClient(home, start=False).shutdown()
    assert process.wait(HANG_S) == 0
    assert processes_under(home) == []


# -- what a page may ask --------------------------------------------------------------------------


def test_a_page_chooses_by_name_and_the_audit_log_says_who_asked(home, agent, plan):
    agent()
    (home / "words.txt").write_text("words and words\n" * 5000)
    (home / "scratch").mkdir()
    offers = home / "agent.toml"
    offers.write_text(f'[data]\nwords = "{home}/words.txt"\n[output]\nscratch = "{home}/scratch"\n')
    offers.chmod(0o600)
    page = AgentClient(home, start=False, caller="dashboard")
    run = page.start(plan, LONG, choice=Choice(data="words", output="scratch"))
    assert run.path.parent == home / "scratch"
    assert run.config.data == str(home / "words.txt")
    page.stop(run.id)
    for choice in (Choice(data="/etc/passwd"), Choice(output="/tmp"), Choice(resume="no-such-run")):
        with pytest.raises(InvalidInput):
            page.start(plan, LONG, choice=choice)
    with pytest.raises(InvalidInput, match="are paths"):
        page.start(plan, LONG.replace(data=str(home / "words.txt")), choice=Choice())
    assert [s.run for s in page.runs()] == [run.id]
    records = [json.loads(line) for line in (home / "agent" / "launches.jsonl").read_text().splitlines()]
    asked = [(r["event"], r["caller"]) for r in records if r["event"] in ("submit", "stop")]
    assert asked == [("submit", "hetplanner/dashboard"), ("stop", "hetplanner/dashboard")]
