"""What client and agent say to each other: JSON over HTTP over a Unix socket, every request checked by a schema."""

import functools
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hetplanner.errors import HetplannerError, Infeasible, InvalidInput, Preempted, RunError
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.allowed_paths import Choice
from hetplanner.schema import MAX_FILE_BYTES, Name, Noun, Text
from hetplanner.swarm.launch.requests import PeerAct

PROTOCOL = 4
MAX_REQUEST_BYTES = MAX_FILE_BYTES
"""A start request carries one plan file."""

CALLER_HEADER = "User-Agent"
"""The caller, for the audit log: `hetplanner/dashboard`, `hetplanner/python`."""

ERRORS: dict[str, type[HetplannerError]] = {
    error.__name__: error for error in (HetplannerError, InvalidInput, Infeasible, RunError, Preempted)
}
"""Errors cross the socket by name and text, and end the command line with the same exit code."""


class StartRequest(Noun):
    """Start a run. There is no field for a command or an environment, on purpose.

    Attributes:
        plan: content of a plan file.
        launcher: where it runs: on this machine, on hosts by ssh, or as a job of Slurm.
        hosts: content of a hosts file, for ssh and slurm; None calls each of the plan's hosts by its own name.
        out: absolute path of an empty folder for the run; the caller is the agent's own user (socket 0600).
        choice: names from the agent's offers, for a request that comes from a page: it may hold no path then.
    """

    plan: dict[str, Any]
    config: TrainConfig = TrainConfig()
    launcher: Literal["local", "ssh", "slurm"] = "local"
    hosts: Hosts | None = None
    out: Text | None = None
    choice: Choice | None = None

    @model_validator(mode="after")
    def _names_or_paths(self) -> Self:
        if self.choice is not None and (self.out is not None or self.hosts is not None):
            raise ValueError("out is a path and hosts name programs; a page chooses from the offered names")
        if self.choice is not None and (self.launcher == "local") != (self.choice.hosts is None):
            raise ValueError("choice: a page launches on hosts that the agent offers by name, and only by ssh or slurm")
        if self.hosts is not None and self.launcher == "local":
            raise ValueError("hosts: belong to the launchers ssh and slurm")
        return self


class PeerRequest(Noun):
    """Have a peer of a running swarm leave, or kill it. It names a peer of the run's plan: no path, no process."""

    peer: Name
    act: PeerAct


class ShutdownRequest(Noun):
    """End the agent; `stop_runs` also stops what it runs, else it refuses while runs are alive."""

    stop_runs: bool = False


class AgentInfo(Noun):
    """The agent that answers on the socket.

    Attributes:
        installation: interpreter and package that the agent runs; its runs use the same.
        live_runs: queued, starting, running or stopping.
    """

    protocol: int
    version: str
    installation: str
    pid: Annotated[int, Field(ge=1)]
    started_unix_s: float
    live_runs: Annotated[int, Field(ge=0)] = 0


@functools.cache
def package_version() -> str:
    """Version of the installed package."""
    try:
        return metadata.version("hetplanner")
    except metadata.PackageNotFoundError:
        return "unknown"


def installation() -> str:
    """What tells two installations apart: the environment, and where the package lies."""
    return f"{sys.prefix}:{Path(__file__).parents[1]}"
