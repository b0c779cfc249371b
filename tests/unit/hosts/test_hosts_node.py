"""A host's side: its node process with scripts in torchrun's place, and the connection that asks for things."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from hetplanner.hosts.framing import HELLO, FrameWriter, read_frame, read_greeting
from hetplanner.hosts.on_host import keeper as keepers
from hetplanner.hosts.on_host.keeper import Keeper, exit_codes, worker_words
from hetplanner.hosts.on_host.node import Connection, end_processes
from hetplanner.hosts.on_host.sending import HEARTBEATS_NOTE, ORDER_FILE, SEEN_FILE, STATE_FILE, STOP_FILE, TORCHRUN_LOG
from hetplanner.liveness.processes import processes_of_run
from hetplanner.swarm.launch.requests import PeerOrder, orders_so_far, orders_text
from tests.support.processes.imported import imported
from tests.support.processes.patience import until

SUMMARY = """\
E1124 06:25:32 api.py:984 [default0]:hetplanner worker: nothing of ours
[default1]:hetplanner worker: rank 1: runs on host 'b', but the plan has it on 'a'
hetplanner worker: data: /x is neither a file nor a folder
Failures:
[1]:
  host      : a
  rank      : 4 (local_rank: 1)
  exitcode  : 1 (pid: 101)
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 0)
  exitcode  : -9 (pid: 102)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
WITH_ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
BEATING = """
import os, sys, time
sys.path[:0] = {path!r}
from hetplanner.liveness.heartbeat import Heartbeat
beat = Heartbeat.of_rank(2, 0)
beat.enter("training")
for step in range(5):
    beat.end_step(step, 0.01)
    beat.advance()
with open("draft", "w") as file:
    file.write(str(os.getpid()))
os.rename("draft", "pid")
while True:
    time.sleep(0.01)
    beat.advance()
"""


def test_exit_codes_are_told_by_the_plans_rank_whatever_torchrun_calls_it():
    assert exit_codes(SUMMARY, [5, 2]) == {2: 1, 5: -9}
    assert exit_codes(SUMMARY, [5]) == {5: -9}
    assert exit_codes("", [5]) == {}


def test_what_ranks_said_is_found_in_torchruns_log():
    assert worker_words(SUMMARY) == [
        "rank 1: runs on host 'b', but the plan has it on 'a'",
        "data: /x is neither a file nor a folder",
    ]


# -- the node process -----------------------------------------------------------------------------


@pytest.fixture
def keep(tmp_path):
    """Makes a node process of a script, here in a thread; nothing of it may be left."""

    def make(code: str) -> Keeper:
        order = {"argv": [sys.executable, "-c", code], "env": {}, "attempt": 0, "ranks": [2], "num_ranks": 4}
        (tmp_path / ORDER_FILE).write_text(json.dumps(order | {"names": [f"d{i}, host h" for i in range(4)]}))
        (tmp_path / SEEN_FILE).touch()
        return Keeper(tmp_path)

    yield make
    left = processes_of_run(tmp_path)
    for process in left:
        process.kill()
    assert left == []


class Runs:
    """A keeper in a thread of its own: its signal handler is called by hand."""

    def __init__(self, keeper: Keeper, monkeypatch) -> None:
        monkeypatch.setattr(keepers.signal, "signal", lambda *_: None)
        self.keeper = keeper
        self.thread = threading.Thread(target=keeper.run)
        self.thread.start()

    def ended(self) -> dict:
        until(lambda: not self.thread.is_alive(), "the node process does not end")
        return json.loads((self.keeper.run_dir / STATE_FILE).read_text())


def test_it_ends_with_its_torchrun_and_says_how(keep, monkeypatch, tmp_path):
    code = f"import sys; print({SUMMARY!r}); sys.exit(1)"
    state = Runs(keep(code), monkeypatch).ended()
    assert state["ended"]
    assert state["exit_code"] == 1
    assert state["ranks"] == {"2": -9}
    assert state["words"][0].startswith("rank 1: runs on host")
    assert (tmp_path / TORCHRUN_LOG).read_text().strip() == SUMMARY.strip()


def test_what_outlives_its_torchrun_is_ended_before_it_says_so(keep, monkeypatch):
    state = Runs(keep(WITH_ORPHAN), monkeypatch).ended()
    assert (state["ended"], state["exit_code"]) == (True, 0)


def test_a_torchrun_that_starts_no_rank_says_why(keep, monkeypatch):
    state = Runs(keep("raise ValueError('the store cannot listen')"), monkeypatch).ended()
    assert (state["exit_code"], state["words"]) == (1, ["ValueError: the store cannot listen"])


