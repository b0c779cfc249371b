"""Whether an agent watches the runs: what the page does and says when the agent is dead while a run is alive."""

import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

import param
import platformdirs

from hetplanner.errors import HetplannerError
from hetplanner.runs.agent.keeper import AgentKeeper
from hetplanner.runs.directory import RunDirectory, list_run_ids
from hetplanner.runs.home import home_directory, runs_directory
from hetplanner.runs.status import read_status

LOOK_EVERY_S = 3.0
NEWEST = 10
"""Runs that are looked at; live ones are among the newest."""


class AgentWatch(param.Parameterized):
    """A new agent is started when the old one is gone and has left runs alone.

    `words` says so, and what a person can do where that fails; else it is empty.
    """

    words = param.String(default="")

    def __init__(self, home: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.home = home
        self._keeper = AgentKeeper(home)
        self._starting: threading.Thread | None = None
        self._clock = clock
        self._next_s = 0.0

    def beat(self) -> None:
        """Looks again when it is time; a small file and one process while the agent is alive."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + LOOK_EVERY_S
        self.words = "" if self._keeper.lives(time.monotonic()) else self._missed()

    def _missed(self) -> str:
        alone = [run_id for run_id in list_run_ids(self.home)[-NEWEST:] if self._is_live(run_id)]
        if not alone:
            return ""
        if self._starting is None or not self._starting.is_alive():  # it takes a second, for which no page waits
            self._starting = threading.Thread(target=self._keeper.start, name="agent-start", daemon=True)
            self._starting.start()
        others = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        words = f"The agent has ended, so no agent watches {alone[-1]}{others}: the page shows the last known state."
        if not self._keeper.problem:
            return f"{words} A new one is being started, which takes over."
        return f"{words} A new one does not start: {self._keeper.problem}. Try `{start_line(self.home)}` in a terminal."

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
