"""When hosts of a run leave or return: what the run goes on as, and when."""

import logging
import subprocess
from importlib import metadata
from pathlib import Path

from hetplanner.errors import HetplannerError, InvalidInput, Preempted, RunError
from hetplanner.hosts.asking import ask_facts, question
from hetplanner.hosts.changes.collecting import collect_rest
from hetplanner.hosts.changes.next_plan import NextPlan, make_next_plan, save_next
from hetplanner.hosts.changes.returning import ReturnWatch
from hetplanner.hosts.checks import problems
from hetplanner.hosts.connection import Connection
from hetplanner.hosts.outcome import Outcome
from hetplanner.hosts.transport import Transport, Unreachable
from hetplanner.launchers.hosts_file import Hosts, PlacedHost, place_hosts
from hetplanner.launchers.launch_file import Launch
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.files.resumable import PLAN_FILE, latest_saved
from hetplanner.plan.files.train_files import resume_chain
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.search.compiled_parts import begin_compiling
from hetplanner.units import short_seconds

log = logging.getLogger(__name__)

MAX_CHARACTERS = 1800


class Succession:
    """Of one attempt of a run.

    Args:
        run_dir: of the run.
        attempt: how often the run was started again.
        config: its settings; without `replan` nothing is planned anew.
        launch: how it was launched, with the hosts that it does without.
        transport: the way to hosts.
    """

    def __init__(self, run_dir: Path, attempt: int, config: TrainConfig, launch: Launch, transport: Transport) -> None:
        self._run_dir, self._attempt, self._config, self._launch = run_dir, attempt, config, launch
        self._hosts, self._transport = launch.hosts or Hosts(), transport
        self._first = Path(launch.first) if launch.first is not None else run_dir
        self._watch: ReturnWatch | None = None
        self._compiler: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Begins to look for hosts that are away, and compiles what a search would need."""
        if not self._config.replan:
            return
        self._compiler = begin_compiling()
        if not self._launch.away:
            return
        try:
            plan = load_plan(self._first / PLAN_FILE)
            placed = [host for host in place_hosts(plan, self._hosts) if host.name in self._launch.away]
        except InvalidInput as error:
            log.warning("hosts that are away are not looked for: %s", error)
            return
        version, config = metadata.version("hetplanner"), self._config.replace(resume=None)

        def look(host: PlacedHost) -> list[str]:
            connection = Connection(host, self._transport)
            try:
                found = ask_facts(connection, question(plan, config, host, None, None))
            finally:
                connection.close()
            told = [text for _, text in problems(plan, config, [found], version)]
            if not told:
                self._collect(host.name)
            return told

        self._watch = ReturnWatch(placed, look)

    def _collect(self, host: str) -> None:
        """Brings what a host has of the runs before, as far as that can be had. Raises Unreachable."""
        for run_dir in dict.fromkeys((*resume_chain(self._config.resume), self._first)):
            try:
                collect_rest(run_dir, host, self._transport)
            except Unreachable:
                raise
            except (HetplannerError, OSError) as error:  # the run goes on without it
                log.warning("host %s: its files of %s cannot be fetched: %s", host, run_dir.name, error)

    def close(self) -> None:
        """Looks no more."""
        if self._watch is not None:
            self._watch.close()
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.wait()

    @property
    def back(self) -> tuple[str, ...]:
        """Hosts that are back; the run shall be saved and end for them."""
        return self._watch.back if self._watch is not None else ()

    def without(self, absent: tuple[str, ...], words: str) -> RunError:
        """How an attempt ends whose hosts have not come back.

        Args:
            absent: their names.
            words: that they are not there, and what a person can do.
        """
        if not self._config.replan:
            return RunError(words)
        try:
            self._plan((*self._launch.away, *absent))
        except (HetplannerError, OSError) as error:
            return RunError(f"{words}; no plan for the other hosts: {error}"[:MAX_CHARACTERS])
        waited = short_seconds(self._hosts.return_s)
        return Preempted(f"host {', '.join(absent)} has not come back for {waited}"[:MAX_CHARACTERS])

    def end(self, outcome: Outcome) -> Outcome:
        """How an attempt ends: as it did, or for hosts that are back."""
        back = self.back
        if not back or not outcome.is_preemption:
            return outcome
        try:
            self._plan(tuple(name for name in self._launch.away if name not in back))
        except (HetplannerError, OSError) as error:  # a restart goes on as before
            words = f"host {', '.join(back)} is back, but there is no plan with it: {error}"
        else:
            words = f"host {', '.join(back)} is back"
        return Outcome(outcome.code, words[:MAX_CHARACTERS])

    def _plan(self, away: tuple[str, ...]) -> None:
        """Writes the plan that the agent goes on with."""
        saved = latest_saved(self._run_dir, self._config.resume)
        plan = make_next_plan(self._first, saved, away, self._config.seed)
        save_next(self._run_dir, NextPlan(attempt=self._attempt, away=away), plan)
