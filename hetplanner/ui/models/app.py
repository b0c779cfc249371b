"""All view-models of one browser session, and how they hang together."""

from pathlib import Path

import param

from hetplanner.ui.access import LaunchGuard
from hetplanner.ui.jobs import SearchService
from hetplanner.ui.models.cluster import ClusterModel
from hetplanner.ui.models.plan import PlanModel
from hetplanner.ui.models.run import RunModel
from hetplanner.ui.models.session import Session


class PlannerApp(param.Parameterized):
    """One session. A page is a view of `cluster`, `plan` or `run`; Export is a view of `session.plan`."""

    def __init__(self, guard: LaunchGuard, service: SearchService, samples: Path, home: Path | None = None) -> None:
        super().__init__()
        self.session = Session(guard)
        self.cluster = ClusterModel(self.session, samples)
        self.plan = PlanModel(self.session, service)
        self.run = RunModel(self.session, service, home)
        self.cluster.param.watch(self._cluster_changed, "cluster")
        self.plan.param.watch(self._plan_changed, "cluster")
        self.cluster.choose_default()

    def _cluster_changed(self, event: param.parameterized.Event) -> None:
        self.plan.cluster = event.new

    def _plan_changed(self, event: param.parameterized.Event) -> None:
        # A joined search brings its own cluster along.
        if event.new is not self.cluster.cluster and event.new is not None:
            self.cluster.adopt(event.new)

    def search(self) -> None:
        """Starts a search and opens the Plan page."""
        self.plan.start()
        if self.plan.searching:
            self.session.page = "plan"

    def rehearse(self) -> None:
        """Re-plans a small rehearsal of the problem in hand and opens the Run page."""
        with self.session.reporting():
            plan = self.session.plan
            self.run.launch.prepare_rehearsal(plan.problem if plan is not None else self.plan.problem())
            self.session.page = "run"

    def restore(self, page: str, job_id: str, run_id: str) -> None:
        """What the page's address remembers over a reload; unknown values are ignored."""
        if job_id:
            self.plan.join(job_id)
        if run_id:
            self.run.select(run_id)
        if page in self.session.param.page.objects:
            self.session.page = page
