"""The front of step time and dollars: its search, its points, and the one that a person looks at."""

from collections.abc import Callable
from typing import Any

import param

from hetplanner.errors import HetplannerError
from hetplanner.plan.estimate import left_out_text
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import LOADING
from hetplanner.ui.jobs.jobs import ENDED, SearchJob, SearchRequest, SearchService
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.settings.models.problem import PROBLEM_SETTINGS
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import count_text, counted, seconds_text

PLANNER = "pareto"
WORTH_SAYING = 0.02
"""Share by which a plan of the front is faster than the current one before the card says so."""
_PHASES = {"step-time": "the fastest plan", "cost": "the cheapest plan", "between": "plans between", "done": "done"}


class FrontModel(param.Parameterized):
    """Plans of which none is both faster and cheaper than another, for the problem of the side bar in any shape."""

    state = param.String(default="idle", doc="idle, or the state of the job.")
    changed = param.Event(doc="There are other points, or another one is chosen.")
    clock_changed = param.Event(doc="What the search says has changed.")
    chosen: Any = param.Integer(default=None, allow_None=True, doc="Row of the point that is looked at.")

    def __init__(
        self, session: Session, plan: PlanModel, service: SearchService, on_take: Callable[[Plan], object]
    ) -> None:
        """`on_take` makes a plan the current one."""
        super().__init__()
        self.session, self.plan, self._service, self._on_take = session, plan, service, on_take
        self._job: SearchJob | None = None
        self._cursor = 0
        self._last: dict[str, Any] = {}
        self.points: list[tuple[float, float]] = []
        self.rows: list[dict[str, Any]] = []
        self.least: tuple[float, float] | None = None
        self.param.watch(lambda _: self.param.trigger("changed"), "chosen")
        plan.param.watch(self._find, [*PROBLEM_SETTINGS, "settled"])
        plan.param.watch(lambda _: self.param.trigger("clock_changed"), ["plan", "outdated"])

    @property
    def searching(self) -> bool:
        """Whether this session's search for a front is going on."""
        return self.state in ("starting", "running", "stopping")

    def start(self) -> None:
        """Starts the search with the side bar's budget and seed; a wrong setting becomes a notice."""
        if self.searching:
            return
        with self.session.reporting():
            problem = self._problem()
            title = f"front of {problem.workload.name} on {problem.cluster.name}"
            budget_s = min(self.plan.budget_s, self.plan.budget_cap_s)
            request = SearchRequest(problem, PLANNER, what="front", seed=self.plan.seed, budget_s=budget_s, title=title)
            self._follow(self._service.start(request))

    def _problem(self) -> Problem:
        """Of any shape: what a front is made of is using more or fewer devices."""
        problem = self.plan.problem()
        constraints = problem.constraints.replace(stages=None, replicas=None)
        return problem.replace(objective="step-time", constraints=constraints)

    def stop(self) -> None:
        """Asks the search to stop; the front so far stays."""
        if self._job is not None:
            self._service.stop(self._job.id)
            self.poll()

    def _find(self, *_: Any) -> None:
        """After a reload, a change of settings and for another page: the newest front of this problem on this server.

        One of other settings is not shown: its plans are not of the current problem.
        """
        if self.plan.taking:
            return
        try:
            problem = self._problem()
        except HetplannerError:
            problem = None
        if self._job is not None and self._job.request.problem == problem:
            return
        if self.searching:
            self.stop()
        for job in self._service.jobs:
            if job.request.what == "front" and job.request.problem == problem:
                self._follow(job)
                return
        self._clear()

    def _clear(self) -> None:
        self._job, self._cursor, self._last = None, 0, {}
        self.points, self.rows, self.least = [], [], None
        self.param.update(state="idle", chosen=None)
        self.param.trigger("changed")

    def _follow(self, job: SearchJob) -> None:
        self._clear()
        self._job = job
        self.state = "starting"
        self.poll()

    def poll(self) -> None:
        """Takes what is new from the job's log; cheap when nothing is."""
        job = self._job
        if job is None or (self.state in ENDED and self._cursor):
            return
        records, self._cursor = job.log.since(self._cursor)
        for record in records:
            self._take(record, job)
        if records or self._is_loading:
            self.param.trigger("clock_changed")
        if any(record["type"] == "front" or "rows" in record for record in records):
            self.param.trigger("changed")

    def _take(self, record: dict[str, Any], job: SearchJob) -> None:
        if record["type"] == "front":
            self.points, self._last = [(s, usd) for s, usd in record["points"]], record
            if self.state == "starting":
                self.state = "running"
        elif record["type"] == "state":
            if "rows" in record:
                self.rows = record["rows"]
                self.points = [(row["step_s"], row["usd_per_mtoken"]) for row in self.rows]
                self.least = record["least_step_s"], record["least_usd_per_mtoken"]
            self.state = record["state"]
            if self.state == "failed":
                self.session.notify("error", record["text"])

    # -- looking at a point -----------------------------------------------------------------------

    def choose(self, number: int) -> None:
        """Looks at a plan of the finished front; another than there are is ignored."""
        if 0 <= number < len(self.rows):
            self.chosen = number

    def step(self, by: int) -> None:
        """The next cheaper (1) or faster (-1) plan."""
        self.choose((by < 0) * (len(self.rows) - 1) if self.chosen is None else self.chosen + by)

    @property
    def chosen_plan(self) -> Plan | None:
        """The plan that is looked at."""
        if self._job is None or self.chosen is None or self.chosen >= len(self._job.front):
            return None
        return self._job.plan_on_front(self.chosen)

    def take(self) -> None:
        """Makes the chosen plan the current one."""
        with self.session.reporting():
            plan = self.chosen_plan
            if plan is not None and not self.plan.searching:
                self._on_take(plan)

    # -- what the card says -----------------------------------------------------------------------

    @property
    def _is_loading(self) -> bool:
        return self.searching and self._last.get("phase", LOADING) == LOADING

    @property
    def text(self) -> str:
        """Where the search stands, in a line."""
        if self._job is None:
            return (
                "Plans of which none is both faster and cheaper than another. All shapes are tried, whatever Stages and"
                " Replicas say, with the budget of the side bar."
            )
        if self.state == "failed":
            return f"The search failed: {self._job.message}"
        if self.state in ENDED:
            said = "Stopped" if self.state == "stopped" else "Done"
            hint = " Click a point, or step through them." if len(self.rows) > 1 else ""
            return f"{said}: {len(self.rows)} plans, none beaten in both.{hint}{self._against_plan_text}"
        if self.state == "stopping":
            return "stopping …"
        if self._is_loading:
            elapsed_s = self._job.elapsed_s
            return f"{LOADING} for {elapsed_s:.0f} s" if self._last else "starting the search …"
        left_s = max(0.0, (self._job.request.budget_s or 0.0) - self._last["spent_s"])
        phase = _PHASES.get(self._last["phase"], self._last["phase"])
        return f"{phase}: {self._last['evaluations']:,} layouts, {len(self.points)} on the front, {left_s:.0f} s left"

    @property
    def _against_plan_text(self) -> str:
        """Whether the fastest plan of the front beats the current one, after a space; else ''."""
        estimate = self.plan.estimate
        if not self.rows or estimate is None or self.plan.outdated:
            return ""
        fastest_s = min(row["step_s"] for row in self.rows)
        if fastest_s >= estimate.step_s * (1 - WORTH_SAYING):
            return ""
        both = f"{seconds_text(fastest_s)} against {seconds_text(estimate.step_s)}"
        return f" Its fastest plan is faster than the current plan ({both}): choose it to take it."

    @property
    def word(self) -> str:
        """What the throughput of the front's plans counts."""
        return self._job.request.problem.workload.token_word if self._job is not None else "tokens"

    @property
    def chosen_text(self) -> str:
        """The chosen plan in a line."""
        if self.chosen is None or self.chosen >= len(self.rows):
            return ""
        row, word = self.rows[self.chosen], self.word
        left_out = left_out_text(row["unpriced_egress_bytes"])
        shape = (
            f"{counted(row['stages'], 'stage')} × {counted(row['pipelines'], 'pipeline')} on {row['devices']} devices"
        )
        return (
            f"{shape}: {seconds_text(row['step_s'])} a step, {count_text(row['tokens_per_s'])} {word}/s,"
            f" ${row['usd_per_mtoken']:.3g} per million {word}{f' {left_out}' if left_out else ''};"
            f" bottleneck: {row['bottleneck']}"
        )
