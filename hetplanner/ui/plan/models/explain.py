"""What helps to understand a plan: why it is as it is, what if, the kept ones; all about the current plan."""

import json
from pathlib import Path
from typing import Any

import param

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.schema import parse_json
from hetplanner.ui.jobs.compute import ComputeWorker
from hetplanner.ui.plan.models.kept import KeptModel
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.plan.models.whatif import WhatIfModel
from hetplanner.ui.plan.models.why import WhyModel
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import device_text, site_text, stage_text

MAX_REMEMBERED = 2000
"""Characters of changes that the address takes."""


class ExplainModel(param.Parameterized):
    """Follows the Plan page's plan.

    Attributes:
        shown: name of the kept plan that is shown; '' when it is a search's.
        focus: what a person clicked: ('device', id), ('stage', '3'), ('site', name) or ('', '').
    """

    shown = param.String(default="")
    focus = param.Tuple(default=("", ""), length=2)

    def __init__(self, session: Session, plan: PlanModel, compute: ComputeWorker, home: Path | None = None) -> None:
        super().__init__()
        self.session, self.plan = session, plan
        self.why = WhyModel(session, compute)
        self.whatif = WhatIfModel(session, compute)
        self.kept = KeptModel(session, home)
        plan.param.watch(self._plan_changed, ["plan", "state"])
        plan.param.watch(self._search_began, "job_id")
        self.kept.param.watch(self._kept_changed, "kept")

    def _plan_changed(self, *_: Any) -> None:
        plan = self.plan.plan
        if plan is not self.whatif.plan:
            self.whatif.plan = plan
            self.set_focus(*self.focus)
        # While it searches the plan changes faster than it could be read.
        self.why.explain(None if self.plan.searching else plan)

    def _search_began(self, event: param.parameterized.Event) -> None:
        if event.new:
            self.shown = ""

    def _kept_changed(self, *_: Any) -> None:
        if self.shown and self.shown not in self.kept.names:
            self.shown = ""

    def poll(self) -> None:
        """Answers of the compute worker, and the folder of kept plans."""
        self.why.poll()
        self.whatif.poll()
        self.kept.poll()

    # -- verbs ------------------------------------------------------------------------------------

    @property
    def can_keep(self) -> bool:
        """Whether there is a current plan and its search has ended."""
        return self.plan.plan is not None and not self.plan.searching

    def keep(self) -> None:
        """Keeps the current plan under the name that was typed, or a suggested one."""
        if self.plan.plan is not None:
            self.kept.keep(self.swarm or self.plan.plan)

    @property
    def swarm(self) -> ElasticPlan | None:
        """The elastic plan whose steady-state step the page shows, if it does."""
        return self.session.elastic if self.plan.plan is self.session.plan else None

    def keep_outcome(self) -> None:
        """Keeps the plan under the changes."""
        if self.whatif.outcome is not None:
            self.kept.keep(self.whatif.outcome.plan)

    def open(self, name: str) -> None:
        """Shows a kept plan with its problem; Run and Export work with it then."""
        plan = self.kept.load(name)
        if plan is not None and self._show(plan):
            self.shown = name

    def search_again(self) -> None:
        """Searches under the changes, from the changed plan where the planner can start from one."""
        outcome = self.whatif.outcome
        if outcome is None or self.plan.searching:
            return
        self.whatif.clear()
        if self._show(outcome.plan):
            if self.plan.can_resume:
                self.plan.resume()
            else:
                self.plan.start()

    def _show(self, plan: AnyPlan) -> bool:
        if self.plan.searching:
            self.session.notify("warning", "A search is going on; stop it first, or wait.")
            return False
        self.plan.show(plan)
        return True

    def set_focus(self, kind: str, name: str) -> None:
        """What a person clicked on the map or in the grid; what the plan does not have lets go."""
        self.focus = (kind, name) if self._has(kind, name) else ("", "")

    def _has(self, kind: str, name: str) -> bool:
        plan = self.plan.plan
        if plan is None:
            return False
        if kind == "device":
            return name in plan.ranks
        if kind == "stage":
            return name.isdecimal() and int(name) < len(plan.stages)
        return kind == "site" and any(site.name == name for site in plan.problem.cluster.sites)

    @property
    def focus_text(self) -> str:
        """What is clicked, in a line; '' without anything."""
        kind, name = self.focus
        plan = self.plan.plan
        if plan is None or not kind:
            return ""
        if kind == "device":
            return device_text(plan, name)
        if kind == "stage":
            return stage_text(plan, int(name))
        return site_text(plan, name)

    # -- the address ------------------------------------------------------------------------------

    def remembered(self) -> dict[str, str]:
        """What the address takes up."""
        changes = self.whatif.changes.to_data()
        text = json.dumps(changes, separators=(",", ":"), ensure_ascii=False) if changes else ""
        return {
            "shown": self.shown,
            "kept": ",".join(self.kept.chosen),
            "whatif": text if len(text) <= MAX_REMEMBERED else "",
        }

    def restore(self, kept: str, changes: str) -> None:
        """What the address remembers, once the plan is shown again; unknown names are ignored."""
        self.kept.restore(kept)
        if changes:
            with self.session.reporting():
                self.whatif.restore(parse_json(changes[:MAX_REMEMBERED], "address: whatif"))
