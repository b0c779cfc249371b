"""A run in the hands of a person: read it, wait for it, stop it."""

import contextlib
import time
from pathlib import Path

from hetplanner.errors import InvalidInput, RunError
from hetplanner.liveness.processes import is_same_process
from hetplanner.plan.trace import Trace
from hetplanner.runs.agent.keeper import AgentKeeper, agent_pid
from hetplanner.runs.directory import find_run, list_run_ids
from hetplanner.runs.home import home_directory
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.status import RunStatus, read_status
from hetplanner.swarm.launch.requests import PeerAct


class Run(RunReader):
    """A run of the agent: a reader of its directory that can also wait for it and stop it.

    Attributes:
        id: what the agent calls it.
    """

    def __init__(self, path: Path, run_id: str | None = None, home: Path | None = None) -> None:
        """A run by its directory.

        Args:
            path: the run directory.
            run_id: None takes the directory's name.
            home: of the agent that owns it.
        """
        super().__init__(path)
        self.id = run_id or self.directory.path.name
        self.home = home or home_directory()

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    def trace(self, last_steps: int = 3, until: int | None = None) -> Trace:
        """Measured spans of the last `last_steps` whole steps up to `until`, as of now."""
        self.read_all()
        return super().trace(last_steps, until)

    def status(self) -> RunStatus:
        """The status now, see `true_status`. Raises InvalidInput."""
        status = super().status()
        return true_status(status, self.home) if self.has_agent else status

    def followed_status(self, keeper: AgentKeeper) -> RunStatus:
        """The status for a caller that waits for the end: without an agent nothing is over, and one is started.

        Raises:
            InvalidInput: the directory is damaged.
        """
        keeper.look()
        status = super().status()
        if status.is_over or not self.has_agent or is_same_process(status.pid, status.pid_created_unix_s):
            return status
        from hetplanner.runs.agent.connection import ask_status

        try:
            return ask_status(self.id, self.home)
        except InvalidInput:
            return as_it_is(status)
        except RunError:
            return status

    def wait(self, timeout_s: float | None = None, poll_s: float = 0.1) -> RunStatus:
        """Waits until the run is over; an agent that dies meanwhile is replaced. Raises RunError after `timeout_s`."""
        deadline, keeper = None if timeout_s is None else time.monotonic() + timeout_s, AgentKeeper(self.home)
        while not (status := self.followed_status(keeper)).is_over:
            if deadline is not None and time.monotonic() > deadline:
                raise RunError(f"run {self.id}: still {status.state} after {timeout_s:g} s ({status.message})")
            time.sleep(poll_s)
        return status

    def successor(self) -> "Run | None":
        """The run that goes on in its place, under a plan for other hosts; None where there is none."""
        name = super().status().successor
        return None if name is None else open_run(name, self.home)

    def stop(self) -> RunStatus:
        """Asks the agent to stop it and waits until its last process is gone (5 s). Raises RunError, InvalidInput."""
        if not self.has_agent:
            raise InvalidInput(f"run {self.id}: no agent started it; end it where it was started")
        from hetplanner.runs.agent.connection import AgentConnection  # httpx, which only this needs

        return AgentConnection(self.home).stop(self.id)

    def ask_peer(self, peer: str, act: PeerAct) -> RunStatus:
        """Has a peer of a running swarm leave (`drain`), kills it or brings it back (`rejoin`). Raises RunError."""
        from hetplanner.runs.agent.connection import AgentConnection

        return AgentConnection(self.home, start=False).ask_peer(self.id, peer, act)

    def __repr__(self) -> str:
        return f"Run({self.id!r})"


def open_run(name: str | Path, home: Path | None = None) -> Run:
    """A run by id, beginning or end of an id, `last`, or path of its directory. Raises InvalidInput."""
    run_id, directory = find_run(name, home)
    return Run(directory.path, run_id, home)


def list_runs(home: Path | None = None) -> list[RunStatus]:
    """Statuses of all registered runs as their directories tell them, oldest first; needs no agent.

    See `true_status` for those whose files are behind.
    """
    found = []
    for run_id in list_run_ids(home):
        with contextlib.suppress(InvalidInput):
            found.append(true_status(read_status(find_run(run_id, home)[1].status_file), home))
    return found


def agent_lives(home: Path | None) -> bool:
    """Whether the process that last held the agent's lock of this home is there still; sends no request."""
    return agent_pid(home) is not None


def true_status(status: RunStatus, home: Path | None) -> RunStatus:
    """A status as a file tells it, or the truth where no living process stands behind that.

    The agent knows it, whose disk may be full. A run whose processes are gone while no agent lives (the machine was
    restarted, say) is given as failed; the next agent writes that down.
    """
    if status.is_over or is_same_process(status.pid, status.pid_created_unix_s):
        return status
    if not agent_lives(home):
        return as_it_is(status)
    from hetplanner.runs.agent.connection import ask_status  # httpx, which only this needs

    try:
        return ask_status(status.run, home)
    except InvalidInput:
        return as_it_is(status)
    except RunError:
        return status


def as_it_is(status: RunStatus) -> RunStatus:
    """A status that no agent keeps true: of a run whose processes are gone, that it failed."""
    waits = status.state == "queued" or status.restart_due or (status.state == "starting" and status.pid is None)
    if status.is_over or waits or is_same_process(status.pid, status.pid_created_unix_s):
        return status
    words = (
        "lost: its processes have ended and no agent saw it; if restarts are left, the next agent starts it again"
        " (`hetplanner agent`)"
    )
    return status.replace(state="failed", message=words)
