"""A process that waits for a run makes sure that an agent is alive to end it: a killed or stopped one is replaced."""

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hetplanner.errors import HetplannerError
from hetplanner.liveness.process_facts import process_facts
from hetplanner.liveness.processes import is_same_process
from hetplanner.reading import DAMAGED
from hetplanner.runs.home import AGENT_FILE, agent_directory

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
STOPPED_S = 5.0
"""An agent that is stopped (SIGSTOP, a debugger) for so long is killed: no run ends while it holds its place."""
AFTER_FAILURE_S = 10.0


class AgentKeeper:
    """Replaces the agent of a home when it is gone.

    Attributes:
        problem: why there is none though one is wanted; empty while all is well.
    """

    def __init__(self, home: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.home, self._clock = home, clock
        self.problem = ""
        self._next_s = 0.0
        self._stopped_since_s: float | None = None

    def look(self) -> bool:
        """Looks when it is time; starts an agent where none lives, which takes a moment. Returns whether it did."""
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_EVERY_S
        if self.lives(now_s):
            return False
        return self.start()

    def lives(self, now_s: float) -> bool:
        """Whether the process that holds the agent's place is at work; one that is stopped for good is killed."""
        pid = agent_pid(self.home)
        facts = process_facts(pid) if pid is not None else None
        if pid is None or facts is None:
            self._stopped_since_s = None
            return False
        if not facts.is_stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        elif now_s - self._stopped_since_s > STOPPED_S:
            log.warning("the agent (process %d) is stopped: it is killed and replaced", pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return True

    def start(self) -> bool:
        """Starts an agent, unless another process has. Returns whether one is there now."""
        from hetplanner.runs.agent.connection import ensure_agent  # httpx, which only this needs

        try:
            ensure_agent(self.home)
        except HetplannerError as error:
            self.problem = str(error)
            self._next_s = self._clock() + AFTER_FAILURE_S
            log.warning("%s", error)
            return False
        self.problem = ""
        return True


def agent_pid(home: Path | None) -> int | None:
    """The process that last held the agent's lock of this home, if it is there still; sends no request."""
    try:
        holder = json.loads((agent_directory(home) / AGENT_FILE).read_text(encoding="utf-8"))
        pid = int(holder["pid"])
        return pid if is_same_process(pid, float(holder["began_s"])) else None
    except (OSError, *DAMAGED):
        return None
