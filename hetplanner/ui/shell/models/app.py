"""All view-models of one browser session, and how they hang together."""

from collections.abc import Callable
from pathlib import Path

import param

from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.ui.cluster.models.cluster import ClusterModel
from hetplanner.ui.cluster.models.draft_files import process_drafts
from hetplanner.ui.cluster.models.drafts import DraftStore
from hetplanner.ui.cluster.models.drawing import DrawingModel
from hetplanner.ui.cluster.models.exchange import ExchangeModel
from hetplanner.ui.cluster.models.link_tables import LinkTables
from hetplanner.ui.cluster.models.links import LinksModel
from hetplanner.ui.cluster.models.probe import ProbeModel
from hetplanner.ui.cluster.models.profile import ProfileModel
from hetplanner.ui.export.model import ExportModel
from hetplanner.ui.jobs.compute import ComputeWorker, process_compute
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.jobs.probe_jobs import ProbeJobs, process_probes
from hetplanner.ui.plan.models.carry import CarryModel
from hetplanner.ui.plan.models.explain import ExplainModel
from hetplanner.ui.plan.models.free_shape import FreeShapeModel
from hetplanner.ui.plan.models.front import FrontModel
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.settings.models.form import SettingsForm
from hetplanner.ui.shell.models.agent import AgentWatch
from hetplanner.ui.shell.models.recent import RecentModel
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.simulate.model import SimulateModel


