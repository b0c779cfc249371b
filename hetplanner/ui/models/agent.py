"""Whether somebody watches the runs: what the page says when the agent is dead while a run is alive."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import param
import platformdirs

from hetplanner.errors import HetplannerError
from hetplanner.runs.directory import RunDirectory, list_run_ids
from hetplanner.runs.home import home_directory, runs_directory
from hetplanner.runs.run import agent_lives
from hetplanner.runs.status import read_status

LOOK_EVERY_S = 3.0
NEWEST = 10
"""Runs that are looked at; live ones are among the newest."""


class AgentWatch(param.Parameterized):
    """`words` says that the agent is gone, which runs that leaves alone and what brings it back; else it is empty."""

    words = param.String(default="")

    def __init__(self, home: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.home = home
        self._clock = clock
        self._next_s = 0.0

    def beat(self) -> None:
        """Looks again when it is time; a small file and one process while the agent is alive."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + LOOK_EVERY_S
        self.words = "" if agent_lives(self.home) else self._missed()

    def _missed(self) -> str:
        alone = [run_id for run_id in list_run_ids(self.home)[-NEWEST:] if self._is_live(run_id)]
        if not alone:
            return ""
        others = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        return (
            f"The agent is gone, so nobody watches {alone[-1]}{others}: what is shown is the last that was known."
            f" Start it in a terminal with `{start_line(self.home)}`; the run itself goes on, and it takes it over."
        )

    def _is_live(self, run_id: str) -> bool:
        try:
            return not read_status(RunDirectory((runs_directory(self.home) / run_id).resolve()).status_file).is_over
        except HetplannerError:
            return False


def start_line(home: Path | None = None) -> str:
    """What a person types to start the agent of a home, in a terminal that may not know this process's variables."""
    home = home or home_directory()
    if home == platformdirs.user_data_path("hetplanner"):
        return "hetplanner agent"
    return f"HETPLANNER_HOME={shlex.quote(str(home))} hetplanner agent"
