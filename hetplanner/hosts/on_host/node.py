"""What runs on a host: `python -m hetplanner.hosts.on_host.node connect`, which ssh starts, and `… run FOLDER`.

`connect` does what frames on its standard input ask for and answers on its standard output; it ends with its ssh.
`start` begins a node process (`run`), which does not. It imports only what is needed: its answer is waited for.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.framing import MAX_SENT_BYTES, FrameError, FrameWriter, read_frame
from hetplanner.hosts.on_host.facts import answer, facts, listener, why_not_bound, why_not_reached
from hetplanner.hosts.on_host.sending import (
    HEARTBEATS_NOTE,
    LEASE_S,
    ORDER_FILE,
    PID_FILE,
    SEEN_FILE,
    STATE_FILE,
    STOP_FILE,
    TORCHRUN_LOG,
    Changes,
)
from hetplanner.hosts.probe.devices import MEASURE_S, measure_devices
from hetplanner.hosts.probe.streams import Streams

NODE_LOG = "node.txt"
SCAN_S = 0.2
END_S = 4.0
REMAINS = (STATE_FILE, STOP_FILE, "stop.signalled", TORCHRUN_LOG)
"""What an attempt leaves that the next one would take for its own."""


class Connection:
    """One ssh's worth of questions and answers.

    Args:
        source: frames of the head.
        sink: for frames to the head.
    """

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._writer = source, FrameWriter(sink)
        self._heard_s, self._lease_s = time.monotonic(), LEASE_S
        self._run_dir: Path | None = None
        self._listener: socket.socket | None = None
        self._over = threading.Event()
        self._asked: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            "ping": self._ping,
            "check": self._check,
            "listen": self._listen,
            "reach": self._reach,
            "start": self._start,
            "follow": self._follow,
            "stop": self._stop,
            "ask-peers": self._ask_peers,
            "preempt": self._preempt,
            "end": self._end,
            "probe-devices": self._probe_devices,
        }
        self._streams = Streams(self._writer.write)
        self._asked |= self._streams.orders

    def serve(self) -> None:
        """Answers until the head is gone."""
        self._writer.greet({"pid": os.getpid()})
        try:
            while (frame := read_frame(self._source, MAX_SENT_BYTES)) is not None:
                self._heard_s = time.monotonic()
                self._answer(*frame)
        finally:
            self._over.set()
            self._streams.close()

    def _answer(self, header: dict[str, Any], body: bytes) -> None:
        act = self._asked.get(str(header.get("do")))
        if act is None:
            raise FrameError(f"asked to {header.get('do')!r:.40}, which this version does not know")
        try:
            act(header, body)
        except (InvalidInput, RunError) as error:
            self._writer.write({"refused": str(error)})

    def end_without_head(self) -> None:
        """Ends this process when its head is not heard of any more: a network that is gone keeps pipes open."""
        while time.monotonic() - self._heard_s < self._lease_s:
            time.sleep(1.0)
        os._exit(0)

    # -- before a run -----------------------------------------------------------------------------

    def _ping(self, header: dict[str, Any], body: bytes) -> None:
        if self._run_dir is not None:
            with contextlib.suppress(OSError):
                os.utime(self._run_dir / SEEN_FILE)
        self._writer.write({"pong": header["id"], "unix_s": time.time()})

    def _check(self, header: dict[str, Any], body: bytes) -> None:
        self._writer.write({"facts": facts(header)})

    def _listen(self, header: dict[str, Any], body: bytes) -> None:
        """Opens a port at which others may try whether they reach this host, until the connection ends."""
        token = secrets.token_hex(8)
        try:
            self._listener = door = listener(header["address"])
        except OSError as error:
            raise RunError(f"cannot listen at {header['address']}: {error.strerror}") from None

        def take() -> None:
            while not self._over.wait(0.01):
                answer(door, token)

        threading.Thread(target=take, daemon=True).start()
        self._writer.write({"port": door.getsockname()[1], "token": token})

    def _reach(self, header: dict[str, Any], body: bytes) -> None:
        found: dict[str, str] = {}

        def attempt(name: str, address: str, port: int, token: str) -> None:
            if why := why_not_reached(address, port, token, header["timeout_s"]):
                found[name] = why

        threads = [threading.Thread(target=attempt, args=row, daemon=True) for row in header["others"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._writer.write({"unreached": found})

    def _probe_devices(self, header: dict[str, Any], body: bytes) -> None:
        self._lease_s = max(self._lease_s, MEASURE_S + LEASE_S)  # the head is silent until the answer
        self._writer.write({"devices": measure_devices(int(header["count"]))})

    # -- a run ------------------------------------------------------------------------------------

    def _start(self, header: dict[str, Any], body: bytes) -> None:
        """Begins an attempt; what an earlier one left is ended first."""
        run_dir = Path(header["folder"]).expanduser()
        _make_folder(run_dir, is_new=not header["attempt"])
        end_processes(run_dir)
        if header["port"] is not None:
            _check_port(header["address"], header["port"], wait_s=END_S if header["attempt"] else 0.0)
        _write_order(run_dir, header, body)
        log = (run_dir / NODE_LOG).open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hetplanner.hosts.on_host.node", "run", str(run_dir)],
                cwd=run_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"HETPLANNER_RUN": str(run_dir)},
            )
        (run_dir / PID_FILE).write_text(f"{process.pid} {_start_ticks(process.pid) or 0}\n", encoding="ascii")
        threading.Thread(target=process.wait, daemon=True).start()
        self._writer.write({"started": process.pid})

    def _follow(self, header: dict[str, Any], body: bytes) -> None:
        """Sends what is new in the run's files from now on, and what its node process says."""
        run_dir = Path(header["folder"]).expanduser()
        self._run_dir, self._lease_s = run_dir, header.get("lease_s", LEASE_S)
        with contextlib.suppress(OSError):
            (run_dir / SEEN_FILE).touch()
        changes = Changes(run_dir, header["files"])
        threading.Thread(target=self._send, args=(run_dir, changes, header["attempt"]), daemon=True).start()

    def _send(self, run_dir: Path, changes: Changes, attempt: int) -> None:
        told = None
        try:
            while not self._over.is_set():
                lives = _lives(run_dir)
                state = _state(run_dir, attempt)
                is_last = state is not None and state["ended"]
                count = 0
                for header, piece in changes.frames():
                    self._writer.write(header, piece)
                    count += 1
                if (state, lives) != told:
                    said = "" if lives or is_last else _last_line(run_dir / NODE_LOG)
                    self._writer.write({"state": state, "lives": lives, "said": said})
                    told = state, lives
                if is_last and not count:
                    self._writer.write({"done": True})
                    return
                self._over.wait(SCAN_S)
        except (OSError, ValueError):  # the head is gone
            return

    def _stop(self, header: dict[str, Any], body: bytes) -> None:
        run_dir = Path(header["folder"]).expanduser()
        try:
            (run_dir / STOP_FILE).touch()
        except OSError:  # a full disk: a signal says the same
            self._preempt(header, body)

    def _ask_peers(self, header: dict[str, Any], body: bytes) -> None:
        """Writes what is asked of the peers of a swarm that run here."""
        from hetplanner.swarm.launch.requests import ASKED_FILE

        with contextlib.suppress(OSError):  # a full disk: the head asks again
            write_whole(Path(header["folder"]).expanduser() / ASKED_FILE, body)
            self._writer.write({"asked": header["count"]})

    def _preempt(self, header: dict[str, Any], body: bytes) -> None:
        pid = _pid(Path(header["folder"]).expanduser())
        if pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def _end(self, header: dict[str, Any], body: bytes) -> None:
        end_processes(Path(header["folder"]).expanduser())
        self._writer.write({"ended": True})


