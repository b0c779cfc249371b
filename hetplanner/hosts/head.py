"""The head of a run over hosts: `python -m hetplanner.hosts.head RUN_DIR`, what an agent starts as it does torchrun.

It asks all hosts, starts them, brings their files back, passes on a stop or a preemption, and ends with 0 if all
torchruns did; its last line says why else, with the host's name. Its exit codes are those of `errors`.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput, Preempted, RunError
from hetplanner.hosts.asking import question, resumed_run
from hetplanner.hosts.changes.succession import Succession
from hetplanner.hosts.checks import Found, problems, told_at_once, told_of_absence, warnings
from hetplanner.hosts.command import run_attempt, tell
from hetplanner.hosts.host_run import HostRun
from hetplanner.hosts.mirror import STATES_FILE, Mirror, host_log, lost_before, wanted_files
from hetplanner.hosts.outcome import Outcome, find_outcome, find_swarm_outcome, summary_lines
from hetplanner.hosts.transport import Unreachable, transport_of
from hetplanner.launchers.hosts_file import Hosts, PlacedHost, place_hosts
from hetplanner.launchers.interface import ATTEMPT_VARIABLE, HostCommand
from hetplanner.launchers.launch_file import load_launch
from hetplanner.launchers.ssh import SshLauncher
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.plan.files.train_files import CONFIG_FILE, config_to_data, load_config
from hetplanner.plan.placement import workers_of
from hetplanner.schema import read_text
from hetplanner.swarm.launch.requests import orders_so_far
from hetplanner.swarm.launch.saved_on_hosts import SAVED_FILE, saved_text

log = logging.getLogger(__name__)

TICK_S = 0.05
PING_S = 1.0
REPEAT_S = 0.5
QUIET_S = 5.0
"""A host that was not heard of for so long is told of."""
LEASE_BEYOND_S = 15.0
"""The processes of a host that is given up end by themselves so much later."""
PEERS_RETURN_S = 20.0
"""A host of a swarm's peers is waited for no longer when the swarm is started again."""
OTHERS_S, OTHERS_SAVING_S = 6.0, 30.0
"""After one host has ended, the others have so long to end by themselves; longer where they save what they hold."""
STOP_S = 4.0
END_S = 5.0
FLUSH_S = 0.7
"""A host whose processes were ended has so long to send the rest of its logs."""
STEADY_S = 60.0
"""Ranks that stand may wait for a network that was cut: they count as stuck only after so long without a break."""


