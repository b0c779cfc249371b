"""What a fixed number of stages or replicas costs: a second search, behind the first one, in which both are auto."""

from dataclasses import replace

import param

from hetplanner.errors import InvalidInput
from hetplanner.ui.jobs.jobs import SearchJob, SearchRequest, SearchService
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import value_text

MOST_BUDGET_S = 10.0
"""Longest search behind."""
WORTH_SAYING = 0.005
"""Values that differ by less are called the same."""


class FreeShapeModel(param.Parameterized):
    """Starts when a search with a fixed shape is done, and ends when another one begins."""

    changed = param.Event(doc="What it says has changed.")

    def __init__(self, session: Session, plan: PlanModel, service: SearchService) -> None:
        super().__init__()
        self.session, self.plan, self._service = session, plan, service
        self._job: SearchJob | None = None
        self._told = ""
        plan.param.watch(self._search_changed, "state")
        plan.param.watch(self._tell, ["plan", "outdated"])

    def _search_changed(self, *_: object) -> None:
        request = self.plan.request
        if self.plan.state == "starting":
            self._end()
        elif self.plan.state == "done" and request is not None and self._job is None:
            self._begin(request)
        self._tell()

    def _begin(self, request: SearchRequest) -> None:
        problem = request.problem
        wanted = problem.constraints
        if (
            request.budget_s is None
            or problem.objective == "dtfm"
            or (wanted.stages is None and wanted.replicas is None)
        ):
            return
        problem = problem.replace(constraints=wanted.replace(stages=None, replicas=None))
        for job in self._service.jobs:  # after a reload it is there already
            if job.request.behind and job.request.problem == problem:
                self._job = job
                return
        budget_s = min(request.budget_s, MOST_BUDGET_S)
        title = f"{problem.workload.name} on {problem.cluster.name}, auto shape, {request.planner}"
        behind = replace(request, problem=problem, budget_s=budget_s, bound_s=0.0, title=title, behind=True)
        behind = replace(behind, start=None, continues="", offset_s=0.0)
        try:
            self._job = self._service.start(behind)
        except InvalidInput:  # others search, and this one is optional
            self._job = None

    def _end(self) -> None:
        if self._job is not None and not self._job.ended:
            self._service.stop(self._job.id)
        self._job = None

    def poll(self) -> None:
        """Looks whether the search behind has come further; cheap."""
        if self._job is not None:
            self._tell()

    def _tell(self, *_: object) -> None:
        text = self.text
        if text != self._told:
            self._told = text
            self.param.trigger("changed")

    def take(self) -> None:
        """Makes the plan of the search behind the current one; the settings are auto then."""
        if self._job is not None and self.can_take:
            job, self._job = self._job, None
            self.plan.join(job.id)

    # -- what the page says -----------------------------------------------------------------------

    @property
    def can_take(self) -> bool:
        """Whether the plan of the search behind is better."""
        gain = self._gain
        return gain is not None and gain > WORTH_SAYING

    @property
    def _gain(self) -> float | None:
        job, value = self._job, self.plan.value
        if job is None or job.state != "done" or job.plan is None or job.value is None or not value:
            return None
        return 1 - job.value / value

    @property
    def text(self) -> str:
        """What the fixed shape costs against auto, in a line; '' where that is not known."""
        job, request = self._job, self.plan.request
        if job is None or request is None or self.plan.outdated or self.plan.searching:
            return ""
        if not job.ended:
            return "A second search measures the cost of the fixed stages and replicas …"
        gain = self._gain
        if gain is None:
            return ""
        wanted, objective = request.problem.constraints, request.problem.objective
        shape = f"{wanted.stages or 'auto'} × {wanted.replicas or 'auto'}"
        both = f"{shape}: {value_text(self.plan.value, objective)}; auto: {value_text(job.value, objective)}."
        return both if self.can_take else f"{both} Fixing them costs nothing here."
