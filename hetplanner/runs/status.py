"""The status of a run: one small file, written atomically by its owner (the agent), read by all."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hetplanner.atomic_files import write_whole
from hetplanner.errors import Preempted, RunError
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text

State = Literal["queued", "starting", "running", "stopping", "finished", "stopped", "preempted", "failed"]
CONTINUED = "continued"
"""The word for an ended run in whose place another one goes on."""
LIVE_STATES: frozenset[str] = frozenset({"queued", "starting", "running", "stopping"})
STATUS_VERSION = 3
"""1 knew no preempted runs, 2 no successors."""
MAX_STATUS_BYTES = 2**20
MAX_LAST_LINES = 40
MAX_DEGRADED = 20

Line = Annotated[str, Field(max_length=2000)]


class RunStatus(Noun):
    """Where a run stands.

    Attributes:
        run: the run's id.
        message: one line for a person: the stage of starting, why it waits, why it failed.
        pid: of the launcher's process, which leads its own session.
        pid_created_unix_s: when that process began; with `pid` it names one process for good.
        rehearsal: the plan rehearses a larger problem.
        failed_rank: the rank whose death ended the run.
        last_lines: that rank's last words.
        restarts: how often it was started again, whatever had ended it.
        heartbeats: file in which its ranks tell what they do; in shared memory, so it does not outlive the machine.
        restart_due: preempted together with the agent and not over: the next agent starts it again.
        successor: id of the run that goes on in its place, under a plan for other hosts.
        degraded: what the run goes on without, a sentence each: a full disk, little memory, late links.
    """

    run: Name
    state: State
    message: Annotated[str, Field(max_length=4000)] = ""
    created_unix_s: float
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    pid: int | None = None
    pid_created_unix_s: float | None = None
    ranks: Annotated[int, Field(ge=1)]
    rehearsal: bool = False
    failed_rank: int | None = None
    restarts: Annotated[int, Field(ge=0)] = 0
    heartbeats: Annotated[str, Field(max_length=4096)] | None = None
    restart_due: bool = False
    successor: Name | None = None
    last_lines: Annotated[tuple[Line, ...], Field(max_length=MAX_LAST_LINES)] = ()
    degraded: Annotated[tuple[Line, ...], Field(max_length=MAX_DEGRADED)] = ()

    @property
    def is_over(self) -> bool:
        """Finished, stopped, preempted or failed: it will not change again."""
        return self.state not in LIVE_STATES and not self.restart_due

    @property
    def word(self) -> str:
        """The state as people read it: a run that goes on as another run is `continued`, not lost."""
        return CONTINUED if self.successor is not None and self.is_over else self.state


def raise_if_lost(run: str, status: RunStatus) -> None:
    """Raises RunError for a run that failed, Preempted for one that was told to end from outside."""
    if status.state == "failed":
        raise RunError(f"run {run}: {status.message}")
    if status.state == "preempted":
        raise Preempted(f"run {run}: {status.message}; `hetplanner train PLAN --resume {run}` goes on from there")


def write_status(path: Path, status: RunStatus) -> None:
    """Replaces the file at `path` in one step: a reader sees the old status or the new, never half of one."""
    write_whole(path, status_text(status), mode=0o600)


def status_text(status: RunStatus) -> str:
    """The file's content."""
    data = {"format": f"hetplanner/status@{STATUS_VERSION}"} | status.model_dump(mode="json")
    return json.dumps(data, indent=1) + "\n"


@reader("run status", at="path")
def read_status(path: Path) -> RunStatus:
    """The status in a file. Raises InvalidInput (missing, damaged, of a newer version)."""
    place = f"{path.parent.name}/{path.name}"
    return checked_json(RunStatus, read_text(path, MAX_STATUS_BYTES), "status", STATUS_VERSION, place)
