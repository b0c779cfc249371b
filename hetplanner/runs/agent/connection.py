"""The connection to the agent: requests over its Unix socket; the agent is started when there is none."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import httpx

from hetplanner.errors import InvalidInput, RunError
from hetplanner.runs.agent.protocol import (
    CALLER_HEADER,
    ERRORS,
    MAX_REQUEST_BYTES,
    PROTOCOL,
    AgentInfo,
    installation,
    package_version,
)
from hetplanner.runs.directory import find_run
from hetplanner.runs.home import agent_directory, home_directory, socket_path
from hetplanner.runs.status import RunStatus
from hetplanner.schema import checked
from hetplanner.swarm.launch.requests import PeerAct
from hetplanner.units import short_bytes

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
STATUS_TIMEOUT_S = 2.0
_POLL_S = 0.02
_MAX_LOG_BYTES = 2**20


class AgentConnection:
    """The agent of one home. Without `start` it only ever talks to one that runs already."""

    def __init__(self, home: Path | None = None, start: bool = True, caller: str = "python") -> None:
        """Connects to the agent.

        Args:
            home: None takes `$HETPLANNER_HOME` or the platform's data directory.
            start: start an agent when none is there.
            caller: one word that the agent's audit log keeps with every launch and stop.

        Raises:
            RunError: none is there and `start` is false, or it cannot be started, or it is another version's.
        """
        self.home = home or home_directory()
        self.caller = caller
        self.info = ensure_agent(self.home) if start else _require_agent(self.home)

    def stop(self, run: str, wait: bool = True) -> RunStatus:
        """Stops a run; with `wait` returns when its last process is gone. Raises InvalidInput, RunError."""
        run_id = find_run(run, self.home)[0]
        status = status_of(self.ask("POST", f"/runs/{run_id}/stop"))
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while wait and not status.is_over:
            if time.monotonic() > deadline:
                raise RunError(f"run {run_id}: still {status.state} {STOP_TIMEOUT_S:g} s after the stop")
            time.sleep(0.05)
            status = self.status(run_id)
        return status

    def ask_peer(self, run: str, peer: str, act: PeerAct) -> RunStatus:
        """Has a peer of a running swarm leave between two steps (`drain`), kills it (`kill`), or starts it again
        (`rejoin`); returns at once.

        Raises:
            InvalidInput: the run is over, or no swarm of this agent; or the peer is not there, or
                was asked already.
            RunError: the agent is gone.
        """
        return status_of(self.ask("POST", f"/runs/{find_run(run, self.home)[0]}/peers", {"peer": peer, "act": act}))

    def runs(self) -> list[RunStatus]:
        """All runs, oldest first."""
        return [status_of(entry) for entry in self.ask("GET", "/runs")["runs"]]

    def status(self, run: str) -> RunStatus:
        """Status of one run. Raises InvalidInput."""
        return status_of(self.ask("GET", f"/runs/{find_run(run, self.home)[0]}"))

    def shutdown(self, stop_runs: bool = False) -> None:
        """Ends the agent and waits until it is gone. Raises RunError while runs are alive, unless they may stop."""
        _shut_down(self.home, lambda: self.ask("POST", "/shutdown", {"stop_runs": stop_runs}))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request. Raises InvalidInput, Infeasible, RunError."""
        return _request(self.home, method, path, body, REQUEST_TIMEOUT_S, self.caller)


def find_agent(home: Path | None = None) -> AgentInfo | None:
    """The agent that answers on the home's socket, if one does. Raises RunError when it answers nonsense."""
    try:
        data = _request(home or home_directory(), "GET", "/version", None, 5.0)
    except _NobodyAnswersError:
        return None
    return checked(AgentInfo, data, "agent")


def ask_status(run_id: str, home: Path | None = None) -> RunStatus:
    """What the running agent knows of a run. Raises InvalidInput (it knows none), RunError (no agent answers)."""
    return status_of(_request(home or home_directory(), "GET", f"/runs/{run_id}", None, STATUS_TIMEOUT_S))


def ensure_agent(home: Path | None = None) -> AgentInfo:
    """The running agent of this home; starts one in the background when there is none.

    An idle agent of another version or installation is replaced; one that has runs is left alone.

    Raises:
        RunError: it cannot be started, or an agent of another version has runs.
    """
    home = home or home_directory()
    info = find_agent(home)
    if info is not None and _is_ours(info):
        return info
    # One client starts it; those that come at the same moment wait here and then find it.
    lock = filelock.FileLock(agent_directory(home) / "start.lock", mode=0o600)
    try:
        with lock.acquire(timeout=START_TIMEOUT_S + STOP_TIMEOUT_S):
            return _replace_or_start(home)
    except filelock.Timeout:
        log = agent_directory(home) / "agent.log"
        raise RunError(f"another process is still starting the agent; its log is {log}") from None


