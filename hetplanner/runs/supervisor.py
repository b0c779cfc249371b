"""Owns the processes of runs and keeps every status.json true: queue, start, watch, stop, adopt.

Everything happens in `submit`, `stop` and `tick`, called from one thread; nothing here waits. State machine:

    queued -> starting -> running -> finished | failed
       \\          \\          \\-> stopping -> stopped
"""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hetplanner.data.registry import check_data
from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.launchers.capacity import Machine, check_capacity, this_machine
from hetplanner.launchers.disk import check_disk, disk_need
from hetplanner.launchers.interface import ATTEMPT_VARIABLE, Launcher, LaunchRequest
from hetplanner.launchers.registry import make_launcher
from hetplanner.plan.elastic import ElasticPlan
from hetplanner.plan.files import AnyPlan, load_any_plan, rank_labels
from hetplanner.plan.train import TrainConfig, check_runnable
from hetplanner.runs.audit import AuditLog
from hetplanner.runs.conditions import Conditions, with_full_disk
from hetplanner.runs.diagnosis import diagnose
from hetplanner.runs.directory import RunDirectory, create_run_directory, find_run, list_run_ids, load_config
from hetplanner.runs.leftovers import remove_leftovers
from hetplanner.runs.processes import (
    created_unix_s,
    is_same_process,
    processes_of_run,
    send_signal,
    start_in_session,
)
from hetplanner.runs.resuming import check_resume
from hetplanner.runs.status import RunStatus, read_status
from hetplanner.runs.status_file import StatusFile
from hetplanner.runs.swarm_history import SwarmHistory
from hetplanner.runs.telemetry import PHASES, RankTelemetry
from hetplanner.swarm.asked import Asked, PeerAct, ask, asked_so_far
from hetplanner.swarm.spec import spec_of

logger = logging.getLogger(__name__)

MAX_RUNNING = 1
"""Runs at a time. Rehearsals share this machine's cores and their timing is what they are run for, so two at
once would spoil both; further ones queue."""
MAX_QUEUED = 8
MAX_NAMED = 8

# Stop: the ranks get GRACE_S to end their step and save the model, then a second's warning, then SIGKILL.
# 3.3 + 0.6 s leave a second of the promised 5 for the sweep.
GRACE_S = 3.3
GRACE_BEFORE_TRAINING_S = 0.3
TERMINATE_S = 0.6
_PHASE_BYTES = 2**20


@dataclass
class OwnedRun:
    """A run that is not over.

    Attributes:
        labels: device of every rank.
        process: the launcher, when this agent started it; None for an adopted one.
        telemetry: ranks' files, read until all of them train.
        terminate_at_s, kill_at_s: when a stop gets rougher.
        history: of a swarm, once something was asked of its peers.
        conditions: what it goes on without; once it was started.
        file: keeps status.json true.
    """

    directory: RunDirectory
    labels: tuple[str, ...]
    status: RunStatus
    process: "subprocess.Popen[bytes] | None" = None
    telemetry: list[RankTelemetry] = field(default_factory=list)
    terminate_at_s: float | None = None
    kill_at_s: float | None = None
    history: SwarmHistory | None = None
    conditions: Conditions | None = None

    def __post_init__(self) -> None:
        self.file = StatusFile(self.directory.status_file)


