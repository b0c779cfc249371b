"""Owns the processes of runs and keeps every status.json true: queue, start, watch, stop, adopt.

Everything happens in `submit`, `stop` and `tick`, called from one thread; nothing here waits. State machine:

    queued -> starting -> running -> finished | preempted | failed
       \\          \\          \\-> stopping -> stopped

A run that was preempted or has failed is started again while its settings allow it, unless the same would happen again.
"""

import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from hetplanner.data.registry import check_all_data, open_stream
from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.hosts.asking import check_hosts
from hetplanner.hosts.slurm_job import check_job
from hetplanner.launchers.capacity import Machine, check_capacity, this_machine
from hetplanner.launchers.disk import check_disk, disk_need, need_of_head
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.launchers.interface import ATTEMPT_VARIABLE, Launcher, LaunchRequest
from hetplanner.launchers.launch_file import Launch, load_launch
from hetplanner.launchers.registry import make_launcher
from hetplanner.liveness.heartbeat import HEARTBEAT_VARIABLE, new_heartbeats
from hetplanner.liveness.processes import send_signal, start_in_session
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan, rank_labels
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.train import TrainConfig, check_runnable
from hetplanner.runs.agent.audit import AuditLog
from hetplanner.runs.agent.leftovers import remove_leftovers
from hetplanner.runs.agent.memory_events import new_oom_kills, oom_kills
from hetplanner.runs.agent.owned import OwnedRun, launched
from hetplanner.runs.agent.peer_requests import check_peer
from hetplanner.runs.agent.protocol import package_version
from hetplanner.runs.agent.successor import check_replan, successor_of
from hetplanner.runs.directory import create_run_directory, find_run, list_run_ids
from hetplanner.runs.reports.conditions import Conditions, with_full_disk
from hetplanner.runs.reports.outcome import Departure, End, judge_end
from hetplanner.runs.resuming import check_copy_to, check_init_from, check_resume, was_on_hosts
from hetplanner.runs.status import RunStatus, read_status
from hetplanner.storage.sending import CheckpointCopies, check_store
from hetplanner.swarm.launch.requests import PeerAct, PeerOrder, ask
from hetplanner.swarm.spec import spec_of

logger = logging.getLogger(__name__)

MAX_RUNNING = 1
"""Runs at a time. Rehearsals share this machine's cores and their timing is what they are run for, so two at
once would spoil both; further ones queue."""
MAX_QUEUED = 8

# Stop: the ranks get GRACE_S to end their step and save the model, then a second's warning, then SIGKILL.
# 3.3 + 0.6 s leave a second of the promised 5 for the sweep.
GRACE_S = 3.3
GRACE_BEFORE_TRAINING_S = 0.3
TERMINATE_S = 0.6
GRACE_OF_HEAD_S, TERMINATE_HEAD_S = 4.2, 0.4
"""Of a run over hosts: each host's node process keeps the times above by itself, and its head waits for all."""
PREEMPTION_S = 25.0
"""Once the agent was told to end, its runs have so long to save what they hold."""
ALONE_S = 6.0
"""Ranks whose launcher was killed end their step, save and exit; after so long they are killed."""
RETRY_S = 1.0


