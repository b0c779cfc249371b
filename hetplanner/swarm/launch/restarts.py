"""Restarts the processes of a swarm that ended without a request.

What peers, trainers and the coordinator were when they died is not asked: a peer fetches its stage from another or from
a checkpoint, a coordinator goes on from its decision log, a trainer holds nothing. A process that was asked to end is
not restarted.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hetplanner.errors import Preempted, RunError
from hetplanner.line_files import append_line
from hetplanner.swarm.launch.rehearsal import COORDINATOR, Rehearsal

log = logging.getLogger(__name__)

PROCESSES_FILE = "processes.jsonl"
"""What became of the processes of a run, line by line, as the one that started them saw it."""
SHORT_LIFE_S = 10.0
"""A process that lives no longer than this is restarted after growing delays."""
MOST_SHORT_LIVES = 20
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
LEFT_ALONE_S = 3.0
"""The coordinator is given up after so long without any trainer or peer that could come back."""
LAST_WORDS_BYTES = 8192
MAX_WORDS = 300


@dataclass
class Keeper:
    """Looks after the processes of one rehearsal.

    Attributes:
        rehearsal: whose processes they are.
        limit: how often each of them is started again.
        find_hung: words about those that live and do nothing, by name; they are killed.
        clock: seconds that never jump.
        has_all: these are all processes of the swarm; else others are on other hosts.
        is_leaving: a peer that was told to end stays away, since its machine is taken away.
        restarts: so far, by name.
        excused: names of those that were asked to go.
    """

    rehearsal: Rehearsal
    limit: int
    find_hung: Callable[[], Mapping[str, str]] = dict
    clock: Callable[[], float] = time.monotonic
    has_all: bool = True
    is_leaving: bool = False
    restarts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.excused: set[str] = set()
        self._wanted_back: set[str] = set()
        self._gone: set[str] = set()
        self._since_s: dict[str, float] = {}
        self._again_s: dict[str, float] = {}
        self._why: dict[str, str] = {}
        self._short_lives: Counter[str] = Counter()
        self._left_alone_s: float | None = None
        self._tell("started", "launcher", f"started {', '.join(self.rehearsal.processes)}")

    def expect_end(self, name: str) -> None:
        """A process was asked to go: it stays away."""
        self.excused.add(name)
        self._wanted_back.discard(name)

    def bring_back(self, name: str) -> None:
        """A process that was asked to go shall be there again, as soon as it has ended."""
        self._wanted_back.add(name)

    def _start_if_ended(self, name: str) -> None:
        if name in self._again_s:  # it comes back by itself
            self._wanted_back.discard(name)
        if name not in self._wanted_back or self.rehearsal.processes[name].exitcode is None:
            return
        for names in (self._wanted_back, self.excused, self._gone):
            names.discard(name)
        self._short_lives[name] = 0
        self._since_s[name] = self.clock()
        self._tell("restarted", name, "started again, as it was asked")
        self.rehearsal.start_again(name)

    @property
    def _all_peers(self) -> set[str]:
        """Without one of these the swarm cannot go on."""
        return self.rehearsal.peers if self.has_all else set()

    @property
    def has_ended(self) -> bool:
        """Whether every process is gone for good."""
        return self._gone >= set(self.rehearsal.processes)

    @property
    def may_come_back(self) -> bool:
        """Whether only processes that were asked to end are gone: each may be asked to come back."""
        return self.excused >= set(self.rehearsal.processes)

    def last_problem(self) -> str:
        """Why some were not started again; empty where nothing went wrong."""
        return "; ".join(f"{name} {self._why[name]}" for name in sorted(self._gone & self._why.keys())[-1:])

    def look(self) -> None:
        """Deals with processes that have ended or hang; to be called often.

        Raises:
            Preempted: the coordinator was told to end and may not be started again.
            RunError: the swarm cannot go on by itself.
        """
        hung = self.find_hung()
        for name in list(self._wanted_back):
            self._start_if_ended(name)
        for name, process in list(self.rehearsal.processes.items()):
            self._since_s.setdefault(name, self.clock())
            if name in self._gone:
                continue
            if name in self._again_s:
                self._start_if_time(name)
            elif process.exitcode is not None:
                self._has_ended(name, process.exitcode)
            elif name in hung:
                self.rehearsal.kill(name)
                self._has_ended(name, -signal.SIGKILL, hung[name])
        self._check_that_some_are_left()

    def _has_ended(self, name: str, exit_code: int, hung: str | None = None) -> None:
        how = hung or self._how_it_ended(name, exit_code)
        if exit_code == 0 or name in self.excused or (self.is_leaving and exit_code == Preempted.exit_code):
            self._gone.add(name)
            return
        self._why[name] = how
        is_short = self.clock() - self._since_s[name] < SHORT_LIFE_S
        tries = self._short_lives[name] = self._short_lives[name] + 1 if is_short else 0
        if (why_not := self._why_not_again(name)) is not None:
            self._gone.add(name)
            self._tell("ended", name, f"{how}; {why_not}")
            if name == COORDINATOR:
                error = Preempted if exit_code in (Preempted.exit_code, -signal.SIGTERM) else RunError
                raise error(f"coordinator: {how}; {why_not}")
            return
        wait_s = min(FIRST_WAIT_S * 2 ** (tries - 2), LONGEST_WAIT_S) if tries > 1 else 0.0
        self._again_s[name] = self.clock() + wait_s
        self._start_if_time(name)

    def _start_if_time(self, name: str) -> None:
        if self.clock() < self._again_s[name]:
            return
        del self._again_s[name]
        self.restarts[name] += 1
        self._since_s[name] = self.clock()
        self._tell("restarted", name, f"{self._why[name]}; started again ({self.restarts[name]} of {self.limit})")
        self.rehearsal.start_again(name)

    def _why_not_again(self, name: str) -> str | None:
        times = self.restarts[name]
        if times >= self.limit:
            return f"it has been started again {times} of at most {self.limit} times (max_restarts)"
        if self._short_lives[name] > MOST_SHORT_LIVES:
            return f"it has lived less than {SHORT_LIFE_S:g} s {self._short_lives[name]} times in a row"
        return None

    def _check_that_some_are_left(self) -> None:
        """When all is done the others may go a moment before the coordinator does."""
        left_alone = [
            (role, names)
            for role, names in (("trainer", self.rehearsal.trainers), ("peer", self._all_peers))
            if names and names <= self._gone
        ]
        if not left_alone:
            self._left_alone_s = None
            return
        if self._left_alone_s is None:
            self._left_alone_s = self.clock()
        if self.clock() - self._left_alone_s > LEFT_ALONE_S:
            role, names = left_alone[0]
            last = "; ".join(f"{name} {self._why[name]}" for name in sorted(names & self._why.keys())[-1:])
            raise RunError(f"no {role} is left, and the swarm cannot go on without one" + (f": {last}" if last else ""))

    def _how_it_ended(self, name: str, exit_code: int) -> str:
        if exit_code == Preempted.exit_code:
            return "was told to end by SIGTERM"
        if exit_code < 0:
            try:
                return f"was killed by {signal.Signals(-exit_code).name}"
            except ValueError:
                return f"was killed by signal {-exit_code}"
        words = last_words(self.rehearsal.log_file(name))
        return f"ended with exit code {exit_code}" + (f" ({words})" if words else "")

    def _tell(self, kind: str, name: str, text: str) -> None:
        log.log(logging.INFO if kind == "started" else logging.WARNING, "%s: %s", name, text)
        line = json.dumps({"time_s": time.time(), "kind": kind, "peer": name, "text": text}).encode()
        try:
            append_line(self.rehearsal.run_dir / PROCESSES_FILE, line)
        except OSError as error:  # a full disk must not end the training
            log.warning("%s cannot be written: %s", PROCESSES_FILE, error)


def last_words(path: Path) -> str:
    """The last line of a log that says something; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:MAX_WORDS] for line in reversed(lines) if line.strip()), "")