class Supervisor:
    """All runs of one user on this machine."""

    def __init__(
        self,
        home: Path,
        max_running: int = MAX_RUNNING,
        max_queued: int = MAX_QUEUED,
        launcher: Callable[[str], Launcher] = make_launcher,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """An owner of no runs yet; `adopt` takes over those of an earlier one.

        Args:
            home: directory with `runs/` and `agent/`.
            max_running: runs alive at the same time.
            max_queued: runs that may wait.
            launcher: launcher by name.
            clock: unix time in seconds, for records.
            timer: seconds that never jump, for deadlines.
        """
        self.home = home
        self.max_running = max_running
        self.max_queued = max_queued
        self._launcher = launcher
        self._clock = clock
        self._timer = timer
        self._runs: dict[str, OwnedRun] = {}  # in order of submission
        self._untold: dict[str, OwnedRun] = {}  # over, but their files do not say so yet
        self._log = AuditLog(home)

    @property
    def num_live(self) -> int:
        """Runs that are not over."""
        return len(self._runs)

    @property
    def is_settled(self) -> bool:
        """Whether no run is alive and every file says so."""
        return not (self._runs or self._untold)

    @property
    def live_ids(self) -> tuple[str, ...]:
        """Ids of the runs that are not over, oldest first."""
        return tuple(self._runs)

    # -- submit, stop -----------------------------------------------------------------------------

    def check(self, plan: AnyPlan, config: TrainConfig, folder: Path | None = None) -> None:
        """Whether this machine can hold the run; may take a while, safe in another thread.

        Args:
            plan: what shall run.
            config: how.
            folder: where the run will write; None takes the home's `runs/`.

        Raises:
            Infeasible: cores, memory or disk do not suffice.
            InvalidInput: the runtime cannot train the plan, or the data is missing, broken, or of the wrong kind.
        """
        machine = this_machine()
        if self._runs:  # it will start when the others are over, so their memory does not count
            machine = Machine(machine.cores, int(psutil.virtual_memory().total))
        check_capacity(plan, machine)
        check_disk(disk_need(plan, config), folder or self.home)
        if isinstance(plan, ElasticPlan):
            spec_of(plan, config)
        else:
            check_runnable(plan)
        check_resume(plan, config)
        check_data(config.data, plan.problem.workload)

    def submit(
        self,
        plan: AnyPlan,
        config: TrainConfig,
        out: Path | None = None,
        *,
        parent: Path | None = None,
        caller: str = "",
    ) -> RunStatus:
        """Registers a run; it starts at the next tick that has room for it.

        Args:
            plan: what to run.
            config: how.
            out: the run's own folder, else a new one in `parent`.
            parent: None takes the home's `runs/`.
            caller: who asked, for the audit log.

        Raises:
            RunError: the queue is full.
            InvalidInput: `out` cannot be used.
        """
        self._refuse_when_full()
        run_id, directory = create_run_directory(plan, config, out, self.home, parent=parent)
        status = RunStatus(
            run=run_id,
            state="queued",
            message=self._why_it_waits(),
            created_unix_s=self._clock(),
            ranks=len(rank_labels(plan)),
            rehearsal=plan.problem.rehearsal_of is not None,
        )
        run = OwnedRun(directory, rank_labels(plan), status)
        self._runs[run_id] = run
        self._set(run)
        self._audit("submit", run, caller=caller, plan=plan.digest(), config=config.model_dump(mode="json"))
        self.tick()
        return run.status

    def stop(self, run_id: str, caller: str = "") -> RunStatus:
        """Asks a run to stop; within 5 s none of its processes is left. A run that is over stays as it is.

        Raises:
            InvalidInput: there is no such run.
        """
        run = self._runs.get(run_id)
        if run is None:
            return self.status(run_id)
        if run.status.state != "stopping":
            self._audit("stop", run, caller=caller)
        if run.status.state == "queued":
            self._end(run, "stopped", "stopped before it started")
        elif run.status.state != "stopping":
            grace = GRACE_S if run.status.state == "running" else GRACE_BEFORE_TRAINING_S
            run.terminate_at_s = self._timer() + grace
            run.kill_at_s = run.terminate_at_s + TERMINATE_S
            try:
                run.directory.stop_file.touch()
            except OSError:  # a full disk: a signal says the same
                run.terminate_at_s = self._timer()
            self._set(run, state="stopping", message="stopping after the current step")
        return run.status

    def ask_peer(self, run_id: str, peer: str, act: PeerAct, caller: str = "") -> RunStatus:
        """Has a peer of a running rehearsal leave between two steps, or kills it.

        Raises:
            InvalidInput: the run is over, does not run yet, or has no peers; the peer is not there or was asked.
            RunError: the request cannot be written.
        """
        run = self._runs.get(run_id)
        if run is None or run.status.state not in ("starting", "running"):
            state = (run.status if run is not None else self.status(run_id)).state
            raise InvalidInput(f"run {run_id}: is {state}; only peers of a running rehearsal can leave or be killed")
        self._check_peer(run, peer, act)
        try:
            ask(run.directory.path, Asked(peer, act, run.status.restarts))
        except OSError as error:
            raise RunError(f"run {run_id}: the request cannot be written: {error.strerror}") from None
        self._audit(act, run, caller=caller, peer=peer)
        return run.status

    def _check_peer(self, run: OwnedRun, peer: str, act: PeerAct) -> None:
        plan = load_any_plan(run.directory.plan_file)
        if not isinstance(plan, ElasticPlan):
            raise InvalidInput(f"run {run.status.run}: its plan is static: it has ranks and no peers")
        if peer not in plan.stage_of_peer:
            known = ", ".join(plan.peers[:MAX_NAMED]) + (", …" if len(plan.peers) > MAX_NAMED else "")
            raise InvalidInput(f"peer: must be one of the run's {len(plan.peers)} ({known}), got {peer!r:.80}")
        before = {a.act for a in asked_so_far(run.directory.path, run.status.restarts) if a.peer == peer}
        if before and (act == "drain" or "kill" in before):
            words = "killed" if "kill" in before else "asked to leave"
            raise InvalidInput(f"peer {peer}: has been {words} already; its run's events tell when it is gone")
        run.history = run.history or SwarmHistory(run.directory.path)
        if peer not in run.history.read_all().now:
            raise InvalidInput(f"peer {peer}: is not in the swarm now: it has gone, or has not come yet")

    def status(self, run_id: str) -> RunStatus:
        """The status of any run of this home. Raises InvalidInput."""
        owned = self._runs.get(run_id) or self._untold.get(run_id)
        return owned.status if owned else read_status(find_run(run_id, self.home)[1].status_file)

    def _refuse_when_full(self) -> None:
        waiting = [i for i, run in self._runs.items() if run.status.state == "queued"]
        if len(self._runs) >= self.max_running and len(waiting) >= self.max_queued:
            raise RunError(
                f"the queue is full: {len(self._runs) - len(waiting)} run(s) alive, {len(waiting)} waiting (at most"
                f" {self.max_queued}); wait, or stop one with `hetplanner runs stop {waiting[-1] if waiting else ''}`"
            )

    def _why_it_waits(self) -> str:
        alive = [i for i, run in self._runs.items() if run.status.state != "queued"]
        return f"waits for {', '.join(alive)}" if alive else ""

    # -- watch ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Looks at every run once: starts what may start, follows what runs, ends what is over."""
        self._catch_up()
        for run in list(self._runs.values()):
            if run.status.state == "queued":
                alive = sum(r.status.state != "queued" for r in self._runs.values())
                if alive < self.max_running:
                    self._start(run)
                else:
                    self._set(run, message=self._why_it_waits())
            else:
                self._watch(run)

    def _start(self, run: OwnedRun) -> None:
        try:
            plan = load_any_plan(run.directory.plan_file)
            config = load_config(run.directory.config_file)
            check_capacity(plan)
            request = self._launcher("local").request(plan, run.directory.path, config)
            run.conditions = Conditions(run.directory.path, plan, config, len(run.labels), self._timer)
            self._spawn(run, request)
        except (HetplannerError, OSError) as error:
            self._end(run, "failed", str(error))

    def _spawn(self, run: OwnedRun, request: LaunchRequest) -> None:
        (command,) = request.commands
        self._audit("launch", run, launcher=request.launcher, argv=command.argv, env=dict(command.env))
        warnings = "".join(f"# warning: {warning}\n" for warning in request.warnings)
        run.directory.launcher_log.write_text(f"{warnings}$ {command.script()}\n", encoding="utf-8")
        env = dict(command.env) | ({ATTEMPT_VARIABLE: str(run.status.restarts)} if run.status.restarts else {})
        run.process = start_in_session(command.argv, env, run.directory.path, run.directory.launcher_log)
        self._set(
            run,
            state="starting",
            message="starting" if not run.status.restarts else run.status.message,
            started_unix_s=run.status.started_unix_s or self._clock(),
            pid=run.process.pid,
            pid_created_unix_s=created_unix_s(run.process.pid) or self._clock(),
        )

    def _catch_up(self) -> None:
        """Writes what a full disk did not take."""
        self._log.retry()
        for run in (*self._runs.values(), *self._untold.values()):
            run.file.retry()
        self._untold = {run_id: run for run_id, run in self._untold.items() if run.file.unwritten is not None}

    def _watch(self, run: OwnedRun) -> None:
        if run.conditions is not None and run.status.state in ("starting", "running"):
            self._set(run, degraded=run.conditions.look())
        if run.status.state == "starting":
            self._follow_start(run)
        if run.status.state == "stopping":
            self._press(run)
        exit_code = run.process.poll() if run.process else None
        gone = not is_same_process(run.status.pid, run.status.pid_created_unix_s)
        if exit_code is not None or (run.process is None and gone):
            self._finish(run, exit_code)

    def _follow_start(self, run: OwnedRun) -> None:
        if not run.telemetry:
            files = [run.directory.telemetry_file(rank) for rank in range(len(run.labels))]
            run.telemetry = [RankTelemetry(rank, path) for rank, path in enumerate(files)]
        for telemetry in run.telemetry:
            telemetry.poll(_PHASE_BYTES)
        phases = [t.phase if t.attempt == run.status.restarts else None for t in run.telemetry]
        reached = min((PHASES.index(p) if p else -1 for p in phases), default=-1)
        if reached >= PHASES.index("training"):
            self._set(run, state="running", message=_training_words(run))
            run.telemetry = []
        elif reached >= 0 and not run.status.restarts:
            self._set(run, message=PHASES[reached])

    def _press(self, run: OwnedRun) -> None:
        """The rough part of a stop: SIGTERM after the grace, then SIGKILL until nothing is left."""
        now = self._timer()
        if run.kill_at_s is not None and now >= run.kill_at_s:
            send_signal(self._processes(run), signal.SIGKILL)
        elif run.terminate_at_s is not None and now >= run.terminate_at_s:
            run.terminate_at_s = None
            send_signal(self._processes(run), signal.SIGTERM)

    def _processes(self, run: OwnedRun) -> list[psutil.Process]:
        own = is_same_process(run.status.pid, run.status.pid_created_unix_s)
        return processes_of_run(run.directory.path, run.status.pid if own else None)

    # -- end --------------------------------------------------------------------------------------

    def _finish(self, run: OwnedRun, exit_code: int | None) -> None:
        """The launcher is gone: no process of the run may stay, then its end is judged."""
        left = self._processes(run)
        if left:
            logger.info("%s: ending %d processes that outlived the launcher", run.status.run, len(left))
            send_signal(left, signal.SIGKILL)
            return  # judged at a later tick, when they are gone
        if exit_code is None and self._all_ranks_done(run):
            exit_code = 0
        stopped = run.status.state == "stopping" or run.directory.stop_file.exists()
        if stopped:
            saved = run.directory.model_file.exists()
            self._end(run, "stopped", "stopped" if saved else "stopped before a model was saved")
        elif exit_code == 0:
            self._end(run, "finished", "finished")
        else:
            found = diagnose(run.directory, run.labels, exit_code)
            if not found.would_repeat and self._restart(run, found.message):
                return
            self._end(run, "failed", found.message, failed_rank=found.failed_rank, last_lines=found.last_lines)

    def _restart(self, run: OwnedRun, why: str) -> bool:
        """Starts a run once more, to go on from its last checkpoint, if its settings allow it."""
        try:
            if run.status.restarts >= load_config(run.directory.config_file).max_restarts:
                return False
            remove_leftovers(run.directory, is_over=False)
            with contextlib.suppress(FileNotFoundError):
                run.directory.launcher_log.replace(run.directory.path / f"launcher-{run.status.restarts}.txt")
        except (HetplannerError, OSError) as error:
            logger.warning("%s: cannot be started again: %s", run.status.run, error)
            return False
        restarts = run.status.restarts + 1
        self._audit("restart", run, restarts=restarts, why=why)
        self._set(run, state="starting", restarts=restarts, message=f"restarting, since {why}"[:2000])
        run.telemetry = []
        self._start(run)
        return True

    def _all_ranks_done(self, run: OwnedRun) -> bool:
        for rank in range(len(run.labels)):
            telemetry = RankTelemetry(rank, run.directory.telemetry_file(rank))
            while telemetry.poll(_PHASE_BYTES):
                pass
            if telemetry.phase != "done":
                return False
        return True

    def _end(self, run: OwnedRun, state: str, message: str, **changes: Any) -> None:
        if state == "failed":
            message = with_full_disk(message, run.directory.path)
        remove_leftovers(run.directory, is_over=not changes.get("restart_due", False))
        self._set(run, state=state, message=message, ended_unix_s=self._clock(), degraded=(), **changes)
        self._audit("end", run, state=state, message=message)
        self._runs.pop(run.status.run, None)
        if run.file.unwritten is not None:
            self._untold[run.status.run] = run

    # -- restart of the agent ---------------------------------------------------------------------

    def adopt(self) -> None:
        """Takes over the runs of an earlier agent: waiting ones queue, living ones are watched, lost ones fail."""
        for run_id in list_run_ids(self.home):
            try:
                directory = find_run(run_id, self.home)[1]
                status = read_status(directory.status_file)
                if status.is_over:
                    continue
                labels = rank_labels(load_any_plan(directory.plan_file))
            except InvalidInput as error:
                logger.warning("cannot adopt: %s", error)
                continue
            run = OwnedRun(directory, labels, status)
            self._runs[run_id] = run
            self._audit("adopt", run, state=status.state)
            if status.state == "stopping":  # its grace is over
                run.terminate_at_s = run.kill_at_s = self._timer()
        self.tick()

    # -- files ------------------------------------------------------------------------------------

    def _set(self, run: OwnedRun, **changes: Any) -> None:
        status = run.status.replace(**changes) if changes else run.status
        if status == run.status and changes:
            return
        run.status = status
        run.file.write(status)

    def _audit(self, event: str, run: OwnedRun, **details: Any) -> None:
        record = {"time_s": self._clock(), "event": event, "run": run.status.run, "uid": os.getuid()}
        self._log.write(record | {"directory": str(run.directory.path), **details})


def _training_words(run: OwnedRun) -> str:
    """'training', and where it went on."""
    step = next((t.resumed_step for t in run.telemetry if t.resumed_step is not None), None)
    if run.status.restarts:
        times = "" if run.status.restarts == 1 else f" ({run.status.restarts} times)"
        return f"training, restarted from step {step or 0}{times}"
    return "training" if step is None else f"training, resumed from step {step}"
