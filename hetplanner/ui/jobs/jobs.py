"""Searches outside the server process: a job log that every session reads by cursor, and the workers that feed it.

A worker is a fresh Python process (`python -m hetplanner.ui.jobs.worker`), never a fork, that speaks JSON lines over
its pipes: nothing is pickled, a pipe bounds what it may run ahead, and it ends by itself when the server is gone.
One idle worker is kept warm, so a search starts at once.
"""

import json
import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.planners.search.moments import Moment, keep, plan_moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.schema import Noun
from hetplanner.ui.jobs.child import Child
from hetplanner.ui.jobs.kernel_work import KernelWork
from hetplanner.ui.jobs.plan_bodies import plan_body, plan_of_body

_log = logging.getLogger(__name__)

MAX_RECORDS = 2000
MAX_JOBS = 20
MAX_ACTIVE = 2
STOP_GRACE_S = 2.0

State = Literal["starting", "running", "stopping", "done", "stopped", "failed"]
ENDED: frozenset[str] = frozenset({"done", "stopped", "failed"})


@dataclass(frozen=True)
class SearchRequest:
    """One search as a person asked for it. `budget_s` and `evaluations` are limits; one may be None.

    Attributes:
        what: for the best plan, or for the front of step time and dollars (which has no planner).
        settings: of the planner, where they differ from its own.
        start: the plan to begin with.
        continues: id of the search that this one goes on from.
        offset_s: seconds of search before this one, for the time axis of a resumed one.
        bound_s: seconds of work on a tighter lower bound, beside the search and behind it; 0: none.
        behind: the page started it by itself, to compare with it.
    """

    problem: Problem
    planner: str = "evolution"
    what: Literal["search", "front"] = field(default="search", kw_only=True)
    seed: int = 0
    budget_s: float | None = 10.0
    evaluations: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: Plan | None = None
    continues: str = ""
    offset_s: float = 0.0
    bound_s: float = 0.0
    title: str = ""
    behind: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the search is stored and listed: it is no front, no rehearsal and no comparison."""
        return self.what == "search" and not self.behind and self.problem.rehearsal_of is None

    def to_message(self, job: str) -> str:
        """The line a worker reads."""
        data = {
            "do": self.what,
            "job": job,
            "problem": plain_data(self.problem),
            "planner": self.planner,
            "seed": self.seed,
            "budget_s": self.budget_s,
            "evaluations": self.evaluations,
            "bound_s": self.bound_s,
            "settings": dict(self.settings),
            "start": None if self.start is None else plan_body(self.start),
            "start_problem": None,
        }
        if self.start is not None and self.start.problem != self.problem:
            data["start_problem"] = plain_data(self.start.problem)
        return json.dumps(data, separators=(",", ":")) + "\n"


def plain_data(noun: Noun, exclude: set[str] | None = None) -> dict[str, Any]:
    """A noun as the data of JSON."""
    return noun.model_dump(mode="json", by_alias=True, exclude=exclude, exclude_none=True)


class JobLog:
    """Numbered records, oldest first, of bounded number; readers ask for what is newer than their cursor.

    When full, every second old `event` record goes: a late joiner still sees the whole curve, more coarsely.
    """

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max = max_records
        self._records: list[tuple[int, dict[str, Any]]] = []
        self._next = 1
        self._lock = threading.Lock()

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record."""
        with self._lock:
            self._records.append((self._next, record))
            self._next += 1
            if len(self._records) > self._max:
                self._thin()

    def _thin(self) -> None:
        half = len(self._records) // 2
        old = [r for i, r in enumerate(self._records[:half]) if i % 2 == 0 or r[1].get("type") != "event"]
        self._records = (old + self._records[half:])[-self._max :]

    def since(self, cursor: int) -> tuple[list[dict[str, Any]], int]:
        """Records newer than `cursor` (0 = from the start), and the cursor to ask with next time."""
        with self._lock:
            last = self._next - 1
            if cursor >= last:
                return [], last
            start = next((i for i, (n, _) in enumerate(self._records) if n > cursor), len(self._records))
            return [record for _, record in self._records[start:]], last