class PlannerApp(param.Parameterized):
    """One session. A page is a view of `cluster`, `plan`, `simulate` or `run`; Export is one of the current plan."""

    def __init__(
        self,
        guard: LaunchGuard,
        service: SearchService,
        samples: Path,
        home: Path | None = None,
        drafts: DraftStore | None = None,
        compute: ComputeWorker | None = None,
        probes: ProbeJobs | None = None,
    ) -> None:
        super().__init__()
        self.session = Session(guard)
        self.cluster = ClusterModel(self.session, samples, drafts or process_drafts(home))
        self.exchange = ExchangeModel(self.cluster)
        self.links = LinksModel(self.session, self.cluster.editor)
        self.link_tables = LinkTables(self.links)
        self.drawing = DrawingModel(self.session, self.cluster.editor, self.links)
        self.probe = ProbeModel(self.session, self.cluster.editor, probes or process_probes(home), home)
        self.plan = PlanModel(self.session, service)
        self.profile = ProfileModel(self.session, self.plan)
        self.carry = CarryModel(self.session, self.plan, compute or process_compute())
        self.free_shape = FreeShapeModel(self.session, self.plan, service)
        self.settings = SettingsForm(self.plan)
        self.front = FrontModel(self.session, self.plan, service, self.take_from_front)
        self.explain = ExplainModel(self.session, self.plan, compute or process_compute(), home)
        self.simulate = SimulateModel(self.session, lambda: compute or process_compute("long"))
        self.export = ExportModel(self.session, self.open_plan)
        self.run = RunModel(self.session, service, home)
        self.agent = AgentWatch(home)
        self.recent = RecentModel(self.session, service, home)
        self.cluster.editor.param.watch(self._cluster_changed, ["cluster", "excluded"])
        self.plan.param.watch(self._plan_changed, "cluster")
        self.plan.param.watch(self._excluded_typed, "excluded")
        self.cluster.choose_default()

    def _cluster_changed(self, *_: param.parameterized.Event) -> None:
        editor = self.cluster.editor
        self.plan.param.update(cluster=editor.cluster, excluded=list(editor.excluded))

    def _plan_changed(self, event: param.parameterized.Event) -> None:
        # A joined search brings its own cluster along.
        if event.new is not self.cluster.editor.cluster and event.new is not None:
            words = f"opened the cluster of a search, {event.new.name}"
            self.cluster.adopt(event.new, words, tuple(self.plan.excluded))

    def _excluded_typed(self, event: param.parameterized.Event) -> None:
        # Typed in the side bar it is an edit like a click on the map: shown there, and undone there.
        editor = self.cluster.editor
        if self.plan.cluster is editor.cluster and set(event.new) != set(editor.excluded):
            words = f"excluded {len(event.new)} devices" if event.new else "excluded no device"
            with self.session.reporting():
                editor.apply(editor.cluster, words, excluded=event.new)

    def poll_answers(self) -> None:
        """Takes what other processes have answered."""
        self.carry.poll()
        self.free_shape.poll()
        self.explain.poll()
        self.probe.poll()

    def search(self) -> None:
        """Starts a search and opens the Plan page."""
        self._start(self.plan.start)

    def resume(self) -> None:
        """Searches on from the best plan."""
        self._start(self.plan.resume)

    def reseed(self) -> None:
        """Searches with another seed."""
        self._start(self.plan.reseed)

    def _start(self, act: Callable[[], None]) -> None:
        refusal = self.settings.refusal()
        if refusal:
            self.session.notify("error", refusal)
            return
        act()
        if self.plan.searching:
            self.session.page = "plan"

    def search_again(self) -> None:
        """Searches under the changes of the what-if card, from its plan."""
        self._start(self.explain.search_again)

    def open_plan(self, plan: AnyPlan, name: str) -> None:
        """Makes a plan from a file or a derivation the current plan of all pages, and keeps it.

        A kept plan is found again after a reload; `name` is a wish.
        """
        self.session.take(plan)
        name = self.explain.kept.keep_as(plan, name)
        if name:
            self.explain.open(name)

    def save_derived(self) -> None:
        """The plan that the Simulate page shows becomes the current plan."""
        plan, changed = self.simulate.shown, self.simulate.is_derived
        if plan is not None and self.simulate.can_save:
            self.simulate.save()
            if changed:
                self.open_plan(plan, f"{self.explain.kept.suggest(plan)} derived")

    def take_from_front(self, plan: Plan) -> None:
        """The plan that is chosen on the front becomes the current plan."""
        self.open_plan(plan, f"{self.explain.kept.suggest(plan)} of the front")

    def open_recent(self, kind: str, key: str) -> None:
        """Goes back to an entry of the start page; see `RecentModel`. What is gone meanwhile is a notice."""
        opened = {
            "clusters": self._reopen_cluster,
            "searches": self._reopen_search,
            "plans": self._reopen_plan,
            "runs": self._reopen_run,
        }
        page = opened[kind](key)
        if page:
            self.session.page = page

    def _reopen_cluster(self, draft_id: str) -> str:
        return "cluster" if self.cluster.editor.open(draft_id) else self._gone("cluster")

    def _reopen_search(self, job_id: str) -> str:
        if job_id == self.plan.job_id:
            return "plan"
        if self.plan.searching:
            self.session.notify("warning", "A search is going on; stop it first, or wait.")
            return ""
        return "plan" if self.plan.join(job_id) else self._gone("search")

    def _reopen_plan(self, name: str) -> str:
        self.explain.open(name)  # tells what goes wrong
        return "plan" if self.explain.shown == name else ""

    def _reopen_run(self, run_id: str) -> str:
        self.run.select(run_id)
        return "run" if self.run.selected == run_id else self._gone("run")

    def _gone(self, noun: str) -> str:
        self.session.notify("warning", f"The {noun} is no longer there; its file was removed or changed meanwhile.")
        return ""

    def rehearse(self) -> None:
        """Re-plans a small rehearsal of the current problem and opens the Run page."""
        with self.session.reporting():
            plan = self.session.plan
            problem = plan.problem if plan is not None else self.plan.problem()
            self.run.launch.prepare_rehearsal(problem, like=self.session.elastic)
            self.session.page = "run"

    def restore(self, page: str, job_id: str, run_id: str, draft_id: str = "", shown: str = "") -> None:
        """What the page's address remembers over a reload; unknown values are ignored."""
        if job_id:
            self.plan.join(job_id)
        if shown in self.explain.kept.names:
            self.explain.open(shown)
        if draft_id:
            # After the search or the kept plan: the cluster may have been edited since.
            self.cluster.open_draft(draft_id)
        if run_id:
            self.run.select(run_id)
        if page in self.session.param.page.objects:
            self.session.page = page
