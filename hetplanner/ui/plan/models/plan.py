"""The Plan page: the search that runs elsewhere, what it has found so far, and what goes on from there."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import param

from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import LAST_PHASES, LOADING, SearchEvent
from hetplanner.planners.layout import value_of
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.planners.search.moments import Moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.ui.jobs.jobs import ENDED, SearchJob, SearchRequest, SearchService
from hetplanner.ui.settings.models.fields import planner_defaults
from hetplanner.ui.settings.models.problem import ProblemSettings
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import percent_text, value_text

MAX_BUDGET_S = 600.0
MAX_BUDGET_LOCKED_S = 60.0
"""Longest search of a page without the launch token: anyone who reaches the page may plan, not occupy the machine."""
MAX_POINTS = 1500
MAX_EARLIER = 4
"""Curves of earlier searches that stay in sight."""


@dataclass(frozen=True)
class EarlierSearch:
    """A search that another one went on from: what it is called, and its curve."""

    label: str
    points: tuple[SearchEvent, ...]


class PlanModel(ProblemSettings):
    """Settings of the problem and of the search, and the state of the session's search."""

    planner: Any = param.Selector(default=planner_names()[0], objects=list(planner_names()))
    planner_settings = param.Dict(default={}, doc="Changed settings of each planner, by its name.")
    seed = param.Integer(default=0, bounds=(0, 2**31 - 1))
    budget_s = param.Number(default=10.0, bounds=(0.1, MAX_BUDGET_S))
    bound_s = param.Number(default=0.0, bounds=(0.0, MAX_BUDGET_S), doc="Seconds of work on a tighter lower bound.")

    state = param.String(default="idle", doc="idle, or the state of the job.")
    phase = param.String(default="")
    failure = param.String(default="", doc="Why the last search failed.")
    job_id = param.String(default="")
    points_changed = param.Event()
    baselines_changed = param.Event()
    clock_changed = param.Event(doc="A second of the search has passed.")
    plan = param.ClassSelector(class_=Plan, default=None)
    value = param.Number(default=None, allow_None=True)
    lower_bound = param.Number(default=None, allow_None=True)
    outdated = param.Boolean(default=False, doc="The search that is shown is of other settings than those in hand.")

    def __init__(self, session: Session, service: SearchService, **params: Any) -> None:
        super().__init__(session, **params)
        self._service = service
        self._job: SearchJob | None = None
        self._cursor = 0
        self.points: list[SearchEvent] = []
        self.baselines: dict[str, float] = {}
        self.baseline_estimates: dict[str, Estimate] = {}
        self.earlier: tuple[EarlierSearch, ...] = ()
        self._seconds = 0
        self._kernels = ""
        self._best_before = math.inf

    # -- the planner's own settings ---------------------------------------------------------------

    @property
    def changed_settings(self) -> dict[str, Any]:
        """Settings of the chosen planner that differ from its own."""
        return dict(self.planner_settings.get(self.planner, {}))

    @property
    def own_settings(self) -> dict[str, Any]:
        """All settings of the chosen planner."""
        return planner_defaults(self.planner) | self.changed_settings

    def set_planner_setting(self, name: str, value: Any) -> None:
        """Changes a setting of the chosen planner. Raises InvalidInput."""
        changed = self.changed_settings | {name: value}
        make_planner(self.planner, changed)
        if value == planner_defaults(self.planner)[name]:
            del changed[name]
        self.planner_settings = {**self.planner_settings, self.planner: changed}

    @property
    def fixed_settings(self) -> tuple[str, ...]:
        """Settings that the model or the objective does not leave open."""
        return super().fixed_settings if self.objective == "dtfm" else (*super().fixed_settings, "bound_s")

    # -- the search -------------------------------------------------------------------------------

    @property
    def searching(self) -> bool:
        """Whether this session's search is going on."""
        return self.state in ("starting", "running", "stopping")

    @property
    def budget_cap_s(self) -> float:
        """Longest budget this session may ask for."""
        return MAX_BUDGET_S if self.session.unlocked else MAX_BUDGET_LOCKED_S

    def start(self) -> None:
        """Starts a search from nothing; a wrong setting becomes a notice."""
        if not self.searching:
            with self.session.reporting():
                self._search(self._request(self.seed))

    def resume(self) -> None:
        """Searches on from the best plan, with the settings as they are now."""
        if not self.searching and self.plan is not None:
            with self.session.reporting():
                offset_s = self.points[-1].searched_s if self.points else 0.0
                request = self._request(self.seed, "resumed", start=self._start_plan())
                self._search(replace(request, continues=self.job_id, offset_s=offset_s))

    def reseed(self) -> None:
        """Searches with the next seed, from the best plan where the planner can; the curve so far stays in sight."""
        if not self.searching and self.plan is not None:
            with self.session.reporting():
                self.seed = (self.seed + 1) % (2**31)
                start = self._start_plan() if self._takes_start and self.is_of_this_cluster else None
                request = self._request(self.seed, "another seed", start=start)
                self._search(replace(request, continues=self.job_id))

    def _start_plan(self) -> Plan:
        if self.plan is None or not self.is_of_this_cluster:
            raise InvalidInput("start: the best plan is of another cluster; press Search")
        if not self._takes_start:
            raise InvalidInput(f"planner {self.planner}: cannot start from a plan; choose planner evolution, or Search")
        return self.plan

    @property
    def _takes_start(self) -> bool:
        return bool(planner_type(self.planner).takes_start)

    @property
    def is_of_this_cluster(self) -> bool:
        """Whether the best plan is one of the current cluster."""
        return self.plan is not None and self.plan.problem.cluster is self.cluster

    @property
    def request(self) -> SearchRequest | None:
        """What the search that is shown was asked for."""
        return self._job.request if self._job is not None else None

    def is_of_other_settings(self, problem: Problem) -> bool:
        """Whether the search that is shown was for another problem than this."""
        return self._job is not None and self._job.request.problem != problem

    @property
    def can_resume(self) -> bool:
        """Whether there is a plan that this planner can go on from."""
        return not self.searching and self.is_of_this_cluster and self._takes_start

    @property
    def can_reseed(self) -> bool:
        """Whether there is a search to repeat with another seed."""
        return not self.searching and self.plan is not None

    def _request(self, seed: int, how: str = "", start: Plan | None = None) -> SearchRequest:
        problem = self.problem()
        budget_s = min(self.budget_s, self.budget_cap_s)
        if budget_s < self.budget_s:
            self.session.notify(
                "info", f"Without the launch token a search lasts at most {budget_s:g} s; yours is cut to that."
            )
        shape = f"{problem.constraints.stages or 'auto'} × {problem.constraints.replicas or 'auto'}"
        title = f"{problem.workload.name} on {problem.cluster.name}, {shape}, {self.planner}, seed {seed}"
        return SearchRequest(
            problem,
            planner=self.planner,
            seed=seed,
            budget_s=budget_s,
            bound_s=min(self.bound_s, self.budget_cap_s) if self.objective == "dtfm" else 0.0,
            settings=self.changed_settings,
            start=start,
            title=f"{title}, {how}" if how else title,
        )

    def _search(self, request: SearchRequest) -> None:
        self._follow(self._service.start(request))

    def stop(self) -> None:
        """Asks the search to stop; its best plan stays."""
        if self._job is not None:
            self._service.stop(self._job.id)
            self.poll()

    def join(self, job_id: str) -> bool:
        """Shows a search of this server that another page (or this one, before a reload) started."""
        job = self._service.job(job_id)
        if job is None:
            return False
        request = job.request
        with self.taking_over():
            self.take_problem(request.problem)
            self.param.update(
                planner=request.planner,
                planner_settings={**self.planner_settings, request.planner: dict(request.settings)},
                seed=request.seed,
                budget_s=self.budget_s if request.budget_s is None else request.budget_s,
            )
            self._follow(job)
        return True

    def recent(self) -> dict[str, str]:
        """Title -> id of this server's searches, newest first."""
        return {
            f"{_when_text(job.started_s)} · {job.request.title}": job.id
            for job in self._service.jobs
            if job.request.is_kept or job.id == self.job_id
        }

    def show(self, plan: AnyPlan) -> None:
        """Shows a plan that no search of this page found (of an elastic one a steady-state step), and its problem."""
        with self.taking_over():
            self._job, self._cursor = None, 0
            self.points, self.baselines, self.baseline_estimates, self.earlier = [], {}, {}, ()
            self.take_problem(plan.problem)
            shown = self.session.take(plan)
            value = value_of(shown) if shown.estimate is not None else None
            self.param.update(job_id="", state="idle", failure="", lower_bound=None, plan=None, value=None)
            self.param.update(plan=shown, value=value)
            self.param.trigger("points_changed", "baselines_changed")

    def _follow(self, job: SearchJob) -> None:
        before, self._job = self._job, job
        self._cursor, self._seconds, self.points = 0, 0, []
        if before is None or before.id != job.request.continues or before.request.problem != job.request.problem:
            self.baselines, self.baseline_estimates = {}, {}  # else they hold until their like comes again
        self.earlier = self._earlier_than(job)
        start = job.request.start
        goes_on = (
            job.request.offset_s > 0
            and job.request.start is not None
            and job.request.start.problem == job.request.problem
        )
        known = self.earlier[-1].points if goes_on and self.earlier else ()
        self._best_before = min((p.best for p in known), default=math.inf)
        self.param.update(
            job_id=job.id, plan=start, value=None, lower_bound=None, state=job.state, phase="starting", failure=""
        )
        self.param.trigger("points_changed", "baselines_changed")
        self.poll()

    def _earlier_than(self, job: SearchJob) -> tuple[EarlierSearch, ...]:
        """Curves of the searches that this one went on from, the oldest first; those that are still remembered."""
        found: list[EarlierSearch] = []
        while len(found) < MAX_EARLIER:
            before = self._service.job(job.request.continues) if job.request.continues else None
            if before is None or before.request.problem.objective != job.request.problem.objective:
                break
            points = [_event_of(r, before.request.offset_s) for r in before.log.since(0)[0] if r["type"] == "event"]
            found.insert(0, EarlierSearch(f"seed {before.request.seed}", tuple(thinned(points, MAX_POINTS // 4))))
            job = before
        return tuple(found)

    def poll(self) -> None:
        """Takes what is new from the job's log; cheap when nothing is."""
        self._look_at_kernels()
        job = self._job
        if job is None or (self.state in ENDED and self._cursor):
            return
        if int(self.elapsed_s) != self._seconds:
            self._seconds = int(self.elapsed_s)
            self.param.trigger("clock_changed")
        records, self._cursor = job.log.since(self._cursor)
        if not records:
            return
        new_points = new_baselines = False
        for record in records:
            kind = record["type"]
            if kind == "event":
                point = _event_of(record, job.request.offset_s)
                # The finished plan that a search goes on from need not be the best by the closed form.
                self.points.append(replace(point, best=min(point.best, self._best_before)))
                new_points = True
            elif kind == "baseline":
                self.baselines[record["label"]] = record["value"]
                self.baseline_estimates[record["label"]] = Estimate.model_validate(record["estimate"])
                new_baselines = True
            self._take_state(record)
        if job.plan is not None and job.plan is not self.plan:
            self.plan = job.plan
        if new_points:
            self.points = thinned(self.points, MAX_POINTS)
            self.param.trigger("points_changed")
        if new_baselines:
            self.param.trigger("baselines_changed")

    @property
    def moments(self) -> list[Moment]:
        """The improvements of the current search, for its replay."""
        return self._job.moments if self._job is not None else []

    @property
    def tried(self) -> list[TriedShape]:
        """The shapes that the current search tried; empty until it ends."""
        return self._job.tried if self._job is not None else []

    @property
    def ancestry(self) -> list[Ancestor]:
        """Where the best placement of the current search comes from; empty until it ends."""
        return self._job.ancestry if self._job is not None else []

    @property
    def offset_s(self) -> float:
        """Seconds of search before the current one, which goes on from it."""
        return self._job.request.offset_s if self._job is not None else 0.0

    def _look_at_kernels(self) -> None:
        if self._service.kernels.text != self._kernels:
            self._kernels = self._service.kernels.text
            self.param.trigger("clock_changed")

    def _take_state(self, record: Mapping[str, Any]) -> None:
        kind = record["type"]
        if kind == "event":
            self.param.update(value=record["best"], phase=record["phase"])
            if self.state == "starting":
                self.state = "running"
        elif kind == "phase":
            self.phase = record["text"]
        elif kind == "bound":
            self.lower_bound = max(record["value"], self.lower_bound or 0.0)
        elif kind == "state":
            if record.get("value") is not None:
                self.param.update(value=record["value"], lower_bound=record["lower_bound"])
            if self._job is not None and self._job.plan is not None:
                self.plan = self._job.plan
            if record["state"] in ENDED and self.plan is not None:
                self.session.plan = self.plan
            self.failure = record["text"] if record["state"] == "failed" else ""
            self.state = record["state"]
            if self.failure:
                self.session.notify("error", self.failure)

    # -- what the page says -----------------------------------------------------------------------

    @property
    def estimate(self) -> Estimate | None:
        """Of the best plan so far."""
        return self.plan.estimate if self.plan is not None else None

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """Label and value of the baseline that is hardest to beat."""
        return None if self.outdated else min(self.baselines.items(), key=lambda item: item[1], default=None)

    @property
    def bound(self) -> float | None:
        """What no plan of the current settings can be below, where that is known."""
        return None if self.outdated else self.lower_bound

    @property
    def gap(self) -> float | None:
        """Share of the best value that lies above the lower bound."""
        if not self.value or self.bound is None:
            return None
        return max(0.0, 1.0 - self.bound / self.value)

    @property
    def found_text(self) -> str:
        """What the search has found so far, in a line under its curve."""
        if self.outdated and self.points and self.request is not None:
            objective = self.request.problem.objective
            return f"A search of the settings before; its best: {value_text(self.points[-1].best, objective)}"
        if self.value is None:
            return ""
        # While it searches the card of the step time says it: the two would differ by what came in between.
        parts = [] if self.searching else [f"Best {value_text(self.value, self.objective)}"]
        if self.searching and self.points and self.points[-1].high > self.points[-1].low:
            last = self.points[-1]
            both = (value_text(v, self.objective) for v in (last.low, last.high))
            parts.append(f"population {' to '.join(both)}")
        if self.gap is not None and self.bound:
            bound = value_text(self.bound, self.objective)
            within = f"at most {percent_text(self.gap, 0)} can still be gained" if self.gap > 1e-9 else "proven optimal"
            parts.append(f"no plan is below {bound}: {within}")
        return " · ".join(parts)

    @property
    def elapsed_s(self) -> float:
        """Wall time since the search was asked for."""
        return self._job.elapsed_s if self._job is not None else 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the search has not begun to spend its budget: its process starts, or kernels are loaded."""
        return self.state == "starting" or (self.searching and (not self.points or self.phase == LOADING))

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0 to 1; loading kernels spends nothing of it."""
        if self.state in ("done", "stopped"):
            return 1.0
        budget_s = self._job.request.budget_s if self._job else None
        if self.is_waiting or not self.points or not budget_s:
            return 0.0
        return min(1.0, self.points[-1].spent_s / budget_s)

    @property
    def bar(self) -> float | None:
        """What a bar shows: the share of the budget, or of kernels while these are prepared; None: not known."""
        if self._kernels and (self._job is None or self.is_waiting):
            return self._service.kernels.share
        return None if self.is_waiting else self.progress

    @property
    def progress_text(self) -> str:
        """One line under the progress bar."""
        if self._job is None:
            words = self._kernels[:1].upper() + self._kernels[1:]
            return f"{words}; a search can begin without them." if words else "Not searched yet."
        if self.state in ENDED:
            return self._ended_text()
        if self.state == "stopping":
            return "stopping …"
        if self.is_waiting:
            return self._waiting_text()
        last = self.points[-1]
        counted = f"{last.evaluations:,} placements in {last.spent_s:.1f} s"
        left_s = (self._job.request.budget_s or 0.0) - last.spent_s
        judging = left_s <= 0 or self.phase in LAST_PHASES
        return f"{self.phase}: {counted}, " + ("comparing the best plans" if judging else f"{left_s:.0f} s left")

    def _waiting_text(self) -> str:
        if self.phase != LOADING:
            return f"{self.phase} …"
        last = self.points[-1] if self.points else None
        if last is None or last.evaluations == self.points[0].evaluations:
            return f"{LOADING} …"
        what = self._kernels or "preparing kernels, once per installation"
        return f"{what}: {last.evaluations:,} placements without them so far; the budget has not begun."

    def _ended_text(self) -> str:
        if not self.points:
            return {"failed": "The search failed.", "stopped": "Stopped."}.get(self.state, "Done.")
        last = self.points[-1]
        offset_s = self._job.request.offset_s if self._job else 0.0
        before_s = last.searched_s - offset_s - last.spent_s
        said = {"done": "Done", "stopped": "Stopped", "failed": "Failed"}[self.state]
        text = f"{said}: {last.evaluations:,} placements in {last.searched_s - offset_s:.1f} s"
        return f"{text}; {before_s:.0f} s of them before kernels were ready" if before_s >= 1 else text


def _when_text(unix_s: float) -> str:
    """A time of today, or a day and a time."""
    then = time.localtime(unix_s)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%d %b %H:%M:%S", then)


def thinned(points: list[SearchEvent], most: int) -> list[SearchEvent]:
    """At most `most` points, the older half thinned first; the newest always stays."""
    if len(points) <= most:
        return points
    half = len(points) // 2
    return points[:half:2] + points[half:]


def _event_of(record: Mapping[str, Any], offset_s: float) -> SearchEvent:
    return SearchEvent(
        best=record["best"],
        low=record["low"],
        median=record["median"],
        high=record["high"],
        evaluations=record["evaluations"],
        seconds=record["seconds"],
        placement=(),
        phase=record["phase"],
        spent_s=record["spent_s"],
        searched_s=record["searched_s"] + offset_s,
    )
