"""A network of a run's own. Where this system allows none, the tests hold that it is said."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hetplanner import notebook
from hetplanner.launchers import isolate
from hetplanner.launchers.isolate import MODULE, isolated, why_open
from hetplanner.launchers.local import LocalLauncher
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan

LISTENER = """
import socket, sys
one = socket.create_server(("127.0.0.1", 0))
print(one.getsockname()[1], flush=True)
while True:
    one.accept()[0].sendall(b"inside")
"""
CALLER = """
import socket, sys
from tests.support.runs.own_agent import no_agent_stays
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as one:
    print(one.recv(10).decode())
"""


@pytest.fixture(autouse=True)
def asked_anew():
    why_open.cache_clear()
    yield
    why_open.cache_clear()


@contextlib.contextmanager
def listener(argv):
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | {"RUN_OF": "mine"})
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def python(*argv):
    return (sys.executable, "-c", *argv)


def test_what_listens_inside_is_reached_from_inside_alone():
    if why_open() is not None:
        assert LocalLauncher().request(chain_plan(shares=(2, 2), cuts=(4,)), "run", TrainConfig()).warnings
        return
    with listener(isolated(python(LISTENER))) as (process, port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        inside = psutil.Process(process.pid)
        assert inside.environ()["RUN_OF"] == "mine"  # as the agent finds a run's processes
        assert inside.uids().real == os.getuid()
        assert f":{port:04X} " in Path(f"/proc/{process.pid}/net/tcp").read_text()
        call = [sys.executable, "-m", MODULE, "--of", str(process.pid), "--", *python(CALLER, str(port))]
        assert subprocess.run(call, capture_output=True, text=True, check=True).stdout == "inside\n"
        inside.terminate()
        assert process.wait(10) == -15


def test_the_program_keeps_its_user_files_and_exit_code(tmp_path):
    text = "import os, sys; open(sys.argv[1], 'w').close(); print(os.getuid()); sys.exit(7)"
    done = subprocess.run(isolated(python(text, str(tmp_path / "x"))), capture_output=True, text=True, check=False)
    if why_open() is not None:  # then nothing is run in the open by mistake
        assert (done.returncode, done.stderr[:22]) == (4, "no network of its own:")
        assert not (tmp_path / "x").exists()
        return
    assert (done.returncode, done.stdout) == (7, f"{os.getuid()}\n")
    assert (tmp_path / "x").stat().st_uid == os.getuid()


def test_a_program_that_is_not_there_is_named():
    done = subprocess.run(isolated(("/no/such program",)), capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) == 1


def test_where_the_system_allows_none_the_run_is_as_before_and_says_so(monkeypatch, tmp_path):
    said = subprocess.CompletedProcess([], 4, "", "no network of its own: namespaces: Operation not permitted\n")
    monkeypatch.setattr(isolate.subprocess, "run", lambda *_, **__: said)
    request = LocalLauncher().request(chain_plan(shares=(2, 2), cuts=(4,)), tmp_path, TrainConfig())
    assert MODULE not in request.commands[0].argv
    assert "Operation not permitted" in request.warnings[0]
    assert "other users" in request.warnings[0]


def test_several_torchruns_are_told_to_be_open(tmp_path):
    request = LocalLauncher(nodes=2).request(chain_plan(shares=(2, 2), cuts=(4,)), tmp_path, TrainConfig())
    assert not [c for c in request.commands if MODULE in c.argv]
    assert "2 launchers" in request.warnings[0]


def test_a_notebook_is_warned_too(monkeypatch, tmp_path, no_agent_stays):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    monkeypatch.setattr("hetplanner.launchers.local.why_open", lambda: "namespaces: Operation not permitted")
    monkeypatch.setattr("hetplanner.runs.agent.client.AgentClient.start", lambda *_: "started")
    with pytest.warns(UserWarning, match=r"other users reach this run.*Operation not permitted"):
        assert notebook.launch(chain_plan(shares=(2, 2), cuts=(4,)), live=False) == "started"
