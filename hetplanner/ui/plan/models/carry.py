"""Keeps the current plan one of the current settings: every change estimates it anew, at once, or marks it."""

from contextlib import suppress
from typing import Any

import param

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.layout import value_of
from hetplanner.ui.jobs.compute import ComputeWorker, Ticket
from hetplanner.ui.jobs.plan_bodies import plan_of_body
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.settings.models.differences import differences_text
from hetplanner.ui.settings.models.problem import PROBLEM_SETTINGS
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import change_text, plan_name, value_text

SWARM = "a swarm's plan is not estimated again"
SAME = 0.005
"""Values that differ by less are called the same."""
BEFORE = "the search is for the settings before"


class CarryModel(param.Parameterized):
    """Follows the settings and the plan of the Plan page.

    The plan that a search or a file gave is its origin. While the settings ask for another problem, the page's plan is
    the origin carried over to that problem; where it cannot be, the origin stays, marked with the reason.

    Attributes:
        state: `current`: the plan is as it was found. `asking`: its estimate under the settings is on its way.
            `carried`: the plan is one of the settings, not the one that was found. `outdated`: the plan is of other
            settings, for `reason`.
    """

    state: Any = param.Selector(default="current", objects=["current", "asking", "carried", "outdated"])
    reason = param.String(default="")
    changed = param.Event(doc="What the page says about the plan has changed.")

    def __init__(self, session: Session, plan: PlanModel, compute: ComputeWorker) -> None:
        super().__init__()
        self.session, self.plan, self._compute = session, plan, compute
        self.origin: Plan | None = None
        self._carried: Plan | None = None
        self._own: Problem | None = None
        """What the settings gave when the origin was opened: it may be written otherwise than the plan's problem."""
        self._wanted: Problem | None = None
        self._ticket: Ticket | None = None
        self._named: tuple[AnyPlan | None, str] = (None, "")
        plan.param.watch(self._plan_changed, "plan", onlychanged=False)
        plan.param.watch(self.check, [*PROBLEM_SETTINGS, "state", "settled"])
        session.param.watch(self.check, "elastic")

    def _plan_changed(self, event: param.parameterized.Event) -> None:
        if event.new is self._carried and event.new is not None:
            return
        self.origin, self._carried, self._own = event.new, None, None
        if event.new is not None and not self.plan.job_id:
            with self.session.reporting():
                self._own = self._with_groups(self.plan.problem())
        self.check()

    def check(self, *_: Any) -> None:
        """Compares the settings with the problem of the plan."""
        if self.plan.taking:
            return
        self._ticket = None
        try:
            asked = self.plan.problem()
            self._wanted = wanted = self._with_groups(asked)
        except HetplannerError as error:
            self.plan.outdated = True
            self._mark(f"the settings cannot be planned for: {error}")
            return
        self.plan.outdated = self.plan.is_of_other_settings(asked)
        if self.origin is None:
            self._set("current")
        elif wanted == self.origin.problem or (self._own is not None and wanted == self._own):
            self._show(self.origin, "current")
        elif self._carried is not None and wanted == self._carried.problem:
            self._show(self._carried, "carried")
        elif self.plan.searching:
            self._mark(BEFORE)
        elif self.session.elastic is not None and self.session.plan is self.origin:
            self._mark(SWARM)
        else:
            self._ask(wanted)

    def _with_groups(self, wanted: Problem) -> Problem:
        """The settings' problem with the groups of the plan, which a search had chosen, as long as they may stay."""
        old = None if self.origin is None else self.origin.problem
        names = ("tensor", "sharding")
        if old is None or old.groups is None:
            return wanted
        if all(getattr(wanted.constraints, name) == getattr(old.constraints, name) for name in names):
            with suppress(InvalidInput):  # the cluster is another
                return wanted.replace(groups=old.groups)
        return wanted

    def _ask(self, wanted: Problem) -> None:
        assert self.origin is not None
        fields = {"problem": wanted.model_dump(mode="json", by_alias=True, exclude_none=True)}
        self._set("asking")
        slot = f"{self.session.id} carry"
        self._ticket = self._compute.ask(slot, "carry", self.origin, fields, self.session.answered)

    def poll(self) -> None:
        """Takes the answer when it is there."""
        ticket = self._ticket
        if ticket is None or not ticket.done:
            return
        self._ticket = None
        if ticket.stale:
            self.check()  # others asked more than the compute worker keeps waiting
        elif ticket.result is None:
            self._mark(ticket.error)
        else:
            self._take(ticket.result["plan"])

    def _take(self, body: dict[str, Any]) -> None:
        try:
            assert self._wanted is not None
            self._carried = plan_of_body(self._wanted, body, "plan", Plan)
        except HetplannerError as error:
            self._mark(str(error))
        else:
            self._show(self._carried, "carried")

    def _mark(self, reason: str) -> None:
        """The plan stays the one that was found, and the page says why."""
        if self.origin is None:
            self._set("current")
        else:
            self._show(self.origin, "outdated", reason)

    def _show(self, plan: Plan, state: str, reason: str = "") -> None:
        if self.plan.plan is not plan:
            in_hand = self.session.plan is self.plan.plan
            with param.parameterized.batch_call_watchers(self.plan):
                self.plan.param.update(plan=plan, value=_value(plan))
            if in_hand:
                self.session.plan = plan
        self._set(state, reason)

    def _set(self, state: str, reason: str = "") -> None:
        self.param.update(state=state, reason=reason[:600])
        self.param.trigger("changed")

    # -- verbs ------------------------------------------------------------------------------------

    def back(self) -> None:
        """The settings that the plan was found for."""
        if self.origin is None or self.plan.searching:
            return
        if not self.plan.job_id or not self.plan.join(self.plan.job_id):
            self.plan.show(self.origin)

    # -- what the page says -----------------------------------------------------------------------

    @property
    def subject(self) -> str:
        """The plan that the pages show, by model, cluster, shape and digest."""
        if self.plan.searching:
            return "a search is going on; its best plan so far is shown."
        plan = self.plan.plan
        if plan is None:
            return "none yet. Press Search, or open one on the Export page."
        text = f"{self._name(plan)}."
        if self.session.in_hand is not None and self.session.plan is not plan:
            text += f" Export and Run work with {self._name(self.session.in_hand)}."
        return text

    def _name(self, plan: AnyPlan) -> str:
        """`plan_name`, whose digest of a large plan takes a moment, once."""
        if self._named[0] is not plan:
            self._named = plan, plan_name(plan)
        return self._named[1]

    @property
    def words(self) -> str:
        """What became of the plan under the current settings; '' while it is of them."""
        if self.state == "current" or self.origin is None:
            return ""
        if self.state == "asking":
            return "The settings have changed; the plan is estimated again …"
        changed = differences_text(self.origin.problem, self._wanted) if self._wanted is not None else ""
        if self.state == "outdated":
            lead = f"Changed since: {changed}. " if changed else ""
            return f"{lead}These figures are of the settings before: {self.reason}."
        assert self._carried is not None
        return f"Changed since: {changed}. {self._was_text(self._carried)} Search again?"

    def _was_text(self, now: Plan) -> str:
        assert self.origin is not None
        objective = now.problem.objective
        new = value_text(_value(now), objective)
        if self.origin.problem.objective != objective:
            return f"The same plan is at {new} now."
        old, value = _value(self.origin), _value(now)
        if old and value and abs(value - old) < SAME * old:
            return f"The plan stays at {new}."
        by = change_text(value, old)
        return f"Was {value_text(old, objective)}, is now {new}{f' ({by})' if by else ''}."


def _value(plan: Plan) -> float | None:
    """What the objective gives the plan; None where prices are unknown."""
    try:
        return value_of(plan) if plan.estimate is not None else None
    except HetplannerError:
        return None
