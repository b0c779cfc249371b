"""The agent: one process per user that owns runs, so that they outlive pages, terminals and notebooks.

It listens on one Unix socket of mode 0600 in a directory of mode 0700, and on no network. What a caller may
ask is in `protocol`: plans and settings checked by schema; nothing a caller says reaches a shell.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import filelock
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from hetplanner.atomic_files import write_whole
from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.launchers.interface import Launcher
from hetplanner.launchers.launch_file import Launch
from hetplanner.launchers.registry import make_launcher
from hetplanner.liveness.processes import created_unix_s
from hetplanner.plan.files.plan_files import AnyPlan, any_plan_from_data
from hetplanner.reading import DAMAGED
from hetplanner.runs.agent.allowed_paths import allowed_hosts, settle
from hetplanner.runs.agent.protocol import (
    CALLER_HEADER,
    MAX_REQUEST_BYTES,
    PROTOCOL,
    AgentInfo,
    PeerRequest,
    ShutdownRequest,
    StartRequest,
    installation,
    package_version,
)
from hetplanner.runs.agent.supervisor import MAX_QUEUED, MAX_RUNNING, Supervisor
from hetplanner.runs.directory import list_run_ids
from hetplanner.runs.home import AGENT_FILE, agent_directory, home_directory, socket_path
from hetplanner.runs.status import RunStatus
from hetplanner.schema import checked, one_line, parse_json

logger = logging.getLogger(__name__)

TICK_S = 0.1
IDLE_EXIT_S = 3600.0
MAX_LISTED = 500


class Agent:
    """The supervisor behind an HTTP server on a Unix socket."""

    def __init__(self, supervisor: Supervisor, idle_exit_s: float = IDLE_EXIT_S) -> None:
        """An agent that does not listen yet.

        Args:
            supervisor: owns the runs.
            idle_exit_s: seconds without a run and without a request after which the agent ends.
        """
        self.supervisor = supervisor
        self.idle_exit_s = idle_exit_s
        self.started_unix_s = time.time()
        self._last_use_s = time.monotonic()
        self._ends_when_empty = self._is_preempted = False
        self._over = asyncio.Event()

    async def run(self, path: Path) -> None:
        """Serves on the socket at `path` until it is told, or has reason, to end."""
        path.unlink(missing_ok=True)  # the holder of the lock is the only agent: an old socket is stale
        listener = bind_unix_socket(os.fspath(path), mode=0o600)
        server = HTTPServer(self.application(), max_body_size=MAX_REQUEST_BYTES, max_buffer_size=MAX_REQUEST_BYTES)
        server.add_socket(listener)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._told_to_end)
        self.supervisor.adopt()
        ticker = PeriodicCallback(lambda: self._tick(path), TICK_S * 1e3)
        ticker.start()
        try:
            await self._over.wait()
        finally:
            ticker.stop()
            server.stop()
            await server.close_all_connections()
            path.unlink(missing_ok=True)

    def application(self) -> Application:
        """The routes."""
        return Application(
            [
                (r"/version", VersionHandler, {"agent": self}),
                (r"/runs", RunsHandler, {"agent": self}),
                (r"/runs/([0-9a-z.-]{1,80})", RunHandler, {"agent": self}),
                (r"/runs/([0-9a-z.-]{1,80})/stop", StopHandler, {"agent": self}),
                (r"/runs/([0-9a-z.-]{1,80})/peers", PeersHandler, {"agent": self}),
                (r"/shutdown", ShutdownHandler, {"agent": self}),
            ],
            default_handler_class=UnknownHandler,
            default_handler_args={"agent": self},
            log_function=lambda handler: None,
        )

    def info(self) -> AgentInfo:
        """The agent's identity."""
        return AgentInfo(
            protocol=PROTOCOL,
            version=package_version(),
            installation=installation(),
            pid=os.getpid(),
            started_unix_s=self.started_unix_s,
            live_runs=self.supervisor.num_live,
        )

    def touch(self) -> None:
        """A caller asked something: not idle."""
        self._last_use_s = time.monotonic()

    def shut_down(self, stop_runs: bool) -> None:
        """Ends once no run is alive. Raises RunError while some are and may not be stopped."""
        live = self.supervisor.live_ids
        if live and not stop_runs:
            raise RunError(f"{len(live)} run(s) are alive ({', '.join(live)}); stop them first")
        for run_id in live:
            self.supervisor.stop(run_id)
        self._ends_when_empty = True

    def _told_to_end(self) -> None:
        """The host is taken away: runs save what they hold, the next agent goes on. A second signal ends at once."""
        if self._is_preempted:
            self._over.set()
        self._is_preempted = True
        self.supervisor.preempt()

    def _tick(self, path: Path) -> None:
        try:
            self.supervisor.tick()
        except Exception:  # one odd run directory must not end the agent and with it the watch over all others
            logger.exception("tick failed")
        if self._is_preempted and not self.supervisor.has_processes:
            self._over.set()
        elif not self.supervisor.is_settled:
            self.touch()
        elif self._ends_when_empty or time.monotonic() - self._last_use_s > self.idle_exit_s:
            self._over.set()
        if not path.exists():  # the home was removed: no process can reach this agent any more
            self._over.set()