def end_processes(run_dir: Path) -> None:
    """Kills every process of a run on this host, and returns when they are gone. Raises RunError."""
    from hetplanner.liveness.heartbeat import remove_heartbeats
    from hetplanner.liveness.processes import processes_of_run, send_signal

    deadline_s = time.monotonic() + END_S
    while left := processes_of_run(run_dir):
        if time.monotonic() > deadline_s:
            raise RunError(f"{len(left)} processes of {run_dir} do not end; process {left[0].pid} is one")
        send_signal(left, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(OSError):  # the killed had no time to
        remove_heartbeats(Path((run_dir / HEARTBEATS_NOTE).read_text(encoding="utf-8")))


def _make_folder(run_dir: Path, *, is_new: bool) -> None:
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new and any(run_dir.iterdir()):
            raise RunError(f"{run_dir}: holds a run already; remove it, or give another folder in the hosts file")
    except OSError as error:
        raise RunError(f"{run_dir}: cannot be made: {error.strerror}") from None


def _check_port(address: str, port: int, wait_s: float) -> None:
    """Refuses a port that is in use; a killed process may keep its own for a moment. Raises RunError."""
    deadline_s = time.monotonic() + wait_s
    while why := why_not_bound(address, port):
        if time.monotonic() >= deadline_s:
            raise RunError(f"port {port} of {address}: {why}; end the process that listens there")
        time.sleep(0.05)


def _write_order(run_dir: Path, header: dict[str, Any], body: bytes) -> None:
    """Plan, settings and what the node process is to do. Raises RunError."""
    plan = run_dir / "plan.json"
    order = {name: header[name] for name in ("env", "attempt", "ranks", "num_ranks", "names")}
    order["lease_s"] = header.get("lease_s", LEASE_S)
    order["argv"] = [sys.executable, *header["argv"], str(plan)]
    files, at = {ORDER_FILE: json.dumps(order).encode(), SEEN_FILE: b""}, 0
    for name, size in header["files"]:
        files[name], at = body[at : at + size], at + size
    try:
        for name in REMAINS:
            (run_dir / name).unlink(missing_ok=True)
        for name, content in files.items():
            (run_dir / name).parent.mkdir(mode=0o700, exist_ok=True)
            (run_dir / name).write_bytes(content)
    except OSError as error:
        raise RunError(f"{run_dir}: cannot be written: {error.strerror}") from None


def _last_line(path: Path) -> str:
    """Why a node process ended, if it said so."""
    try:
        lines = path.read_bytes()[-2000:].decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


def _state(run_dir: Path, attempt: int) -> dict[str, Any] | None:
    """What the node process of an attempt last wrote."""
    try:
        found: dict[str, Any] = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("attempt") == attempt else None


def _pid(run_dir: Path) -> int | None:
    """The living node process of a run: its number, and when it began, name it for good."""
    try:
        pid, born = map(int, (run_dir / PID_FILE).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return pid if _start_ticks(pid) == born else None


def _start_ticks(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] not in ("Z", "X") else None


def _lives(run_dir: Path) -> bool:
    return _pid(run_dir) is not None


def main(arguments: list[str]) -> int:
    """The command."""
    if arguments[:1] == ["run"] and len(arguments) == 2:
        from hetplanner.hosts.on_host.keeper import keep

        return keep(Path(arguments[1]))
    if arguments != ["connect"]:
        sys.stderr.write("usage: python -m hetplanner.hosts.on_host.node connect | run FOLDER\n")
        return InvalidInput.exit_code
    os.umask(0o077)
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library may print is no frame
    connection = Connection(sys.stdin.buffer, sink)
    threading.Thread(target=connection.end_without_head, daemon=True).start()
    connection.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