class Supervisor:
    """All runs of one user on this machine."""

    def __init__(
        self,
        home: Path,
        max_running: int = MAX_RUNNING,
        max_queued: int = MAX_QUEUED,
        launcher: Callable[..., Launcher] = make_launcher,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """An owner of no runs yet; `adopt` takes over those of an earlier one.

        Args:
            home: directory with `runs/` and `agent/`.
            max_running: runs alive at the same time.
            max_queued: runs that may wait.
            launcher: launcher by name, and by the hosts it reaches.
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
        self._told_to_end = False

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

    def check(
        self, plan: AnyPlan, config: TrainConfig, folder: Path | None = None, launch: Launch | None = None
    ) -> None:
        """Whether this machine, or the hosts, can hold the run; may take a while, safe in another thread.

        Args:
            plan: what shall run.
            config: how.
            folder: where the run will write; None takes the home's `runs/`.
            launch: where it shall run; None: on this machine.

        Raises:
            Infeasible: cores, memory or disk do not suffice.
            InvalidInput: the runtime cannot train the plan, the data is missing, broken, or of the wrong kind, or hosts
                cannot run it: everything that is wrong with them.
        """
        check_replan(plan, config, launch)
        is_here = launch is None or launch.is_local
        check_copy_to(plan, config, is_here=is_here)
        check_init_from(plan, config, is_here=is_here)
        if launch is not None and not launch.is_local:
            check_disk(need_of_head(disk_need(plan, config)), folder or self.home)
            check_resume(plan, config)
            hosts = launch.hosts or Hosts()
            if launch.launcher == "slurm":
                check_job(plan, config, hosts)  # what the nodes are, the head asks them when the job has begun
            else:
                check_hosts(plan, config, hosts, package_version())
            return
        if was_on_hosts(config):
            raise InvalidInput(
                f"resume: {config.resume} ran over hosts, and its checkpoints are there; go on with --launcher ssh"
            )
        machine = this_machine()
        if self._runs:  # it will start when the others are over, so their memory does not count
            machine = Machine(machine.cores, int(psutil.virtual_memory().total))
        check_capacity(plan, machine, config)
        check_disk(disk_need(plan, config), folder or self.home)
        if isinstance(plan, ElasticPlan):
            spec_of(plan, config)
            open_stream(config.data, plan.problem.workload)
        else:
            check_runnable(plan)
        check_resume(plan, config)
        check_all_data(config.data, config.eval_data, plan.problem.workload)
        if config.copy_to is not None:
            check_store(config.copy_to)

    def submit(
        self,
        plan: AnyPlan,
        config: TrainConfig,
        out: Path | None = None,
        *,
        parent: Path | None = None,
        caller: str = "",
        launch: Launch | None = None,
    ) -> RunStatus:
        """Registers a run; it starts at the next tick that has room for it.

        Args:
            plan: what to run.
            config: how.
            out: the run's own folder, else a new one in `parent`.
            parent: None takes the home's `runs/`.
            caller: who asked, for the audit log.
            launch: where it runs; None: on this machine.

        Raises:
            RunError: the queue is full.
            InvalidInput: `out` cannot be used.
        """
        self._refuse_when_full()
        run = self._register(plan, config, out, parent, caller, launch)
        self.tick()
        return run.status

    def _register(
        self,
        plan: AnyPlan,
        config: TrainConfig,
        out: Path | None,
        parent: Path | None,
        caller: str,
        launch: Launch | None,
    ) -> OwnedRun:
        """A new run, the last of the queue. Raises InvalidInput."""
        run_id, directory = create_run_directory(plan, config, out, self.home, parent=parent, launch=launch)
        status = RunStatus(
            run=run_id,
            state="queued",
            message=self._why_it_waits(),
            created_unix_s=self._clock(),
            ranks=len(rank_labels(plan)),
            rehearsal=plan.problem.rehearsal_of is not None,
        )
        run = OwnedRun.of(directory, plan, status)
        self._runs[run_id] = run
        self._set(run)
        self._audit("submit", run, caller=caller, plan=plan.digest(), config=config.model_dump(mode="json"))
        return run

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
        if run.status.state == "queued" or run.is_due:
            self._end(run, End("stopped", "stopped before it started" if not run.status.restarts else "stopped"))
        elif run.status.state != "stopping":
            grace = GRACE_S if run.status.state == "running" else GRACE_BEFORE_TRAINING_S
            run.terminate_at_s = self._timer() + (GRACE_OF_HEAD_S if run.remote else grace)
            run.kill_at_s = run.terminate_at_s + (TERMINATE_HEAD_S if run.remote else TERMINATE_S)
            try:
                run.directory.stop_file.touch()
            except OSError:  # a full disk: a signal says the same
                run.terminate_at_s = self._timer()
            self._set(run, state="stopping", message="stopping after the current step")
        return run.status

    def ask_peer(self, run_id: str, peer: str, act: PeerAct, caller: str = "") -> RunStatus:
        """Has a peer of a running swarm leave between two steps, kills it, or has one that has gone come back.

        Raises:
            InvalidInput: the run is over, does not run yet, or has no peers; the peer is not there or was asked.
            RunError: the request cannot be written.
        """
        run = self._runs.get(run_id)
        if run is None or run.status.state not in ("starting", "running"):
            state = (run.status if run is not None else self.status(run_id)).state
            raise InvalidInput(
                f"run {run_id}: is {state}; only peers of a running swarm can leave, be killed or come back"
            )
        check_peer(run, peer, act)
        try:
            ask(run.directory.path, PeerOrder(peer, act, run.status.restarts))
        except OSError as error:
            raise RunError(f"run {run_id}: the request cannot be written: {error.strerror}") from None
        self._audit(act, run, caller=caller, peer=peer)
        return run.status

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
            if run.is_due:
                if not self._told_to_end and self._timer() >= run.retry_at_s:
                    self._start(run)
            elif run.status.state == "queued":
                alive = sum(r.status.state != "queued" for r in self._runs.values())
                if alive < self.max_running and not self._told_to_end:
                    self._start(run)
                else:
                    self._set(run, message=self._why_it_waits())
            else:
                self._watch(run)

    def _start(self, run: OwnedRun) -> None:
        left = run.processes()
        if left:  # of a launch that an earlier agent had no time to write down
            send_signal(left, signal.SIGKILL)
            return
        try:
            plan = load_any_plan(run.directory.plan_file)
            config = load_config(run.directory.config_file)
            launch = load_launch(run.directory.path)
            if launch.is_local:
                check_capacity(plan, config=config)
            request = self._launcher_of(launch).request(plan, run.directory.path, config)
            path, count = run.directory.path, len(run.labels)
            run.conditions = Conditions(path, plan, config, count, self._timer, remote=run.remote)
            self._copy_checkpoints(run, config)
            self._spawn(run, request)
        except (HetplannerError, OSError) as error:
            if run.is_due and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                run.retry_at_s = self._timer() + RETRY_S
                logger.warning("%s: cannot be started again yet: %s", run.status.run, error)
                return
            self._end(run, End("failed", str(error)))

    def _launcher_of(self, launch: Launch) -> Launcher:
        return self._launcher(launch.launcher, *([launch.hosts] if launch.hosts is not None else []))

    def _spawn(self, run: OwnedRun, request: LaunchRequest) -> None:
        command = request.command_here()
        self._audit("launch", run, launcher=request.launcher, argv=command.argv, env=dict(command.env))
        warnings = "".join(f"# warning: {warning}\n" for warning in request.warnings)
        run.directory.launcher_log.write_text(f"{warnings}$ {command.script()}\n", encoding="utf-8")
        if not run.is_watched_by_launcher:
            self._set(run, heartbeats=run.status.heartbeats or new_heartbeats(run.directory.path))
            run.clear_heartbeats()
        env = dict(command.env) | ({ATTEMPT_VARIABLE: str(run.status.restarts)} if run.status.restarts else {})
        env |= {HEARTBEAT_VARIABLE: run.status.heartbeats} if run.status.heartbeats is not None else {}
        run.oom_kills = oom_kills()
        run.process = start_in_session(command.argv, env, run.directory.path, run.directory.launcher_log)
        run.status = launched(run.status, run.process, self._clock())
        self._set(run)

    def _copy_checkpoints(self, run: OwnedRun, config: TrainConfig) -> None:
        if config.copy_to is not None and not run.remote and run.copies is None:
            run.copies = CheckpointCopies(config, run.directory.path, lambda told: self._tell_copy(run, told))

    def _tell_copy(self, run: OwnedRun, told: dict[str, Any]) -> None:
        self._audit("copy failed" if "error" in told else "copy", run, **told)

    def _catch_up(self) -> None:
        """Writes what a full disk did not take."""
        self._log.retry()
        for run in (*self._runs.values(), *self._untold.values()):
            run.file.retry()
        self._untold = {run_id: run for run_id, run in self._untold.items() if run.file.unwritten is not None}

    def _watch(self, run: OwnedRun) -> None:
        if run.conditions is not None and run.status.state in ("starting", "running"):
            run.conditions.others = run.warnings()
            self._set(run, degraded=run.conditions.look())
        if run.status.state == "starting":
            self._set(run, **run.follow_start())
        if run.copies is not None:
            run.copies.look(run.newest_checkpoint())
        now_s = self._timer()
        if run.kill_at_s is not None and now_s >= run.kill_at_s:
            send_signal(run.processes(), signal.SIGKILL)
        elif run.terminate_at_s is not None and now_s >= run.terminate_at_s:
            run.terminate_at_s = None
            send_signal(run.processes(), signal.SIGTERM)
        exit_code = run.process.poll() if run.process else None
        if exit_code is not None or (run.process is None and not run.launcher_lives()):
            self._finish(run, exit_code)
        elif run.status.state != "stopping" and run.lost is None:
            self._look_for_lost(run)

    def _look_for_lost(self, run: OwnedRun) -> None:
        """A rank that has fallen silent is given up, and with it this attempt."""
        watch = run.watched()
        if watch is None or run.status.pid is None:
            return
        run.lost = watch.find_lost(run.status.restarts, run.status.pid)
        if run.lost is not None:
            logger.warning("%s: %s", run.status.run, run.lost.message)
            self._set(run, message=run.lost.message[:2000])
            send_signal(run.processes(), signal.SIGKILL)

    # -- end --------------------------------------------------------------------------------------

    def _finish(self, run: OwnedRun, exit_code: int | None) -> None:
        """The launcher is gone: no process of the run may stay, then its end is judged."""
        left = run.processes()
        if left:
            if self._may_save(run):
                return
            logger.info("%s: ending %d processes that outlived the launcher", run.status.run, len(left))
            send_signal(left, signal.SIGKILL)
            return  # judged at a later tick, when they are gone
        if run.copies is not None and not self._has_copied(run, run.copies):
            return
        departure = Departure(
            exit_code=exit_code,
            launcher_pid=run.status.pid,
            beats=run.beats(),
            stop_asked=run.status.state == "stopping" or run.directory.stop_file.exists(),
            agent_told=run.agent_told,
            lost=run.lost,
            oom="" if run.remote else new_oom_kills(run.oom_kills, oom_kills()),
        )
        try:
            config = load_config(run.directory.config_file)
        except HetplannerError as error:
            self._end(run, End("failed", str(error)))
            return
        end = judge_end(run.directory, run.labels, config.steps, departure, elastic=run.elastic)
        if self._goes_on_as_another(run, config, end):
            return
        if not end.may_go_on or run.status.restarts >= config.max_restarts:
            self._end(run, end)
        elif self._told_to_end:
            self._end(run, end, restart_due=True)
        else:
            self._restart(run, end.message)

    def _has_copied(self, run: OwnedRun, copies: CheckpointCopies) -> bool:
        """Whether the last checkpoint is sent; a run that was stopped, or whose agent is to end, waits for none."""
        if run.status.state == "stopping" or self._told_to_end:
            copies.stop()
            return True
        return copies.look(run.newest_checkpoint())

    def _goes_on_as_another(self, run: OwnedRun, config: TrainConfig, end: End) -> bool:
        """Where hosts have left or returned, has a run under another plan begun in this one's place."""
        if end.state in ("finished", "stopped") or self._told_to_end:
            return False
        try:
            found = successor_of(run.directory.path, config, run.status.restarts)
            if found is None:
                return False
            plan, settings, launch = found
            parent = run.directory.path.parent
            other = self._register(plan, settings, None, parent, "agent", launch)
        except HetplannerError as error:
            self._end(run, End("failed", f"{end.message}; no other run continues it: {error}"))
            return True
        name = other.status.run
        without = f" without {', '.join(launch.away)}" if launch.away else " with all hosts"
        self._set(run, successor=name)
        self._end(run, End("preempted", f"{end.message}; goes on{without} as run {name}"))
        self._start(other)  # before others that wait
        return True

    def _may_save(self, run: OwnedRun) -> bool:
        """Whether ranks that have lost their launcher are given time: they end their step and save."""
        if run.status.state == "stopping" or run.lost is not None:
            return False
        if not any(beat.pid and beat.exit_code is None and beat.steps for beat in run.beats()):
            return False
        run.alone_since_s = run.alone_since_s or self._timer()
        return self._timer() - run.alone_since_s < ALONE_S

    def _restart(self, run: OwnedRun, why: str) -> None:
        """Has a run started once more, to go on from its last checkpoint."""
        try:
            run.clear_remains(run.status.restarts)
        except OSError as error:
            logger.warning("%s: the files of the last attempt cannot be removed: %s", run.status.run, error)
        restarts = run.status.restarts + 1
        self._audit("restart", run, restarts=restarts, why=why)
        changes = {"restarts": restarts, "pid": None, "pid_created_unix_s": None, "restart_due": False}
        self._set(run, state="starting", message=f"restarting, since {why}"[:2000], ended_unix_s=None, **changes)
        self._start(run)

    def _end(self, run: OwnedRun, end: End, *, restart_due: bool = False) -> None:
        words = f"{end.message}; the next agent starts it again" if restart_due else end.message
        if end.state == "failed":
            words = with_full_disk(words, run.directory.path)
        remove_leftovers(run.directory, is_over=not restart_due)
        if not restart_due:
            run.remove_heartbeats()
        changes = {"failed_rank": end.failed_rank, "last_lines": end.last_lines, "restart_due": restart_due}
        self._set(run, state=end.state, message=words[:4000], ended_unix_s=self._clock(), degraded=(), **changes)
        self._audit("end", run, state=end.state, message=words)
        self._runs.pop(run.status.run, None)
        if run.file.unwritten is not None:
            self._untold[run.status.run] = run

    # -- end and restart of the agent -------------------------------------------------------------

    def preempt(self) -> None:
        """The agent was told to end: every run that has processes saves what it can and ends; the next agent goes on.

        It takes some ticks until `has_processes` is false.
        """
        if self._told_to_end:
            return
        self._told_to_end = True
        for run in self._runs.values():
            if run.status.pid is not None and run.status.state in ("starting", "running"):
                run.agent_told = True
                run.kill_at_s = self._timer() + PREEMPTION_S
                run.tell_to_end()

    @property
    def has_processes(self) -> bool:
        """Whether a run is alive that has any."""
        return any(run.status.state != "queued" and not run.is_due for run in self._runs.values())

    def adopt(self) -> None:
        """Takes over the runs of an earlier agent: waiting ones queue, living ones are watched, others start again."""
        for run_id in list_run_ids(self.home):
            try:
                directory = find_run(run_id, self.home)[1]
                status = read_status(directory.status_file)
                if status.is_over or status.run != run_id:  # a folder of an earlier run that another one writes in now
                    continue
                run = OwnedRun.of(directory, load_any_plan(directory.plan_file), status)
            except InvalidInput as error:
                logger.warning("cannot adopt: %s", error)
                continue
            self._runs[run_id] = run
            self._audit("adopt", run, state=status.state)
            self._copy_checkpoints(run, load_config(directory.config_file))
            if status.state == "stopping":  # its grace is over
                run.terminate_at_s = run.kill_at_s = self._timer()
            elif status.restart_due:
                self._restart(run, status.message)
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
