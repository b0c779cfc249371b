"""What there is to go back to: the newest clusters, searches, kept plans and runs of a home, in a few words each."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from hetplanner.errors import HetplannerError
from hetplanner.runs.home import drafts_directory, plans_directory, runs_directory, searches_directory
from hetplanner.runs.plan_store import KeptPlan, PlanStore
from hetplanner.runs.reading.recent import RecentRun, recent
from hetplanner.ui.cluster.models.draft_files import DRAFT_ID, read_draft
from hetplanner.ui.jobs.jobs import SearchJob, SearchService
from hetplanner.ui.jobs.search_files import SEARCH_ID
from hetplanner.ui.shell.models.texts import counted, seconds_text, value_text

KINDS = ("clusters", "searches", "plans", "runs")
MOST = 5
"""Entries of a kind."""
MOST_READ = 20
"""Drafts that are read to find so many different clusters."""
DAMAGED = "cannot be read"

Stamp = tuple[int, int]


@dataclass(frozen=True)
class RecentEntry:
    """Something to go back to.

    Attributes:
        key: what opens it; '' where it cannot be opened.
        name: what a person calls it; the file's name where it cannot be read.
        words: what it is.
        at_s: when it was last changed, unix time; 0 where that is not known.
        title: more of it, shown on hovering.
    """

    key: str
    name: str
    words: str
    at_s: float
    title: str = ""


class RecentFiles:
    """The entries of a home. A file is read once a change; searches come from the service, which holds the newest.

    Args:
        service: knows the searches of this server, and reads those of earlier ones.
        home: None takes `$HETPLANNER_HOME` or the platform's data directory.
    """

    def __init__(self, service: SearchService, home: Path | None = None) -> None:
        self._service, self._home = service, home
        self._refused: set[tuple[Path, Stamp]] = set()

    def number(self) -> int:
        """Most entries that a kind may have, at most `MOST`. Counts names, reads nothing."""
        folders = (drafts_directory, searches_directory, plans_directory, runs_directory)
        return max(len(self._jobs()), *(_count(folder(self._home, make=False)) for folder in folders))

    def look(self) -> dict[str, tuple[RecentEntry, ...]]:
        """Entries by kind, newest first. May take a while: not for the server's main thread."""
        ways = (self._clusters, self._searches, self._plans, self._runs)
        return {kind: _guarded(look, kind) for kind, look in zip(KINDS, ways, strict=True)}

    def _clusters(self) -> Iterable[RecentEntry]:
        seen = set()
        for path, stamp in _newest(drafts_directory(self._home, make=False), DRAFT_ID)[:MOST_READ]:
            entry, content = _draft(path, stamp)
            if entry is not None and content not in seen:
                seen.add(content)
                yield entry

    def _searches(self) -> Iterable[RecentEntry]:
        files = _newest(searches_directory(self._home, make=False), SEARCH_ID)[:MOST]
        entries = [_damaged(path.name, stamp) for path, stamp in files if not self._is_known(path, stamp)]
        entries += map(_search, self._jobs())
        return sorted(entries, key=lambda entry: -entry.at_s)

    def _jobs(self) -> list[SearchJob]:
        """The newest searches, without those that came to nothing."""
        useful = (j for j in self._service.jobs if j.request.is_kept and (j.plan is not None or not j.ended))
        return list(islice(useful, MOST))

    def _is_known(self, path: Path, stamp: Stamp) -> bool:
        """Whether the service has the search of a file, or can read it. One that it cannot is tried once."""
        if (path, stamp) in self._refused:
            return False
        if self._service.job(path.stem) is None:
            self._refused.add((path, stamp))
        return (path, stamp) not in self._refused

    def _plans(self) -> Iterable[RecentEntry]:
        return (_plan(self._home, kept) for kept in PlanStore(self._home).kept()[:MOST])

    def _runs(self) -> Iterable[RecentEntry]:
        return map(_run, recent(self._home, MOST)) if runs_directory(self._home, make=False).is_dir() else ()


def _guarded(look: Callable[[], Iterable[RecentEntry]], kind: str) -> tuple[RecentEntry, ...]:
    """One folder that cannot be read hides no other."""
    try:
        return tuple(islice(look(), MOST))
    except (HetplannerError, OSError) as error:
        return (RecentEntry("", kind, DAMAGED, 0.0, str(error)[:200]),)


def _newest(folder: Path, stem: re.Pattern[str]) -> list[tuple[Path, Stamp]]:
    """JSON files of a folder with their times and sizes, newest first."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            path = Path(file.path)
            if path.suffix == ".json" and stem.fullmatch(path.stem):
                with suppress(FileNotFoundError):
                    info = file.stat()
                    found.append((path, (info.st_mtime_ns, info.st_size)))
    return sorted(found, key=lambda each: -each[1][0])


def _count(folder: Path) -> int:
    try:
        with os.scandir(folder) as files:
            return len(list(islice((file for file in files if not file.name.startswith(".")), MOST)))
    except OSError:
        return 0


def _damaged(name: str, stamp: Stamp, title: str = "") -> RecentEntry:
    return RecentEntry("", name, DAMAGED, stamp[0] / 1e9, title[:200])


@lru_cache(maxsize=4 * MOST_READ)
def _draft(path: Path, stamp: Stamp) -> tuple[RecentEntry | None, int]:
    """A draft, and what tells its content from that of others; None where nothing is drawn."""
    try:
        step = read_draft(path)
    except HetplannerError as error:
        return _damaged(path.name, stamp, str(error)), hash(path)
    if step.cluster is None:
        return None, 0
    words = counted(len(step.cluster.devices), "device")
    words += f", {len(step.excluded)} excluded" if step.excluded else ""
    content = hash((step.cluster, step.excluded))
    return RecentEntry(path.stem, step.cluster.name, words, stamp[0] / 1e9, step.words), content


def _search(job: SearchJob) -> RecentEntry:
    problem = job.request.problem
    fixed = problem.constraints
    shape = f"{fixed.stages or 'auto'} × {fixed.replicas or 'auto'}"
    value = value_text(job.value, problem.objective) if job.ended else "searching"
    name = f"{problem.workload.name} on {problem.cluster.name}"
    return RecentEntry(job.id, name, f"{shape}, {value}", job.started_s, job.request.title)


@lru_cache(maxsize=8 * MOST)
def _plan(home: Path | None, kept: KeptPlan) -> RecentEntry:
    try:
        plan = PlanStore(home).load(kept.name)
    except HetplannerError as error:
        return _damaged(f"{kept.name}.json", kept.stamp, str(error))
    step = f"step {seconds_text(plan.estimate.step_s)}" if plan.estimate is not None else "no estimate"
    title = f"{plan.problem.workload.name} on {plan.problem.cluster.name}"
    return RecentEntry(kept.name, kept.name, step, kept.kept_s, title)


def _run(run: RecentRun) -> RecentEntry:
    at_s = run.started_unix_s or 0.0
    if run.state == "unknown":
        return RecentEntry("", f"{run.run}/status.json", DAMAGED, at_s)
    return RecentEntry(run.run, run.name, f"{run.state}, {counted(run.steps, 'step')}", at_s, run.run)
