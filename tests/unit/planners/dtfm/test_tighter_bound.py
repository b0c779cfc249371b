"""The slower bound for a problem: what it says of wrong input, its process, and how a result takes it."""

import pytest

from hetplanner.cluster.generators import r10j
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.dtfm.tighter_bound import BoundProcess, tighter_bound, with_bound
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset


def make_problem(objective="dtfm", **changes):
    constraints = Constraints(stages=3, replicas=4, **changes)
    cluster = r10j(0, num_devices=12)
    return Problem(cluster=cluster, workload=preset("gpt2"), objective=objective, constraints=constraints)


def test_another_objective_and_no_time_are_refused():
    with pytest.raises(InvalidInput, match="only for the objective dtfm"):
        tighter_bound(make_problem("step-time"))
    with pytest.raises(InvalidInput, match="more than 0 seconds"):
        tighter_bound(make_problem(), seconds=-1)
    with pytest.raises(InvalidInput, match="more than 0 seconds"):
        BoundProcess(make_problem(), 0)


def test_a_result_takes_a_higher_bound_and_keeps_its_own_otherwise():
    problem = make_problem()
    result = make_planner("random").solve(problem, budget="10 evaluations")
    values = []
    bound = tighter_bound(problem, seconds=None, turns=6, on_better=values.append)
    assert values == sorted(values)
    assert result.lower_bound <= bound == values[-1] <= result.value
    raised = with_bound(result, bound)
    assert raised.lower_bound == raised.plan.provenance.lower_bound == bound
    assert with_bound(raised, 0.0) is raised
    assert with_bound(result, 1e9).gap == 0.0


def test_a_process_of_its_own_can_be_ended_at_any_time():
    process = BoundProcess(make_problem(), 600.0)
    assert process.close() >= 0.0
    assert process.is_over
    assert process.close() == process.best
