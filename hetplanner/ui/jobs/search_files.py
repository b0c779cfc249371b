"""Searches on disk: request, curve, moments and best plan of each outlive the server."""

import atexit
import json
import logging
import re
import threading
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hetplanner.errors import HetplannerError
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.search.ancestry import MOST_ANCESTORS, Ancestor, Way
from hetplanner.planners.search.moments import MOST_MOMENTS, Moment
from hetplanner.planners.search.tried import MOST_SHAPES, TriedShape
from hetplanner.reading import reader
from hetplanner.runs.home import searches_directory
from hetplanner.schema import Name, Noun, Text, checked, checked_json, read_text, write_text
from hetplanner.ui.jobs.jobs import ENDED, MAX_JOBS, MAX_RECORDS, SearchJob, SearchRequest, SearchService, plain_data
from hetplanner.ui.jobs.plan_bodies import plan_body, plan_of_body

_log = logging.getLogger(__name__)

VERSION = 1
MOST_FILES = 64
MOST_WEIGHT = 20_000
"""Devices and links of a cluster whose search is written: a larger one would stop the server's pages."""
MOST_BYTES = 16 * 2**20
CUT_OFF = "the server ended before the search"
SEARCH_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)

Count = Annotated[int, Field(ge=0, le=2**53)]
Time = Annotated[float, Field(ge=0, le=1e10)]


class EventEntry(Noun):
    """A point of the curve; values in the objective's unit, times in seconds."""

    type: Literal["event"]
    best: float
    low: float
    median: float
    high: float
    evaluations: Count
    seconds: Time
    spent_s: Time
    searched_s: Time
    phase: Text


class BaselineEntry(Noun):
    """What a baseline reached."""

    type: Literal["baseline"]
    label: Name
    value: float
    estimate: Estimate


class BoundEntry(Noun):
    """What no plan can be below."""

    type: Literal["bound"]
    value: float


class MomentEntry(Noun):
    """An improvement; see :class:`hetplanner.planners.search.moments.Moment`."""

    searched_s: Time
    evaluations: Count
    value: float
    stages: tuple[tuple[Count, ...], ...]
    terms: dict[Name, float]
    phase: Text


class TriedEntry(Noun):
    """A shape that was tried; see :class:`hetplanner.planners.search.tried.TriedShape`."""

    stages: Count
    replicas: Count | None
    value: float
    chains: Count


class AncestorEntry(Noun):
    """A birth on the way to the best placement; see :class:`hetplanner.planners.search.ancestry.Ancestor`."""

    way: Way
    value: float
    evaluations: Count
    stages: Count
    replicas: Count | None
    parents: Annotated[tuple[Count, ...], Field(max_length=2)]


_ENTRIES: dict[str, type[Noun]] = {"event": EventEntry, "baseline": BaselineEntry, "bound": BoundEntry}
Entry = Annotated[EventEntry | BaselineEntry | BoundEntry, Field(discriminator="type")]


class SearchEntry(Noun):
    """A search file without its `format`; plans are without their problem, which is the search's."""

    title: Text
    started_s: Annotated[float, Field(ge=0, le=4e9)]
    state: Literal["done", "stopped"]
    message: Text = ""
    planner: Name
    settings: dict[Name, Any]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    budget_s: Annotated[float, Field(ge=0.1, le=600)] | None = None
    evaluations: Count | None = None
    continues: Text = ""
    offset_s: Time = 0.0
    value: float | None = None
    lower_bound: float | None = None
    records: Annotated[tuple[Entry, ...], Field(max_length=MAX_RECORDS)]
    moments: Annotated[tuple[MomentEntry, ...], Field(max_length=MOST_MOMENTS)]
    tried: Annotated[tuple[TriedEntry, ...], Field(max_length=MOST_SHAPES)] = ()
    ancestry: Annotated[tuple[AncestorEntry, ...], Field(max_length=MOST_ANCESTORS)] = ()
    problem: Any
    plan: dict[str, Any]
    start: dict[str, Any] | None = None
    elastic: dict[str, Any] | None = None


