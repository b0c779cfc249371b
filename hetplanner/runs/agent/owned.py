"""A run in the hands of the agent: its processes, how far they have come, what is put away before they start again."""

import contextlib
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hetplanner.launchers.launch_file import load_launch
from hetplanner.liveness.heartbeat import Beat, create_heartbeats, remove_heartbeats
from hetplanner.liveness.processes import created_unix_s, is_same_process, processes_of_run, send_signal
from hetplanner.liveness.ranks import LivenessWatch, Lost
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import FOLDER, checkpoint_steps
from hetplanner.plan.files.plan_files import AnyPlan, process_labels
from hetplanner.plan.files.stage_checkpoints import saved_steps
from hetplanner.runs.agent.leftovers import remove_leftovers
from hetplanner.runs.agent.status_file import StatusFile
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.host_states import read_host_warnings
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runs.reading.telemetry import PHASES, RankTelemetry
from hetplanner.runs.reports.conditions import Conditions
from hetplanner.runs.status import RunStatus
from hetplanner.storage.sending import CheckpointCopies

_PHASE_BYTES = 2**20


@dataclass
class OwnedRun:
    """A run that is not over.

    Attributes:
        labels: device of every process.
        names: device and host of every rank, for messages.
        elastic: its launcher starts a swarm.
        num_stages: of a swarm.
        remote: its ranks are on other machines, where its launcher looks at them.
        process: the launcher, when this agent started it; None for an adopted one.
        telemetry: ranks' files, read until all of them train.
        terminate_at_s, kill_at_s: when a stop gets rougher.
        history: of a swarm, once something was asked of its peers.
        watch: over its ranks' heartbeats.
        lost: a rank that was given up; the run's processes are being ended.
        agent_told: it was told to end because the agent was.
        alone_since_s: since when its ranks are without a launcher.
        retry_at_s: when a start that the disk did not allow is tried again.
        oom_kills: the kernel's counters when it was started.
        conditions: what it goes on without; once it was started.
        copies: sends its checkpoints to an address, where its own network reaches none.
        file: keeps status.json true.
    """

    directory: RunDirectory
    labels: tuple[str, ...]
    names: tuple[str, ...]
    elastic: bool
    status: RunStatus
    remote: bool = False
    num_stages: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    telemetry: list[RankTelemetry] = field(default_factory=list)
    terminate_at_s: float | None = None
    kill_at_s: float | None = None
    history: SwarmHistory | None = None
    watch: LivenessWatch | None = None
    lost: Lost | None = None
    agent_told: bool = False
    alone_since_s: float | None = None
    retry_at_s: float = 0.0
    oom_kills: dict[str, int] = field(default_factory=dict)
    conditions: Conditions | None = None
    copies: CheckpointCopies | None = None

    def __post_init__(self) -> None:
        self.file = StatusFile(self.directory.status_file)

    @classmethod
    def of(cls, directory: RunDirectory, plan: AnyPlan, status: RunStatus) -> "OwnedRun":
        """A run of a plan."""
        labels, remote = process_labels(plan), not load_launch(directory.path).is_local
        if isinstance(plan, ElasticPlan):
            return cls(directory, labels, labels, True, status, remote, num_stages=len(plan.stages))
        cluster = plan.problem.cluster
        hosts = [cluster.devices[cluster.device_index(device)].host for device in labels]
        names = tuple(f"{device}, host {host}" for device, host in zip(labels, hosts, strict=True))
        return cls(directory, names if remote else labels, names, False, status, remote)

    @property
    def is_due(self) -> bool:
        """Whether it is started again as soon as that is possible."""
        return self.status.state == "starting" and self.status.pid is None

    @property
    def is_watched_by_launcher(self) -> bool:
        """Whether its launcher looks at all other processes, and is itself looked at here."""
        return self.elastic or self.remote

    def newest_checkpoint(self) -> int:
        """Step of the newest checkpoint in its folder; -1 if there is none."""
        folder = self.directory.path
        steps = saved_steps(folder / FOLDER, self.num_stages) if self.elastic else checkpoint_steps(folder)
        return next(iter(steps), -1)

    # -- processes --------------------------------------------------------------------------------

    def launcher_lives(self) -> bool:
        """Whether its launcher is there."""
        return is_same_process(self.status.pid, self.status.pid_created_unix_s)

    def processes(self) -> list[psutil.Process]:
        """All that are alive."""
        return processes_of_run(self.directory.path, self.status.pid if self.launcher_lives() else None)

    def tell_to_end(self) -> None:
        """Sends SIGTERM to those who can save something: the ranks, or a launcher that passes it on."""
        found = self.processes()
        launcher = [p for p in found if p.pid == self.status.pid]
        ranks = [p for p in found if p.pid != self.status.pid]
        send_signal(launcher if self.is_watched_by_launcher or not ranks else ranks, signal.SIGTERM)

    # -- heartbeats -------------------------------------------------------------------------------

    def clear_heartbeats(self) -> None:
        """Makes the file of heartbeats, or clears it for another attempt. Raises OSError."""
        path = Path(str(self.status.heartbeats))
        create_heartbeats(path, len(self.labels))
        self.watch = LivenessWatch(path, self.names)

    def beats(self) -> list[Beat]:
        """What the ranks of this attempt told last; empty where that cannot be read."""
        watch = self.watched()
        return watch.beats(self.status.restarts) if watch is not None else []

    def watched(self) -> LivenessWatch | None:
        """The watch over its heartbeats, also of an adopted run; None where there are none."""
        if self.watch is None and self.is_watched_by_launcher:
            self.watch = LivenessWatch(self.directory.path, ())
        elif self.watch is None and self.status.heartbeats is not None:
            self.watch = LivenessWatch(Path(self.status.heartbeats), self.names)
        return self.watch

    def remove_heartbeats(self) -> None:
        """When the run is over."""
        if self.status.heartbeats is not None:
            remove_heartbeats(Path(self.status.heartbeats))

    # -- what it goes on without ------------------------------------------------------------------

    def warnings(self) -> tuple[str, ...]:
        """Sentences about its ranks and hosts."""
        found = self.watch.warnings() if self.watch is not None else ()
        return (*found, *read_host_warnings(self.directory.path)) if self.remote else found

    # -- how far it has come ----------------------------------------------------------------------

    def follow_start(self) -> dict[str, str]:
        """What changes in its status while its ranks begin."""
        if not self.telemetry:
            files = [self.directory.telemetry_file(rank) for rank in range(len(self.labels))]
            self.telemetry = [RankTelemetry(rank, path) for rank, path in enumerate(files)]
        for telemetry in self.telemetry:
            telemetry.poll(_PHASE_BYTES)
        # A swarm counts its coordinators, of which one start may have several.
        is_new = [t.attempt >= self.status.restarts for t in self.telemetry]
        phases = [t.phase if new else None for t, new in zip(self.telemetry, is_new, strict=True)]
        reached = min((PHASES.index(p) if p else -1 for p in phases), default=-1)
        if reached >= PHASES.index("training"):
            words = self._training_words()
            self.telemetry = []
            return {"state": "running", "message": words}
        if reached >= 0 and not self.status.restarts:
            return {"message": PHASES[reached]}
        return {}

    def _training_words(self) -> str:
        """'training', and where it went on."""
        step = next((t.resumed_step for t in self.telemetry if t.resumed_step is not None), None)
        if self.status.restarts:
            times = "" if self.status.restarts == 1 else f" ({self.status.restarts} times)"
            return f"training, restarted from step {step or 0}{times}"
        return "training" if step is None else f"training, resumed from step {step}"

    def clear_remains(self, attempt: int) -> None:
        """Puts away what an attempt left and a new one would take for its own. Raises OSError."""
        remove_leftovers(self.directory, is_over=False)
        with contextlib.suppress(FileNotFoundError):
            self.directory.launcher_log.replace(self.directory.path / f"launcher-{attempt}.txt")
        self.telemetry, self.process, self.lost, self.alone_since_s = [], None, None, None
        self.terminate_at_s = self.kill_at_s = None


def launched(status: RunStatus, process: "subprocess.Popen[bytes]", now_unix_s: float) -> RunStatus:
    """The status of a run whose launcher has just begun."""
    return status.replace(
        state="starting",
        message="starting" if not status.restarts else status.message,
        started_unix_s=status.started_unix_s or now_unix_s,
        pid=process.pid,
        pid_created_unix_s=created_unix_s(process.pid) or now_unix_s,
    )