@dataclass
class SearchJob:
    """A search of this server process: what was asked, its log, and the best plan so far; `front` holds the plans of
    a front, without their problem; `elastic` is the elastic plan where one was asked for; `moments` are its
    improvements, the last of them the finished plan; `tried` are the shapes it tried and `ancestry` where
    its best placement comes from, known at its end.
    """

    id: str
    request: SearchRequest
    log: JobLog = field(default_factory=JobLog)
    state: State = "starting"
    message: str = ""
    plan: Plan | None = None
    elastic: ElasticPlan | None = None
    value: float | None = None
    started_s: float = field(default_factory=time.time)
    stop_asked: bool = False
    front: list[dict[str, Any]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    tried: list[TriedShape] = field(default_factory=list)
    ancestry: list[Ancestor] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """Wall time since it was asked for."""
        return time.time() - self.started_s

    def plan_on_front(self, number: int) -> Plan:
        """A plan of the front, checked. Raises InvalidInput."""
        return plan_of_body(self.request.problem, self.front[number], "search", Plan)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED


class Files(Protocol):
    """Where searches outlive the server; `hetplanner.ui.jobs.search_files.SearchFiles` in the app."""

    def save(self, job: SearchJob) -> None:
        """Writes a search."""
        ...

    def load(self, job_id: str) -> SearchJob | None:
        """A search as it was written."""
        ...

    def newest(self) -> list[str]:
        """Ids of the newest searches."""
        ...


class SearchService:
    """All searches of this process. Sessions come and go; jobs stay (the last `MAX_JOBS`).

    Args:
        command: starts a worker.
        files: where searches are also kept, and found again; None keeps them in memory alone.
    """

    def __init__(self, command: list[str] | None = None, files: Files | None = None) -> None:
        self._command = command or [sys.executable, "-m", "hetplanner.ui.jobs.worker"]
        self._files = files
        self._jobs: dict[str, SearchJob] = {}
        self._workers: dict[str, _Worker] = {}
        self._idle: _Worker | None = None
        self._lock = threading.RLock()
        self.kernels = KernelWork()

    @property
    def jobs(self) -> list[SearchJob]:
        """Newest first."""
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: job.started_s, reverse=True)

    def job(self, job_id: str) -> SearchJob | None:
        """A job by its id, also one of an earlier server."""
        with self._lock:  # two pages must not read two
            if job_id not in self._jobs and self._files is not None:
                found = self._files.load(job_id)
                if found is not None:
                    self._jobs[job_id] = found
            return self._jobs.get(job_id)

    def restore(self) -> None:
        """Reads the newest searches of earlier servers."""
        for job_id in self._files.newest() if self._files is not None else ():
            self.job(job_id)

    def save_active(self) -> None:
        """Writes what searches have found that go on while the server ends."""
        for job in self.jobs:
            if self._files is not None and not job.ended:
                self._files.save(job)

    def warm(self) -> None:
        """Starts the idle worker, so that the first search need not wait for imports."""
        with self._lock:
            if self._idle is None or not self._idle.alive:
                self._idle = self._new_worker()

    def _new_worker(self) -> "_Worker":
        return _Worker(self._command, self.kernels.begin)

    def start(self, request: SearchRequest) -> SearchJob:
        """Starts a search. Raises InvalidInput when as many as may run already do."""
        with self._lock:
            active = sum(not job.ended for job in self._jobs.values())
            if active >= MAX_ACTIVE:
                raise InvalidInput(f"search: {active} searches are running on this server; stop one or wait")
            job = SearchJob(secrets.token_hex(6), request)
            self._jobs[job.id] = job
            self._forget_oldest()
            worker = self._idle if self._idle is not None and self._idle.alive else self._new_worker()
            self._idle = None
            self._workers[job.id] = worker
        worker.run(job, self._released)
        return job

    def stop(self, job_id: str) -> None:
        """Asks a search to stop; a worker that does not answer within `STOP_GRACE_S` is killed."""
        with self._lock:
            job, worker = self._jobs.get(job_id), self._workers.get(job_id)
        if job is None or job.ended or worker is None:
            return
        job.stop_asked = True
        job.state = "stopping"
        job.log.append({"type": "state", "state": "stopping"})
        worker.ask_to_stop(job)

    def close(self) -> None:
        """Ends every worker (tests)."""
        with self._lock:
            workers = [*self._workers.values(), *([self._idle] if self._idle else [])]
            self._idle = None
        self.kernels.close()
        for worker in workers:
            worker.kill()

    def _forget_oldest(self) -> None:
        ended = [job.id for job in reversed(self.jobs) if job.ended]
        for job_id in ended[: max(0, len(self._jobs) - MAX_JOBS)]:
            del self._jobs[job_id]

    def _released(self, worker: "_Worker", job: SearchJob) -> None:
        with self._lock:
            self._workers.pop(job.id, None)
            stays = self._idle is None and worker.alive
            if stays:
                self._idle = worker
        if not stays:
            worker.kill()
        if self._files is not None:
            self._files.save(job)


