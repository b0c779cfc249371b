"""The report of the current plan, with the film of its search; made in a process of its own."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from hetplanner.errors import RunError
from hetplanner.plan.model import Plan
from hetplanner.planners.search.moments import plan_moment
from hetplanner.ui.jobs.compute import Ticket
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.shell.models.session import Session

LOOK_S = 0.05
"""Between two looks at whether the answer is there."""


class ReportWorker(Protocol):
    """What answers; see :class:`hetplanner.ui.jobs.compute.ComputeWorker`."""

    def ask(self, slot: str, what: str, plan: Plan, fields: dict[str, Any] | None = None) -> Ticket:
        """A ticket, done once the answer is there."""
        ...


class PlanReportModel:
    """Asks for reports.

    Args:
        session: has the current plan; of an elastic plan a steady-state step of it is reported.
        search: has the moments, if its plan is the current one.
        compute: has the report made.
    """

    def __init__(self, session: Session, search: PlanModel, compute: Callable[[], ReportWorker]) -> None:
        self._session, self._search, self._compute = session, search, compute

    async def text(self) -> str:
        """The page, when it is done. Raises RunError."""
        plan = self._session.plan
        if plan is None:
            raise RunError("report: there is no plan; press Search or open a plan file")
        ticket = self._compute().ask(f"{self._session.id}/report", "report", plan, self._found_by(plan))
        while not ticket.done:
            await asyncio.sleep(LOOK_S)
        if ticket.result is None:
            raise RunError(ticket.error or "report: a newer one was asked for")
        return str(ticket.result["text"])

    def _found_by(self, plan: Plan) -> dict[str, Any]:
        """The search that ended with this plan, as plain data; empty if it is from elsewhere."""
        search, request = self._search, self._search.request
        moments = list(search.moments)
        if request is None or not moments or request.problem != plan.problem:
            return {}
        if moments[-1].stages != plan_moment(plan, 0.0, 0.0, 0).stages:
            return {}
        baselines = search.baseline_estimates.items()
        return {
            "moments": [moment.to_data() for moment in moments],
            "tried": [shape.to_data() for shape in search.tried],
            "baselines": {label: estimate.model_dump(mode="json") for label, estimate in baselines},
            "offset_s": search.offset_s,
        }