class _Handler(RequestHandler):
    """JSON in, JSON out; errors by name and text."""

    agent: Agent
    is_left = False
    """The caller waits no longer."""

    def initialize(self, agent: Agent) -> None:
        self.agent = agent
        agent.touch()

    def on_connection_close(self) -> None:
        """Tornado's: the caller is gone."""
        self.is_left = True

    @property
    def caller(self) -> str:
        """The caller, as it names itself; the socket lets only this user in."""
        return one_line(self.request.headers.get(CALLER_HEADER, ""))[:60]

    def reply(self, data: object, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(data))

    async def answer(self, work: Coroutine[Any, Any, object]) -> None:
        """Replies with the result of `work`, or with its error."""
        try:
            self.reply(await work)
        except HetplannerError as error:
            self.reply({"error": type(error).__name__, "message": str(error)}, 400)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Errors of the HTTP layer and bugs; the traceback goes to the log alone."""
        message = f"the agent answered {status_code} ({self._reason})"
        self.reply({"error": "RunError", "message": message}, status_code)


class VersionHandler(_Handler):
    """GET: who answers."""

    async def get(self) -> None:
        """AgentInfo."""
        self.reply(self.agent.info().model_dump(mode="json"))


class RunsHandler(_Handler):
    """GET: all runs. POST: start one."""

    async def get(self) -> None:
        """Statuses, oldest first."""
        await self.answer(self._list())

    async def post(self) -> None:
        """StartRequest -> the new run's directory and status."""
        await self.answer(self._start(self.request.body))

    async def _list(self) -> object:
        supervisor = self.agent.supervisor
        found: list[RunStatus] = []
        for run_id in list_run_ids(supervisor.home)[-MAX_LISTED:]:
            with contextlib.suppress(InvalidInput):
                found.append(supervisor.status(run_id))
        return {"runs": [status.model_dump(mode="json") for status in found]}

    async def _start(self, body: bytes) -> object:
        supervisor = self.agent.supervisor
        request, plan = await IOLoop.current().run_in_executor(None, read_start_request, body)
        config, parent = request.config, None
        if request.choice is not None:
            config, parent = settle(request.choice, config, supervisor.home)
        launch = launch_of(request, supervisor.home)
        out = Path(request.out) if request.out else None
        await IOLoop.current().run_in_executor(None, supervisor.check, plan, config, out or parent, launch)
        if self.is_left:  # interrupted during the checks: the caller would not learn of the run
            raise RunError("the caller disconnected; nothing is started")
        status = supervisor.submit(plan, config, out, parent=parent, caller=self.caller, launch=launch)
        return status.model_dump(mode="json")


class RunHandler(_Handler):
    """GET: one run's status."""

    async def get(self, run_id: str) -> None:
        """RunStatus."""
        await self.answer(self._status(run_id))

    async def _status(self, run_id: str) -> object:
        return self.agent.supervisor.status(run_id).model_dump(mode="json")


class StopHandler(_Handler):
    """POST: stop a run."""

    async def post(self, run_id: str) -> None:
        """RunStatus, at once; the run ends within 5 s."""
        await self.answer(self._stop(run_id))

    async def _stop(self, run_id: str) -> object:
        return self.agent.supervisor.stop(run_id, caller=self.caller).model_dump(mode="json")


