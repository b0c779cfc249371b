"""Runs as the pages of this process see them: each directory is read once, however many pages look at it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from hetplanner.cost.elastic.swarm_costs import expected_speeds, group_names
from hetplanner.errors import HetplannerError
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.trace import Trace
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.annotations import Annotations, known_annotations
from hetplanner.runs.directory import RunDirectory, list_run_ids
from hetplanner.runs.home import runs_directory
from hetplanner.runs.reading.events import LifeSpan, RunEvent, life_spans, run_events
from hetplanner.runs.reading.loads import LinkLoad, SiteLoad, link_loads, site_loads
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.swarm_flow import NO_FLOW, SwarmFlow
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runs.reports.comparison import Comparer, Comparison
from hetplanner.runs.reports.stragglers import Straggler, stragglers
from hetplanner.runs.resuming import checkpoints_of
from hetplanner.runs.run import true_status
from hetplanner.runs.status import RunStatus, read_status

_log = logging.getLogger(__name__)

POLL_EVERY_S = 0.35
DETAIL_EVERY_S = 1.5
LIST_EVERY_S = 1.5
COMPARED_STEPS = 8
MAX_RUNS = 50


@dataclass(frozen=True)
class RunRow:
    """A line of the list of runs.

    Attributes:
        state: as its status has it, or `unknown`, or `continued`.
        successor: id of the run that goes on in its place; '' if none does.
    """

    run: str
    state: str
    kind: str
    began: str
    lasted_s: float | None
    ranks: int
    message: str
    said: Annotations
    successor: str = ""

    @property
    def name(self) -> str:
        """The name that a person gave it; '' if it has none."""
        return self.said.name


@dataclass(frozen=True)
class RunDetail:
    """What takes some milliseconds to find out, so it is looked at less often than the steps.

    Attributes:
        swarm: None for a run of a static plan.
        flow: of a swarm's last steps.
        expected: micro-batches per second of a swarm's peers by stage, as the cost model has them.
        names: of a swarm's peers that are groups, see `group_names`.
    """

    trace: Trace
    comparison: Comparison
    stragglers: tuple[Straggler, ...]
    loads: tuple[LinkLoad, ...]
    sites: tuple[SiteLoad, ...]
    events: tuple[RunEvent, ...]
    life: tuple[LifeSpan, ...]
    checkpoints: tuple[int, ...]
    swarm: SwarmHistory | None = None
    flow: SwarmFlow = NO_FLOW
    expected: Mapping[str, Sequence[float]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


class RunWatch:
    """One run. `refresh` may be called as often as one likes; `version` rises when its files told something new.

    Attributes:
        status: as last read; None before the first look.
        heard_s: monotonic time of the last news.
    """

    def __init__(self, home: Path | None, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.home, self.run_id = home, run_id
        self.reader = RunReader((runs_directory(home) / run_id).resolve())
        self.status: RunStatus | None = None
        self.version = 0
        self.heard_s = clock()
        self._clock = clock
        self._comparer = Comparer(self.reader)
        self._history = SwarmHistory(self.reader.directory.path)
        self._polled_s = self._detailed_s = float("-inf")
        self._detail: tuple[tuple[int, RunStatus | None], RunDetail] | None = None

    def refresh(self) -> None:
        """Reads on, unless another page has done so a moment ago. Raises InvalidInput for a damaged directory."""
        now = self._clock()
        if now - self._polled_s < POLL_EVERY_S:
            return
        self._polled_s = now
        status = true_status(self.reader.status(), self.home)
        news = [self.reader.poll(), self._history.poll()]
        if any(news) or status != self.status:
            self.version += 1
            self.heard_s = now
        self.status = status

    def detail(self) -> RunDetail | None:
        """The rest, at most some moments old; None before the first look."""
        if self.status is None:
            return None
        key = (self.version, self.status)
        now = self._clock()
        if self._detail is not None:
            fresh = now - self._detailed_s < DETAIL_EVERY_S and not (self.status.is_over and key != self._detail[0])
            if fresh or key == self._detail[0]:
                return self._detail[1]
        self._detailed_s = now
        self._detail = key, self._look(self.status)
        return self._detail[1]

    def _look(self, status: RunStatus) -> RunDetail:
        reader = self.reader
        if isinstance(reader.any_plan, ElasticPlan):  # its peers leave no spans to compare
            measured_s = reader.measured_step_s()
            step_s_of = {"measured": measured_s} if measured_s is not None else {}
            return self._detail_of(status, reader.trace(0), Comparison(step_s_of, {}, (), (), "", ""), [])
        trace = reader.trace(COMPARED_STEPS)
        found = self._comparer.compare(trace)
        step_s = found.step_s.get("measured")
        return self._detail_of(status, trace, found, link_loads(reader, step_s))

    def _detail_of(self, status: RunStatus, trace: Trace, found: Comparison, loads: Sequence[LinkLoad]) -> RunDetail:
        reader = self.reader
        return RunDetail(
            trace=trace,
            comparison=found,
            stragglers=tuple(stragglers(found.ranks, found.links, found.step_s.get("measured"))),
            loads=tuple(loads),
            sites=tuple(site_loads(reader, loads)),
            events=tuple(run_events(reader, status, audit_records(self.home, run=self.run_id))),
            life=tuple(life_spans(reader, status, time.time())),
            checkpoints=tuple(checkpoints_of(reader.plan, reader.directory.path)),
            swarm=self._history if self._expected is not None else None,
            flow=self._history.flow(),
            expected=self._expected or {},
            names=group_names(plan) if isinstance(plan := reader.any_plan, ElasticPlan) else {},
        )

    @cached_property
    def _expected(self) -> dict[str, tuple[float, ...]] | None:
        """Of the peers of an elastic plan."""
        plan = self.reader.any_plan
        return expected_speeds(plan) if isinstance(plan, ElasticPlan) else None


_watches: "WeakValueDictionary[tuple[Path | None, str], RunWatch]" = WeakValueDictionary()
_lists: dict[Path | None, tuple[float, list[RunRow]]] = {}
_lock = threading.Lock()


def watch_run(home: Path | None, run_id: str) -> RunWatch:
    """The one watch of a run in this process; it is forgotten when the last page that holds it is closed."""
    with _lock:
        watch = _watches.get((home, run_id))
        if watch is None:
            watch = _watches[home, run_id] = RunWatch(home, run_id)
        return watch


def run_rows(home: Path | None, *, anew: bool = False) -> list[RunRow]:
    """The newest runs of a home, newest first, at most some moments old; `anew` looks now."""
    now = time.monotonic()
    with _lock:
        known = _lists.get(home)
        if known is not None and not anew and now - known[0] < LIST_EVERY_S:
            return known[1]
    rows = [_row(home, run_id) for run_id in list_run_ids(home)[::-1][:MAX_RUNS]]
    with _lock:
        _lists.clear()  # one home a process, but for tests
        _lists[home] = now, rows
    return rows


def _row(home: Path | None, run_id: str) -> RunRow:
    directory = RunDirectory((runs_directory(home) / run_id).resolve())
    said = known_annotations(directory.path)
    try:
        status = true_status(read_status(directory.status_file), home)
    except HetplannerError:
        return RunRow(run_id, "unknown", "", "", None, 0, "its status cannot be read", said)
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.created_unix_s))
    lasted_s = None
    if status.ended_unix_s is not None and status.started_unix_s is not None:
        lasted_s = status.ended_unix_s - status.started_unix_s
    message = "" if status.message == status.state else status.message[:200]
    kind = "rehearsal" if status.rehearsal else "run"
    successor = status.successor or ""
    return RunRow(run_id, status.word, kind, began, lasted_s, status.ranks, message, said, successor)


def successor_of(home: Path | None, status: RunStatus) -> str:
    """The run that goes on in the place of one, through all that have gone on in turn; '' if none does."""
    if status.successor is None:
        return ""
    known, name = set(list_run_ids(home)), ""
    while status.successor in known:
        name = status.successor or name
        known.discard(name)
        try:
            status = read_status(RunDirectory((runs_directory(home) / name).resolve()).status_file)
        except HetplannerError:
            break
    return name