class Head:
    """One attempt of a run over hosts.

    Args:
        run_dir: with plan.json, run.json and launch.json.
        attempt: how often the run was started again.

    Raises:
        InvalidInput: a file is damaged, or the hosts do not fit the plan.
    """

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.run_dir, self.attempt = run_dir, attempt
        self.plan = load_any_plan(run_dir / "plan.json")
        self.is_swarm = isinstance(self.plan, ElasticPlan)
        self.config = load_config(run_dir / CONFIG_FILE)
        launch = load_launch(run_dir)
        self.hosts = launch.hosts or Hosts()
        self.transport = transport_of(launch.launcher, self.hosts)
        self.run = launch.run or run_dir.name
        self.placed = place_hosts(self.plan, self.hosts)
        request = SshLauncher(self.hosts, self.run).request(self.plan, run_dir, self.config)
        self.succession = Succession(run_dir, attempt, self.config, launch, self.transport)
        self._goes_on = attempt > 0 or launch.first is not None
        self._resume = resumed_run(self.config)
        self._lost_before = lost_before(run_dir)
        on = {rank: host.name for host in self.placed for rank in host.ranks}
        self.names = [f"{device}, host {on[rank]}" for rank, device in enumerate(workers_of(self.plan))]
        self._certificates = _certificates(run_dir) if self.is_swarm else {}
        self.runs = [self._host_run(host, cmd) for host, cmd in zip(self.placed, request.commands, strict=True)]
        self._asked: str = ""
        self._written: Any = None
        self._next_s = dict.fromkeys(("ping", "repeat", "write", "ask"), 0.0)

    def _host_run(self, host: PlacedHost, command: HostCommand) -> HostRun:
        port = self.hosts.port if not self._goes_on else None  # of an earlier attempt something may still listen
        folder = f"{host.run_folder}/{self.run}"
        asked = question(self.plan, self.config, host, port, self._resume)
        asked |= {"run_folder": folder, "attempt": self.attempt, "lease_s": self.hosts.lost_s + LEASE_BEYOND_S}
        asked |= {"swarm": self.run} if self.is_swarm and self.attempt else {}
        lost = self._lost_before.get(host.name, {})
        mirror = Mirror(self.run_dir, wanted_files(self.plan, self.config, host), self.config.checkpoints_kept, lost)

        def order(found: Found) -> tuple[dict[str, Any], bytes]:
            return self._order(host, command, folder, found)

        returns = self.is_swarm and host.node != 0
        patience_s = min(self.hosts.return_s, PEERS_RETURN_S if returns else inf) if self._goes_on else 0.0
        return HostRun(host, self.transport, asked, order, mirror, patience_s, returns=returns)

    def _order(self, host: PlacedHost, command: HostCommand, folder: str, found: Found) -> tuple[dict[str, Any], bytes]:
        """What starts a host's part."""
        config = self.config.replace(resume=f"../{self._resume}" if self._resume else None)  # beside the run, on all
        files = {
            "plan.json": read_text(self.run_dir / "plan.json"),
            "run.json": json.dumps(config_to_data(config), indent=1).encode() + b"\n",
        }
        if self.is_swarm:
            files |= self._files_of_swarm(host)
        header = {
            "folder": folder,
            "attempt": self.attempt,
            "argv": list(command.argv[1:-1]),
            "env": dict(command.env) | ({ATTEMPT_VARIABLE: str(self.attempt)} if self.attempt else {}),
            "ranks": [] if self.is_swarm else list(host.ranks),  # a swarm's part looks after its own processes
            "num_ranks": 0 if self.is_swarm else len(self.names),
            "names": [] if self.is_swarm else self.names,
            "address": found.facts.address if found.facts else host.address,
            "port": self.hosts.port if host.node == 0 else None,
            "lease_s": self.hosts.lost_s + LEASE_BEYOND_S,
            "files": [[name, len(content)] for name, content in files.items()],
        }
        return header, b"".join(files.values())

    def _files_of_swarm(self, host: PlacedHost) -> dict[str, bytes]:
        """What a host's processes show each other; for the coordinator, the checkpoints that others have."""
        files = dict(self._certificates)
        if host.node == 0:
            found = {run.host.name: run.found.facts for run in self.runs if run.found is not None}
            saved = {name: facts.stage_files for name, facts in found.items() if facts is not None}
            files[SAVED_FILE] = saved_text(saved).encode()
        return files

    # -- from start to end ------------------------------------------------------------------------

    def go(self) -> Outcome:
        """Runs the attempt to its end.

        Raises:
            InvalidInput: hosts cannot run it, with all that is wrong.
            RunError: a host that ran it before does not come back.
        """
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._told_to_end)
        signal.signal(signal.SIGUSR1, self._told_to_stop)
        for run in self.runs:
            run.begin()
        self.succession.begin()
        try:
            if not self._wait_for_facts():
                code = 0 if self._asked == "stop" else Preempted.exit_code
                return Outcome(code, "it was told to end before it started")
            for run in self.runs:
                self._put_log_away(run.host)
                run.go.set()
            outcome = self._follow()
            self._end_all(outcome)
            return self.succession.end(outcome)
        finally:
            self.succession.close()
            self._write_states()
            with ThreadPoolExecutor(len(self.runs)) as pool:
                list(pool.map(HostRun.close, self.runs))

    def _told_to_end(self, signum: int, frame: object) -> None:
        self._asked = self._asked or "preempt"

    def _told_to_stop(self, signum: int, frame: object) -> None:
        """The stop file may come late where the disk is another machine's."""
        self._asked = "stop"

    def _look_for_stop(self) -> str:
        """What the head was asked for: stop, preempt, or nothing."""
        if not self._asked and self.succession.back:
            self._asked = "preempt"  # the ranks save what they hold, and the run goes on with the host
        if self._asked != "stop" and (self.run_dir / "stop").exists():
            self._asked = "stop"
        return self._asked

    def _wait_for_facts(self) -> bool:
        """Waits until all hosts have said what they are; False: the head was asked to end. Raises when one is unfit."""
        while any(run.found is None and not run.refused for run in self.runs):
            if self._look_for_stop():
                return False
            self._keep_in_touch()
            time.sleep(TICK_S)
        found = [run.found or Found(run.host, error=RunError(run.refused)) for run in self.runs]
        if self._goes_on:  # a swarm begins without hosts of peers that are away
            away = [run.host.name for run in self.runs if run.returns]
            found = [each for each in found if not (each.host.name in away and isinstance(each.error, Unreachable))]
        # A swarm that is started again goes on from what it has itself.
        config = self.config.replace(resume=None) if self.is_swarm and self.attempt else self.config
        told = problems(self.plan, config, found, metadata.version("hetplanner"))
        away = [each.host.name for each in found if isinstance(each.error, Unreachable)]
        if told and self._goes_on and len(away) == len(told):
            words = told_of_absence(told, self.hosts.return_s, self.run_dir.name)
            raise self.succession.without(tuple(away), words)
        if told:
            raise InvalidInput(told_at_once(told))
        for text in warnings(found):
            log.warning("%s", text)
        return True

    def _put_log_away(self, host: PlacedHost) -> None:
        """What an earlier attempt's torchrun said stays under another name."""
        path = self.run_dir / host_log(host.node)
        if self.attempt and path.exists():
            path.replace(path.with_name(f"host-{host.node}-{self.attempt - 1}.txt"))

    def _follow(self) -> Outcome:
        """Until all have ended well, or one has not and the others had time to end, too."""
        told_s: float | None = None
        first_end_s: float | None = None
        while True:
            self._keep_in_touch()
            asked = self._look_for_stop()
            now_s = time.monotonic()
            if asked:
                told_s = told_s or now_s
                self._repeat(asked)
            if self.is_swarm:
                self._ask_peers()
                outcome = find_swarm_outcome(self.runs, self.hosts.lost_s)
                if outcome is not None and not outcome.code:
                    self._repeat("stop")  # a host whose peers were all asked to go does not see that the run is over
            else:
                outcome = find_outcome(self.runs, self.names, self.hosts.lost_s, STEADY_S)
            if all(run.done for run in self.runs):
                return Outcome(0, "stopped") if asked == "stop" else outcome or Outcome(0, "finished")
            if asked == "stop":
                if told_s is not None and now_s - told_s > STOP_S:
                    return _stopped_without(self.runs)
            elif outcome is not None:
                first_end_s = first_end_s or now_s
                grace_s = OTHERS_SAVING_S if outcome.is_preemption else OTHERS_S
                if outcome.is_final or now_s - first_end_s > grace_s:
                    return outcome
            time.sleep(TICK_S)

    def _end_all(self, outcome: Outcome) -> None:
        """No process stays on a host that can be reached; then the agent is told which ranks ended how."""
        deadline_s = time.monotonic() + END_S
        lost_s = self.hosts.lost_s
        while (left := [run for run in self.runs if _has_processes(run, lost_s)]) and time.monotonic() < deadline_s:
            self._repeat("end", left)
            self._keep_in_touch()
            time.sleep(TICK_S)
        if outcome.code:
            for line in summary_lines(self.runs):
                sys.stdout.write(line + "\n")

    # -- in touch ---------------------------------------------------------------------------------

    def _is_time(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s[what]:
            return False
        self._next_s[what] = now_s + every_s
        return True

    def _keep_in_touch(self) -> None:
        if self._is_time("ping", PING_S):
            for run in self.runs:
                run.ping()
        if self._is_time("write", PING_S):
            self._write_states()

    def _repeat(self, what: str, runs: Sequence[HostRun] | None = None) -> None:
        if self._is_time("repeat", REPEAT_S):
            for run in self.runs if runs is None else runs:
                if run.started and not run.done:
                    run.tell(what)

    def _ask_peers(self) -> None:
        """Passes on what the agent's users asked of peers, to the hosts on which they run."""
        if self._is_time("ask", REPEAT_S):
            asked = orders_so_far(self.run_dir, self.attempt)
            names = workers_of(self.plan)
            for run in self.runs:
                here = {names[number] for number in run.host.ranks}
                run.order_peers([one for one in asked if one.peer in here])

    def _write_states(self) -> None:
        data = {
            "format": "hetplanner/hosts-state@1",
            "hosts": {run.host.name: _state_of(run) for run in self.runs},
            "warnings": [text for run in self.runs for text in host_warnings(run, self.hosts.lost_s)],
        }
        if data != self._written:
            try:
                write_whole(self.run_dir / STATES_FILE, json.dumps(data, indent=1) + "\n", mode=0o600)
                self._written = data
            except OSError as error:
                log.warning("%s cannot be written: %s", STATES_FILE, error)


def _certificates(run_dir: Path) -> dict[str, bytes]:
    """What the processes of a swarm show each other, by the name of the file; made when the run first starts."""
    from hetplanner.swarm.wire.certificates import AUTHORITY_FILE, MEMBER_FILE, MEMBER_KEY_FILE, run_certificates

    folder = run_certificates(run_dir)
    names = (AUTHORITY_FILE, MEMBER_FILE, MEMBER_KEY_FILE)
    return {f"{folder.name}/{name}": read_text(folder / name) for name in names}


def _has_processes(run: HostRun, lost_s: float) -> bool:
    """Whether a host that can be reached may have processes of the run, or logs of them to send."""
    if not (run.started or run.is_starting) or run.done or run.refused or run.unheard_s() > lost_s:
        return False
    return run.ended_s is None or time.monotonic() - run.ended_s < FLUSH_S


def _state_of(run: HostRun) -> dict[str, Any]:
    """What readers may want to know of a host."""
    clock = None if run.clock_error_s == float("inf") else round(run.clock_s, 4)
    return {
        "connected": run.is_connected,
        "clock_s": clock,
        "clock_error_s": None if clock is None else round(run.clock_error_s, 4),
        "lost_bytes": {name: count for name, count in run.mirror.lost.items() if count},
    }


def host_warnings(run: HostRun, lost_s: float) -> list[str]:
    """Sentences about a host that the run goes on without, or that holds it up."""
    texts = [f"host {run.host.name}: {text}" for text in (run.state.warnings if run.state else ())]
    if run.started and run.returns and (run.is_gone or run.unheard_s() > QUIET_S):
        texts.append(
            f"host {run.host.name}: the swarm continues without its peers and takes them back when the host returns"
        )
    elif run.started and not run.done and run.unheard_s() > QUIET_S:
        texts.append(
            f"host {run.host.name} has not been heard of for more than {QUIET_S:g} s; its ranks may go on, and after"
            f" {lost_s:g} s it is given up"
        )
    if not run.started and run.found is None and run.unheard_s() > QUIET_S:
        texts.append(f"host {run.host.name} cannot be reached yet; it is waited for")
    texts += [f"host {run.host.name}: {name} has grown too large, its rest is left there" for name in run.mirror.full]
    return [text[:1900] for text in texts]


def _stopped_without(runs: Sequence[HostRun]) -> Outcome:
    away = [run.host.name for run in runs if not run.done and run.started]
    words = f"stopped; {', '.join(away)} did not answer; its processes end within a minute"
    return Outcome(RunError.exit_code, words)


def _attempt(run_dir: Path, attempt: int) -> int:
    outcome = Head(run_dir, attempt).go()
    tell(outcome.words)
    return outcome.code


if __name__ == "__main__":
    code = run_attempt("hetplanner.hosts.head", sys.argv[1:], _attempt)
    os._exit(code)  # a thread may still wait for a host that does not answer