class _Worker(Child):
    """A worker process, its search, and the thread that reads what it says."""

    def __init__(self, command: list[str], tell_kernels: Callable[[list[str], int], object]) -> None:
        super().__init__(command)
        self._tell_kernels = tell_kernels
        self._job: SearchJob | None = None
        self._on_end: Callable[[_Worker, SearchJob], None] = lambda worker, job: None
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True, name="search-worker-reader").start()

    def run(self, job: SearchJob, on_end: Callable[["_Worker", SearchJob], None]) -> None:
        with self._lock:
            self._job, self._on_end = job, on_end
        self._send(job.request.to_message(job.id))
        if not self.alive:
            self._worker_died()

    def ask_to_stop(self, job: SearchJob) -> None:
        self._send(json.dumps({"do": "stop", "job": job.id}) + "\n")
        timer = threading.Timer(STOP_GRACE_S, lambda: None if job.ended else self.kill())
        timer.daemon = True
        timer.start()

    def _send(self, line: str) -> None:
        try:
            self.stdin.write(line)
            self.stdin.flush()
        except (BrokenPipeError, OSError):
            _log.warning("search worker %d no longer listens", self.pid)

    def _read(self) -> None:
        for line in self.stdout:
            try:
                self._take(json.loads(line))
            except Exception as error:  # one bad line must not silence the rest
                _log.exception("a message of the search worker was not understood")
                self._finish("failed", f"search: the worker's message was not understood: {error}")
        self.process.wait()
        self._worker_died()

    def _take(self, message: dict[str, Any]) -> None:
        job = self._job
        if message.get("type") == "kernels":
            self._tell_kernels(message["missing"], message["total"])
            return
        if job is None or message.get("job") != job.id:
            return
        kind = message.pop("type")
        if "plan" in message:
            body = message.pop("plan")
            job.plan = plan_of_body(job.request.problem, body, "search", Plan)
            message["improved"] = True
        if "moment" in message:
            keep(job.moments, Moment.from_data(message.pop("moment")))
        if "elastic" in message:
            job.elastic = plan_of_body(job.request.problem, message.pop("elastic"), "search", ElasticPlan)
        if "plans" in message:
            job.front = message.pop("plans")
        if kind == "end":
            job.tried = [TriedShape(**shape) for shape in message.pop("tried", ())]
            job.ancestry = [Ancestor.from_data(one) for one in message.pop("ancestry", ())]
            if job.plan is not None and job.moments:
                end = message["searched_s"], message["evaluations"]
                keep(job.moments, plan_moment(job.plan, message["value"], *end))
            self._finish("stopped" if job.stop_asked else "done", "", message)
        elif kind == "error":
            self._finish("failed", message["text"], message)
        else:
            if kind == "event":
                job.value = message["best"]
            if job.state == "starting":
                job.state = "running"
            job.log.append({"type": kind, **message})

    def _worker_died(self) -> None:
        job = self._job
        if job is None:
            return
        if job.stop_asked:
            self._finish("stopped", "the search worker was killed because it did not stop in time")
            return
        self._finish("failed", f"search: the worker process ended {self.last_words()}"[:600])

    def _finish(self, state: State, text: str, message: dict[str, Any] | None = None) -> None:
        with self._lock:
            job, self._job = self._job, None
        if job is None:
            return
        job.message = text
        job.state = state
        job.log.append({"type": "state", **(message or {}), "state": state, "text": text})
        self._on_end(self, job)