class PeersHandler(_Handler):
    """POST: a peer of a running swarm is to go."""

    async def post(self, run_id: str) -> None:
        """PeerRequest -> RunStatus, at once; the run's events tell when the peer is gone."""
        await self.answer(self._ask(run_id, self.request.body))

    async def _ask(self, run_id: str, body: bytes) -> object:
        request = checked(PeerRequest, parse_json(body, "request"), "request")
        status = self.agent.supervisor.ask_peer(run_id, request.peer, request.act, caller=self.caller)
        return status.model_dump(mode="json")


class ShutdownHandler(_Handler):
    """POST: end the agent."""

    async def post(self) -> None:
        """ShutdownRequest -> AgentInfo."""
        await self.answer(self._shut_down(self.request.body))

    async def _shut_down(self, body: bytes) -> object:
        request = checked(ShutdownRequest, parse_json(body or b"{}", "request"), "request")
        self.agent.shut_down(request.stop_runs)
        return self.agent.info().model_dump(mode="json")


class UnknownHandler(_Handler):
    """Any other path."""

    async def prepare(self) -> None:
        """404, as JSON."""
        self.reply({"error": "InvalidInput", "message": f"no such request: {self.request.path:.80}"}, 404)


def read_start_request(body: bytes) -> tuple[StartRequest, AnyPlan]:
    """A start request and its plan from a request's body. Raises InvalidInput naming the field."""
    data = parse_json(body, "request")
    request = checked(StartRequest, data, "request")
    return request, any_plan_from_data(request.plan, "request.plan")


def launch_of(request: StartRequest, home: Path) -> Launch:
    """Where a request's run shall be launched. Raises InvalidInput: its hosts are not offered."""
    hosts = request.hosts
    if request.choice is not None and request.choice.hosts is not None:
        hosts = allowed_hosts(request.choice.hosts, home)
    return Launch(launcher=request.launcher, hosts=hosts)


def serve_agent(
    home: Path | None = None,
    max_running: int = MAX_RUNNING,
    max_queued: int = MAX_QUEUED,
    idle_exit_s: float = IDLE_EXIT_S,
    launcher: Callable[..., Launcher] = make_launcher,
) -> None:
    """Runs the agent in this process until it is shut down, gets SIGTERM or Ctrl-C, or has long been idle.

    Runs that are alive at a signal are preempted: they save what they hold and end; the next agent starts those again
    that have restarts left. Runs that are alive when the agent is killed stay alive, and the next one adopts them.

    Raises:
        RunError: another agent of this home is running.
    """
    os.umask(0o077)  # what it and its runs write is their user's
    home = home or home_directory()
    folder = agent_directory(home)
    lock = filelock.FileLock(folder / "lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(f"an agent is running already{_holder(folder)}") from None
    try:
        holder = {"pid": os.getpid(), "version": package_version(), "began_s": created_unix_s(os.getpid())}
        try:
            write_whole(folder / AGENT_FILE, json.dumps(holder), mode=0o600)
        except OSError as error:  # an agent without this file still ends and watches runs
            logger.error("%s cannot be written: %s", folder / AGENT_FILE, error)
        agent = Agent(Supervisor(home, max_running, max_queued, launcher), idle_exit_s)
        logger.info("agent %d of %s starts", os.getpid(), home)
        asyncio.run(agent.run(socket_path(home)))
        logger.info("agent %d ends; %d run(s) alive", os.getpid(), agent.supervisor.num_live)
    finally:
        lock.release()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / AGENT_FILE).read_text(encoding="utf-8"))
        return f" (process {int(holder['pid'])}, version {holder['version']})"
    except (OSError, *DAMAGED):
        return ""


def main(arguments: list[str] | None = None) -> int:
    """`python -m hetplanner.runs.agent.service`: what `ensure_agent` starts in the background."""
    parser = argparse.ArgumentParser(prog="hetplanner agent", description=__doc__)
    parser.add_argument("--idle-exit-s", type=float, default=IDLE_EXIT_S)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        serve_agent(idle_exit_s=options.idle_exit_s)
    except RunError as error:
        logger.info("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