def test_a_stop_ends_even_the_deaf(keep, monkeypatch, tmp_path):
    run = Runs(keep(f"{WITH_ORPHAN}; open('ready', 'w').close(); {DEAF}"), monkeypatch)
    until((tmp_path / "ready").exists)
    (tmp_path / STOP_FILE).touch()
    assert run.ended()["exit_code"] == -signal.SIGKILL


def test_without_a_head_it_ends_its_ranks(keep, monkeypatch, tmp_path):
    monkeypatch.setattr(keepers, "LEASE_S", 0.5)
    run = Runs(keep(f"open('ready', 'w').close(); {DEAF}"), monkeypatch)
    until((tmp_path / "ready").exists)
    assert run.ended()["exit_code"] == -signal.SIGKILL


def test_its_lease_begins_anew_whenever_its_head_is_heard_of(keep, tmp_path):
    keeper = keep("pass")
    begin_s = time.monotonic()
    assert keeper._head_was_seen(begin_s)
    assert keeper._head_was_seen(begin_s + keepers.LEASE_S - 1)
    os.utime(tmp_path / SEEN_FILE, ns=(1, 1))
    assert keeper._head_was_seen(begin_s + 2 * keepers.LEASE_S)
    assert keeper._head_was_seen(begin_s + 3 * keepers.LEASE_S - 1)
    assert not keeper._head_was_seen(begin_s + 3 * keepers.LEASE_S)


def test_a_preemption_is_passed_on(keep, monkeypatch, tmp_path):
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nopen('ready', 'w')\n"
    run = Runs(keep(code + "time.sleep(1000)"), monkeypatch)
    until((tmp_path / "ready").exists)
    run.keeper._preempt(signal.SIGTERM, None)
    assert run.ended()["exit_code"] == 75


