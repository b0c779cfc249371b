"""The bars of the search on DT-FM's five networks: proven optima, whatever the seed, the start and the file order."""

import pytest

from hetplanner.cost.dtfm import score_dtfm
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints
from hetplanner.planners.registry import make_planner
from tests.support.plans.published import OPTIMA, published_problem


def emitted_cost(plan):
    index = plan.problem.cluster.device_index
    placement = [[index(replica[0]) for replica in stage.replicas] for stage in plan.stages]
    assert all(route.replicas == (r,) * 8 for r, route in enumerate(plan.routes))
    cluster = plan.problem.cluster
    return score_dtfm(placement, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)


@pytest.mark.parametrize("starts", ["structured", "random"])
@pytest.mark.parametrize("name", OPTIMA)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_proven_optimum_is_found(name, starts, seed):
    planner = make_planner("evolution", {"starts": starts})
    result = planner.solve(published_problem(name, shuffle=seed or None), seed=seed, budget="1500000 evaluations")
    assert result.value == pytest.approx(OPTIMA[name], abs=1e-5)
    assert result.plan.estimate.dtfm == emitted_cost(result.plan)
    assert result.value == result.plan.estimate.dtfm.total_s
    assert result.lower_bound <= OPTIMA[name] + 1e-5


def test_rank_order_is_one_pipeline_per_region():
    result = make_planner("rank-order").solve(published_problem("dtfm_5_worldwide"))
    cluster = result.plan.problem.cluster
    for replica in range(8):
        assert len({cluster.site_of(stage.replicas[replica][0]).name for stage in result.plan.stages}) == 1
    assert result.value == pytest.approx(49.21838, abs=1e-5)


def test_rank_order_on_the_spot_cluster_is_the_published_default():
    result = make_planner("rank-order").solve(published_problem("dtfm_2_spot"))
    assert result.value == pytest.approx(49.504, abs=5e-4)


def test_spare_devices_stay_idle():
    base = published_problem("dtfm_5_worldwide")
    spare = base.replace(constraints=Constraints(stages=4, replicas=5))
    result = make_planner("evolution").solve(spare, budget="200000 evaluations")
    assert len(result.plan.ranks) == 20
    assert result.value == result.plan.estimate.dtfm.total_s
    # Twenty of eight-device regions: better than the same shape in file order.
    assert result.value <= make_planner("rank-order").solve(spare).value


@pytest.mark.parametrize("name", OPTIMA)
@pytest.mark.parametrize("shuffle", [3, 4])
def test_a_shuffled_file_gives_the_optimum_at_once(name, shuffle):
    result = make_planner("evolution").solve(
        published_problem(name, shuffle=shuffle), seed=shuffle, budget="400 evaluations"
    )
    assert result.value == pytest.approx(OPTIMA[name], abs=1e-5)


@pytest.mark.parametrize("name", list(OPTIMA)[:4])
def test_a_search_that_meets_the_bound_ends(name):
    result = make_planner("evolution").solve(published_problem(name, shuffle=5), budget="10000000 evaluations")
    assert result.gap == pytest.approx(0.0, abs=1e-9)
    assert result.events[-1].phase == "proven optimal"
    assert result.evaluations < 10_000


def test_stages_alone_or_replicas_alone_fix_the_shape():
    base = published_problem("dtfm_5_worldwide", shuffle=1)
    for constraints in (Constraints(stages=8), Constraints(replicas=8)):
        result = make_planner("evolution").solve(base.replace(constraints=constraints), budget="400 evaluations")
        assert result.value == pytest.approx(OPTIMA["dtfm_5_worldwide"], abs=1e-5)
    with pytest.raises(InvalidInput, match="give the number of stages or of replicas"):
        make_planner("evolution").solve(base.replace(constraints=Constraints()), budget="400 evaluations")