@reader("search", at="path")
def read_search(path: Path) -> SearchJob:
    """The search in a file, as one that has ended. Raises InvalidInput."""
    place = path.name
    entry = checked_json(SearchEntry, read_text(path, MOST_BYTES), "search", VERSION, place)
    problem = checked(Problem, entry.problem, place, from_file=True)
    make_planner(entry.planner, entry.settings)

    def plan_of(kind: Any, body: dict[str, Any] | None) -> Any:
        return None if body is None else plan_of_body(problem, body, place, kind)

    request = SearchRequest(
        problem,
        planner=entry.planner,
        seed=entry.seed,
        budget_s=entry.budget_s,
        evaluations=entry.evaluations,
        settings=entry.settings,
        start=plan_of(Plan, entry.start),
        continues=entry.continues,
        offset_s=entry.offset_s,
        title=entry.title,
    )
    job = SearchJob(path.stem, request, state=entry.state, message=entry.message, started_s=entry.started_s)
    job.plan, job.elastic = plan_of(Plan, entry.plan), plan_of(ElasticPlan, entry.elastic)
    job.value = entry.value
    count = len(problem.cluster.devices)
    # The replay draws devices by index.
    job.moments = [Moment(**dict(m)) for m in entry.moments if all(d < count for row in m.stages for d in row)]
    job.tried = [TriedShape(**dict(shape)) for shape in entry.tried]
    # Lines are drawn from parents, which stand before their children.
    if all(parent < k for k, one in enumerate(entry.ancestry) for parent in one.parents):
        job.ancestry = [Ancestor(**dict(one)) for one in entry.ancestry]
    for record in entry.records:
        job.log.append(record.model_dump(mode="json"))
    end = {"type": "state", "state": entry.state, "text": entry.message}
    job.log.append(end | {"value": entry.value, "lower_bound": entry.lower_bound})
    return job


def search_data(job: SearchJob) -> dict[str, Any]:
    """A search with a plan, as the data of its file. One that has not ended, or failed, is told as stopped."""
    assert job.plan is not None
    request, records = job.request, job.log.since(0)[0]
    end: dict[str, Any] = next((r for r in reversed(records) if r["type"] == "state"), {})
    bounds = [r["value"] for r in records if r["type"] == "bound"]
    start = request.start if request.start is not None and request.start.problem == request.problem else None
    return {
        "format": f"hetplanner/search@{VERSION}",
        "title": request.title,
        "started_s": job.started_s,
        "state": "done" if job.state == "done" else "stopped",
        "message": job.message if job.state in ENDED else CUT_OFF,
        "planner": request.planner,
        "settings": dict(request.settings),
        "seed": request.seed,
        "budget_s": request.budget_s,
        "evaluations": request.evaluations,
        "continues": request.continues,
        "offset_s": request.offset_s,
        "value": end.get("value", job.value),
        "lower_bound": end.get("lower_bound", bounds[-1] if bounds else None),
        "records": [_plain(r) for r in records if r["type"] in _ENTRIES],
        "moments": [moment.to_data() for moment in list(job.moments)],
        "tried": [shape.to_data() for shape in job.tried],
        "ancestry": [one.to_data() for one in job.ancestry],
        "problem": plain_data(request.problem),
        "plan": plan_body(job.plan),
        "start": None if start is None else plan_body(start),
        "elastic": None if job.elastic is None else plan_body(job.elastic),
    }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that its file holds."""
    return {name: record[name] for name in _ENTRIES[record["type"]].model_fields}


class SearchFiles:
    """`HOME/searches/ID.json`, written when a search ends; the oldest go first.

    Args:
        home: where `searches/` is; None takes `$HETPLANNER_HOME` or the platform's data directory.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._lock = threading.Lock()

    def save(self, job: SearchJob) -> None:
        """Writes a search that a person asked for and that has a plan; a full disk is logged."""
        cluster = job.request.problem.cluster
        if not job.request.is_kept or job.plan is None or len(cluster.devices) + len(cluster.links) > MOST_WEIGHT:
            return
        try:
            with self._lock:
                folder = searches_directory(self._home)
                write_text(folder / f"{job.id}.json", json.dumps(search_data(job)) + "\n")
                for path in self._newest_first()[MOST_FILES:]:
                    path.unlink(missing_ok=True)
        except (HetplannerError, OSError) as error:
            _log.warning("search %s not written: %s", job.id, error)

    def load(self, job_id: str) -> SearchJob | None:
        """A search as it was written; None if there is none that can be read."""
        path = searches_directory(self._home, make=False) / f"{job_id}.json"
        try:
            return read_search(path) if SEARCH_ID.fullmatch(job_id) and path.is_file() else None
        except (HetplannerError, OSError) as error:
            _log.warning("search not read: %s", error)
            return None

    def newest(self, most: int = MAX_JOBS) -> list[str]:
        """Ids of the newest searches, newest first."""
        try:
            return [path.stem for path in self._newest_first()[:most]]
        except OSError as error:
            _log.warning("searches not listed: %s", error)
            return []

    def _newest_first(self) -> list[Path]:
        folder = searches_directory(self._home, make=False)
        return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)


@cache
def process_service(home: Path | None = None) -> SearchService:
    """The one service of this process and home; it knows the searches of servers before it."""
    service = SearchService(files=SearchFiles(home))
    threading.Thread(target=service.restore, daemon=True, name="search-restorer").start()
    atexit.register(service.save_active)
    return service
