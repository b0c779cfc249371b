"""The report that a page gives away: of the current plan, with the film of its search and of no other."""

from types import SimpleNamespace

import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import RunError
from hetplanner.planners.search.moments import Moment, plan_moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.ui.jobs.compute import Ticket
from hetplanner.ui.plan.models.report import PlanReportModel
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.processes.own_loop import finish

PLAN = chain_plan([8, 8], [3])


class FakeDesk:
    """Answers at once: with a page, or as it is told."""

    def __init__(self):
        self.asked = []
        self.error = ""

    def ask(self, slot, what, plan, fields=None):
        self.asked.append((what, plan, fields))
        ticket = Ticket()
        ticket.settle(None if self.error else {"text": "<html>"}, self.error)
        return ticket


def searched(problem=PLAN.problem):
    return SimpleNamespace(
        request=SimpleNamespace(problem=problem),
        moments=[plan_moment(PLAN, 2.0, 0.5, 7)],
        tried=[TriedShape(2, 2, 1.0, 3)],
        baseline_estimates={"rank order": estimate_plan(PLAN)},
        offset_s=4.0,
    )


def made(session_plan, search, compute):
    session = SimpleNamespace(id="s", plan=session_plan)
    return finish(PlanReportModel(session, search, lambda: compute).text())


def test_the_film_goes_with_the_plan_that_the_search_found():
    compute = FakeDesk()
    assert made(PLAN, searched(), compute) == "<html>"
    ((what, plan, fields),) = compute.asked
    assert (what, plan) == ("report", PLAN)
    assert [one["evaluations"] for one in fields["moments"]] == [7]
    assert fields["baselines"]["rank order"]["step_s"] == estimate_plan(PLAN).step_s
    assert (fields["offset_s"], len(fields["tried"])) == (4.0, 1)


@pytest.mark.parametrize(
    "search",
    [
        SimpleNamespace(request=None, moments=[]),
        SimpleNamespace(**vars(searched()) | {"moments": [Moment(0.5, 7, 2.0, ((1, 0), (2, 3)), {})]}),
        searched(PLAN.problem.replace(cluster=small_cluster(5))),
    ],
    ids=["no search", "another plan", "another cluster"],
)
def test_a_plan_from_elsewhere_has_a_report_without_a_film(search):
    compute = FakeDesk()
    made(PLAN, search, compute)
    assert compute.asked[0][2] == {}


def test_what_goes_wrong_is_told():
    compute = FakeDesk()
    with pytest.raises(RunError, match="there is no plan"):
        made(None, searched(), compute)
    compute.error = "compute worker: the process ended"
    with pytest.raises(RunError, match="the process ended"):
        made(PLAN, searched(), compute)
