"""Probes of clusters outside the server process: one at a time, seen by every session, its record in the home.

A probe is a fresh Python process (`python -m hetplanner.ui.jobs.probe_worker`). It ends by itself when the server is
gone; what was measured is in `HOME/probes`, and the next probe of the same hosts goes on from it.
"""

import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hetplanner.cluster.model import Cluster
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.hosts.probe.kept import kept_record
from hetplanner.hosts.probe.record import Record, load_record
from hetplanner.runs.home import probes_directory
from hetplanner.ui.jobs.child import Child
from hetplanner.ui.jobs.jobs import plain_data

_log = logging.getLogger(__name__)

STOP_GRACE_S = 3.0
MOST_WORDS = 2000

State = Literal["connecting", "measuring", "stopping", "done", "stopped", "failed"]
ENDED: frozenset[str] = frozenset({"done", "stopped", "failed"})


@dataclass(frozen=True)
class ProbeRequest:
    """A probe as a person asked for it.

    Attributes:
        cluster: whose hosts.
        hosts: name of a hosts file that the agent offers.
        only: what is measured, of `hosts.probe.kept.ONLY`.
        all_pairs: every pair of hosts.
        anew: what was measured before is not gone on from.
    """

    cluster: Cluster
    hosts: str
    only: str = "all"
    all_pairs: bool = False
    anew: bool = False

    def to_message(self, record: Path, home: Path | None) -> str:
        """The line that a worker reads."""
        data = {
            "cluster": plain_data(self.cluster),
            "hosts": self.hosts,
            "only": self.only,
            "all_pairs": self.all_pairs,
            "anew": self.anew,
            "record": str(record),
            "home": home and str(home),
        }
        return json.dumps(data, separators=(",", ":")) + "\n"


@dataclass(eq=False)
class ProbeJob:
    """A probe of this server process, and how far it is.

    Attributes:
        key: see `cluster_key`.
        message: why it failed.
        record: what was measured so far; None before the first round.
        done, total, words: of the rounds, and what the one that goes on measures.
        left_s: seconds until all are done; None: not known.
        version: another number after every change.
    """

    request: ProbeRequest
    key: str
    state: State = "connecting"
    message: str = ""
    record: Record | None = None
    done: int = 0
    total: int = 0
    words: str = ""
    left_s: float | None = None
    version: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED


def cluster_key(cluster: Cluster) -> str:
    """A digest of what a record names: sites, hosts and devices. Clusters with one key have each other's records."""
    sites = [site.name for site in cluster.sites]
    hosts = [(host.id, host.site) for host in cluster.hosts]
    devices = [(device.id, device.host, device.kind) for device in cluster.devices]
    return _digest([sites, hosts, devices])


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


class ProbeJobs:
    """The probes of this process: at most one goes on, since two would share links.

    Args:
        home: where offers and records are; None takes `$HETPLANNER_HOME` or the platform's data directory.
        command: starts a worker.
    """

    def __init__(self, home: Path | None = None, command: Sequence[str] | None = None) -> None:
        self._home = home
        self._command = command or [sys.executable, "-m", "hetplanner.ui.jobs.probe_worker"]
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self.job: ProbeJob | None = None

    def start(self, request: ProbeRequest) -> ProbeJob:
        """Starts a probe. Raises InvalidInput while another one goes on, or where its record cannot be kept."""
        with self._lock:
            if self.job is not None and not self.job.ended:
                raise InvalidInput(
                    f"probe: {self.job.request.cluster.name} is being measured; wait, or cancel that first"
                )
            path = self._path(request.cluster, request.hosts, make=True)
            self.job = job = self._job_of(request)
            self._worker = _Worker(self._command, job, path, self._home)
        return job

    def _job_of(self, request: ProbeRequest) -> ProbeJob:
        """A probe that is begun, with what the one before it has measured of the same hosts."""
        job, before = ProbeJob(request, cluster_key(request.cluster)), self.job
        if before is not None and (before.key, before.request.hosts) == (job.key, request.hosts) and not request.anew:
            job.record = before.record
        return job

    def stop(self) -> None:
        """Ends the probe that goes on, in whatever it is doing; what was measured is kept."""
        with self._lock:
            job, worker = self.job, self._worker
        if job is not None and worker is not None and not job.ended:
            worker.stop()

    def close(self) -> None:
        """Ends the worker (tests)."""
        if self._worker is not None:
            self._worker.kill()

    def kept(self, cluster: Cluster, hosts: str) -> Record | None:
        """What was measured of these hosts before; None: nothing that can be gone on from."""
        path = self._path(cluster, hosts)
        try:
            return kept_record(path, cluster) if path.is_file() else None
        except (HetplannerError, OSError) as error:
            _log.warning("probe not read: %s", error)
            return None

    def _path(self, cluster: Cluster, hosts: str, *, make: bool = False) -> Path:
        return probes_directory(self._home, make=make) / f"{cluster_key(cluster)}-{_digest(hosts)}.probe.json"


class _Worker(Child):
    """A worker process, its probe, and the thread that reads what it says."""

    def __init__(self, command: Sequence[str], job: ProbeJob, record: Path, home: Path | None) -> None:
        super().__init__(command)
        self._job, self._record, self._home = job, record, home
        self._stop_asked = False
        self._told: tuple[State, str] | None = None
        self._changing = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="probe-reader").start()

    def stop(self) -> None:
        """Closes its stdin; what does not end then is killed."""
        self._stop_asked = True
        self._change(state="stopping")
        timer = threading.Timer(STOP_GRACE_S, self.kill)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(OSError):
            self.stdin.close()

    def kill(self) -> None:
        """Ends it at once, with the ssh of every host."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended already, or its stdin is closed
            self.stdin.write(self._job.request.to_message(self._record, self._home))
            self.stdin.flush()
        try:
            for line in self.stdout:
                self._take(json.loads(line))
        except Exception as error:  # one bad line must not leave the page waiting
            _log.exception("a message of the probe was not understood")
            self._told = "failed", f"the probe's answer was not understood: {error}"[:MOST_WORDS]
            self.kill()
        last = self.last_words()
        state, text = self._told or ("failed", f"the probe's process ended {last}"[:MOST_WORDS])
        if self._stop_asked and state != "done":
            state, text = "stopped", ""
        self._change(state=state, message=text, left_s=None)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "round":
            fields = {name: message[name] for name in ("done", "total", "words", "left_s")}
            state: State = "stopping" if self._stop_asked else "measuring"
            self._change(record=load_record(self._record), state=state, **fields)
        elif kind == "end":
            self._told = "done", ""
        elif kind == "error":
            self._told = "failed", str(message["text"])[:MOST_WORDS]

    def _change(self, **fields: Any) -> None:
        """All in one step, so that a page sees none of it or all. Nothing changes after the end."""
        with self._changing:
            if not self._job.ended:
                vars(self._job).update(fields, version=self._job.version + 1)


@cache
def process_probes(home: Path | None = None) -> ProbeJobs:
    """The probes of this process and home."""
    return ProbeJobs(home)
