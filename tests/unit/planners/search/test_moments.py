"""The improvements of a search, as they are kept for its replay."""

import json

import pytest

from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.search.moments import MOST_MOMENTS, Moment, MomentLog, keep
from tests.support.plans.factories import small_cluster, tiny_workload


@pytest.mark.parametrize("shape", [(2, 2), (None, None)])
def test_every_improvement_has_its_placement_and_the_terms_of_its_step(shape):
    constraints = Constraints(stages=shape[0], replicas=shape[1])
    task = Problem(cluster=small_cluster(4), workload=tiny_workload(), constraints=constraints)
    log = MomentLog(task)
    result = make_planner("evolution").solve(task, budget="5000 evaluations", on_event=log.take)
    values = [moment.value for moment in log.moments]
    assert values
    assert values == sorted(set(values), reverse=True)
    assert values[-1] == min(event.best for event in result.events)
    first = log.moments[0]
    assert sum(first.terms.values()) == pytest.approx(first.value)
    for moment in log.moments:
        used = [d for stage in moment.stages for d in stage]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(4))
        assert Moment.from_data(json.loads(json.dumps(moment.to_data()))) == moment


def test_old_moments_are_thinned_and_many_stay():
    kept: list[Moment] = []
    for i in range(5 * MOST_MOMENTS):
        keep(kept, Moment(float(i), i, -float(i), ((0,),), {}))
        assert len(kept) <= MOST_MOMENTS
        assert len(kept) >= min(i + 1, 200)
        assert kept[-1].evaluations == i
    assert kept[0].evaluations == 0
    assert [m.evaluations for m in kept] == sorted(m.evaluations for m in kept)