def test_a_rank_that_is_stopped_is_lost_and_ended_and_ranks_of_other_hosts_do_not_count(keep, monkeypatch, tmp_path):
    rank = BEATING.format(path=sys.path)
    run = Runs(keep(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"), monkeypatch)
    until((tmp_path / "pid").exists)
    assert run.keeper.state.lost is None
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)
    state = run.ended()
    rank, words = state["lost"]
    assert (rank, state["exit_code"]) == (2, -signal.SIGKILL)
    assert words.startswith("rank 2 (d2, host h) has been silent for")
    assert "is stopped" in words


# -- the connection -------------------------------------------------------------------------------


class Pipe:
    """A connection served in a thread, spoken to as the head does."""

    def __init__(self) -> None:
        to_host, head = os.pipe()
        host, from_host = os.pipe()[::-1]
        self.writer = FrameWriter(os.fdopen(head, "wb"))
        self.source = os.fdopen(from_host, "rb")
        self.connection = Connection(os.fdopen(to_host, "rb"), os.fdopen(host, "wb"))
        threading.Thread(target=self.connection.serve, daemon=True).start()
        assert read_greeting(self.source)["pid"] == os.getpid()

    def ask(self, do: str, body: bytes = b"", **header) -> dict:
        self.writer.write({"do": do, **header}, body)
        return read_frame(self.source, 2**20)[0]

    def until(self, wanted: str) -> list:
        frames = []
        while not frames or wanted not in frames[-1][0]:
            frames.append(read_frame(self.source, 2**20))
        return frames


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.writer._file.close()


def start(pipe, folder: Path, code: str, attempt: int = 0, **changes) -> dict:
    """Starts a script in torchrun's place."""
    header = {"folder": str(folder), "attempt": attempt, "argv": ["-c", code], "env": {"X": "1"}, "ranks": [0]}
    header |= {
        "num_ranks": 1,
        "names": ["d0, host h"],
        "address": "127.0.0.1",
        "port": None,
        "files": [["plan.json", 6], ["run.json", 7]],
    }
    return pipe.ask("start", b'{"p":1}'[:6] + b'{"c":2}', **(header | changes))


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "runs" / "one"
    end_processes(tmp_path / "runs" / "one")


def test_what_is_asked_of_peers_is_written_and_taken_once(pipe, folder):
    start(pipe, folder, "import time; time.sleep(1000)")
    first, second = PeerOrder("d0", "drain"), PeerOrder("d1", "kill")
    for wanted in ([first], [first, second], [first, second]):
        answer = pipe.ask("ask-peers", orders_text(wanted), folder=str(folder), count=len(wanted))
        assert answer == {"asked": len(wanted)}
        assert orders_so_far(folder) == wanted


def test_a_run_is_started_followed_and_told_to_its_end(pipe, folder):
    answer = start(
        pipe, folder, "import os, sys; print(os.environ['X'], sys.argv[1]); open('rank-0.jsonl','w').write('{}\\n')"
    )
    assert psutil.pid_exists(answer["started"])
    assert (folder / "plan.json").read_bytes() == b'{"p":1'
    assert (folder / "run.json").read_bytes() == b'{"c":2}'
    pipe.writer.write(
        {"do": "follow", "folder": str(folder), "attempt": 0, "files": [["rank-0.jsonl", "lines", 0, 99]]}
    )
    frames = pipe.until("done")
    assert [body for header, body in frames if "file" in header] == [b"{}\n"]
    state = [header["state"] for header, _ in frames if "state" in header][-1]
    assert (state["ended"], state["exit_code"]) == (True, 0)
    assert (folder / TORCHRUN_LOG).read_text() == f"1 {folder}/plan.json\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_another_attempt_ends_what_the_first_one_left(pipe, folder):
    start(pipe, folder, f"open('first', 'w').close(); {WITH_ORPHAN}; {DEAF}")
    until((folder / "first").exists)
    before = {p.pid for p in processes_of_run(folder)}
    (folder / STOP_FILE).touch()
    start(pipe, folder, "import time; time.sleep(1000)", attempt=1)
    assert not before & {p.pid for p in processes_of_run(folder)}
    assert not (folder / STOP_FILE).exists()
    until((folder / TORCHRUN_LOG).exists)
    heartbeats = Path((folder / HEARTBEATS_NOTE).read_text())
    assert heartbeats.exists()
    assert pipe.ask("end", folder=str(folder)) == {"ended": True}
    assert not heartbeats.exists()
    assert processes_of_run(folder) == []


def test_a_killed_node_process_is_told_of_and_takes_torchrun_with_it(pipe, folder):
    pid = start(pipe, folder, "open('ready', 'w').close(); import time; time.sleep(1000)")["started"]
    until((folder / "ready").exists)
    pipe.writer.write({"do": "follow", "folder": str(folder), "attempt": 0, "files": []})
    assert pipe.until("state")[-1][0]["lives"]
    os.kill(pid, signal.SIGKILL)
    assert not pipe.until("state")[-1][0]["lives"]
    until(lambda: processes_of_run(folder) == [])


def test_a_folder_that_holds_a_run_or_a_port_in_use_is_refused(pipe, folder, tmp_path):
    folder.mkdir(parents=True)
    (folder / "rank-0.jsonl").touch()
    assert "holds a run already" in start(pipe, folder, "pass")["refused"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = start(pipe, folder, "pass", attempt=1, port=port)
    assert f"port {port} of 127.0.0.1: Address already in use" in answer["refused"]
    assert processes_of_run(folder) == []
    (tmp_path / "file").touch()
    assert "cannot be made" in start(pipe, tmp_path / "file" / "run", "pass")["refused"]


def test_pings_are_answered_and_keep_the_run_alive(pipe, folder):
    start(pipe, folder, "import time; time.sleep(1000)")
    pipe.writer.write({"do": "follow", "folder": str(folder), "attempt": 0, "files": []})
    before = (folder / SEEN_FILE).stat().st_mtime_ns
    pipe.writer.write({"do": "ping", "id": 7})
    pong = pipe.until("pong")[-1][0]
    assert pong["pong"] == 7
    assert abs(pong["unix_s"] - time.time()) < 60
    assert (folder / SEEN_FILE).stat().st_mtime_ns > before


def test_the_program_speaks_first_and_ends_with_its_ssh():
    argv = [sys.executable, "-m", "hetplanner.hosts.on_host.node"]
    process = subprocess.Popen([*argv, "connect"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(HELLO)
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()
    assert subprocess.run([*argv, "nonsense"], capture_output=True, check=False).returncode == 2


def test_it_imports_little():
    assert imported("import hetplanner.hosts.on_host.node", "torch", "pydantic", "numpy", "psutil") == []
    assert imported("import hetplanner.hosts.on_host.keeper", "torch", "pydantic", "numpy") == []


def test_an_unknown_word_ends_the_connection():
    sink = io.BytesIO()
    with pytest.raises(Exception, match="does not know"):
        Connection(io.BytesIO(b'{"do": "rm"}\n'), sink).serve()


def test_a_connection_that_has_ended_leaves_no_thread():
    before = set(threading.enumerate())
    Connection(io.BytesIO(b""), io.BytesIO()).serve()
    until(lambda: set(threading.enumerate()) <= before)