def _replace_or_start(home: Path) -> AgentInfo:
    info = find_agent(home)
    if info is not None and not _is_ours(info):
        if info.live_runs:
            raise RunError(_mismatch(info))
        _shut_down(home, lambda: _request(home, "POST", "/shutdown", {}, REQUEST_TIMEOUT_S))
        info = None
    return info or _start_agent(home)


def _require_agent(home: Path) -> AgentInfo:
    info = find_agent(home)
    if info is None:
        raise RunError(f"no agent is running for {home}; `hetplanner agent` starts one")
    if not _is_ours(info):
        raise RunError(_mismatch(info))
    return info


def _is_ours(info: AgentInfo) -> bool:
    return (info.protocol, info.version, info.installation) == (PROTOCOL, package_version(), installation())


def _mismatch(info: AgentInfo) -> str:
    if (info.protocol, info.version) != (PROTOCOL, package_version()):
        what = f"of hetplanner {info.version}, this is {package_version()}"
    else:
        what = f"of another installation ({info.installation.partition(':')[0]})"
    return (
        f"the running agent (process {info.pid}) is {what}, and it has {info.live_runs} run(s);"
        f" wait for them or stop them, then end it with `kill {info.pid}`"
    )


def _start_agent(home: Path) -> AgentInfo:
    folder = agent_directory(home)
    log = folder / "agent.log"
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(folder / "agent.log.1")
    with log.open("ab") as output:
        os.chmod(log, 0o600)
        before_bytes = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "hetplanner.runs.agent.service"],
            env=os.environ | {"HETPLANNER_HOME": str(home), "PYTHONSAFEPATH": "1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # It outlives us; while we live a thread takes its exit status, or it would stay as a zombie.
    threading.Thread(target=process.wait, name="agent-reaper", daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        info = find_agent(home)
        if info is not None:
            return info
        # It may have lost a race against another agent, which then answers in a moment.
        if process.poll() not in (None, RunError.exit_code):
            break
        time.sleep(_POLL_S)
    raise RunError(f"the agent did not start: {_last_words(log, before_bytes, process.returncode)}; its log is {log}")


def _last_words(log: Path, before_bytes: int, exit_code: int | None) -> str:
    lines = log.read_bytes()[before_bytes:].decode(errors="replace").splitlines()
    if lines:
        return lines[-1][:300]
    if exit_code is not None and exit_code < 0:
        return f"it was ended by {signal.Signals(-exit_code).name}"
    return "it wrote nothing"


def _shut_down(home: Path, ask: Callable[[], object]) -> None:
    """Asks the agent to end, and waits for its process: its lock is held beyond its socket."""
    from hetplanner.liveness.processes import created_unix_s

    info = find_agent(home)
    began_s = created_unix_s(info.pid) if info else None
    ask()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = info is None or began_s is None or created_unix_s(info.pid) != began_s
        if ended and find_agent(home) is None:
            return
        time.sleep(_POLL_S)
    raise RunError("the agent does not end; its log is agent/agent.log in the home")


class _NobodyAnswersError(RunError):
    """There is no agent at the socket."""


def _request(home: Path, method: str, path: str, body: object, timeout_s: float, caller: str = "python") -> Any:
    address = socket_path(home)
    if not address.exists():
        raise _NobodyAnswersError("no agent is running; `hetplanner agent` starts one")
    content = None if body is None else json.dumps(body).encode()
    if content is not None and len(content) > MAX_REQUEST_BYTES:
        size, most = short_bytes(len(content)), short_bytes(MAX_REQUEST_BYTES)
        raise InvalidInput(f"plan: must be at most {most} as a file, is {size}")
    transport = httpx.HTTPTransport(uds=os.fspath(address), verify=False)  # no TLS here, so no certificates to load
    try:
        with httpx.Client(transport=transport, base_url="http://agent", timeout=timeout_s) as client:
            response = client.request(method, path, content=content, headers={CALLER_HEADER: f"hetplanner/{caller}"})
            data = response.json()
    except httpx.TimeoutException:
        raise RunError(f"the agent does not answer ({method} {path}); its log is agent/agent.log") from None
    except (httpx.TransportError, ValueError) as error:
        raise _NobodyAnswersError(f"the agent has ended ({error or type(error).__name__})") from None
    if response.status_code != 200:
        raise ERRORS.get(data.get("error"), RunError)(data.get("message", "the agent failed"))
    return data


def status_of(data: object) -> RunStatus:
    """A status from an answer. Raises RunError."""
    try:
        return checked(RunStatus, data, "agent")
    except InvalidInput as error:
        raise RunError(str(error)) from None
