"""A plan under another problem: what stays, what is estimated anew, what is refused."""

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.planners.variants.carry_over import CARRIED, carry_over
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload


@pytest.fixture
def plan() -> Plan:
    return chain_plan([10, 6], [5])


def devices_of(plan: Plan) -> list[tuple[tuple[str, ...], ...]]:
    return [stage.replicas for stage in plan.stages]


def test_to_its_own_problem_it_is_the_same_plan_with_its_estimate(plan):
    carried = carry_over(plan, plan.problem)
    assert carried.estimate == estimate_plan(plan)
    assert carried.replace(estimate=None, provenance=plan.provenance) == plan
    assert carried.provenance.planner == CARRIED
    assert plan.digest()[:12] in carried.provenance.derived


def test_on_slower_links_it_takes_longer_and_keeps_its_placement(plan):
    slow = plan.problem.replace(cluster=small_cluster(4, latency="2 s"))
    carried = carry_over(plan, slow)
    assert carried.problem is slow
    assert devices_of(carried) == devices_of(plan)
    assert carried.estimate.step_s > estimate_plan(plan).step_s


def test_another_batch_is_shared_as_before(plan):
    larger = plan.problem.replace(workload=tiny_workload(global_batch=96))
    carried = carry_over(plan, larger)
    assert sum(route.micro_batches for route in carried.routes) == larger.workload.num_micro_batches
    shares = [route.micro_batches for route in carried.routes]
    assert shares == sorted(shares, reverse=True)
    check_plan(carried)


def test_on_a_deeper_model_every_stage_keeps_its_share_of_the_flops(plan):
    deeper = plan.problem.replace(workload=tiny_workload(layers=8))
    carried = carry_over(plan, deeper)
    assert carried.stages[-1].end_op == len(deeper.workload.graph.ops)
    assert [s.first_op for s in carried.stages][1:] == [s.end_op for s in carried.stages][:-1]
    check_plan(carried)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.replace(constraints=p.constraints.replace(stages=3)), "settings ask for 3 stages, the plan has 2"),
        (lambda p: p.replace(constraints=p.constraints.replace(replicas=1)), "ask for 1 replicas, the plan has 2"),
        (lambda p: p.replace(constraints=p.constraints.replace(excluded=("d0", "d1"))), r"2 of its 4 .*\(d0, d1\)"),
        (lambda p: p.replace(cluster=small_cluster(3)), r"1 of its 4 devices cannot be used any more \(d3\)"),
        (lambda p: p.replace(workload=tiny_workload(global_batch=2)), "1 micro-batches, too few for the plan's 2"),
        (lambda p: p.replace(workload=tiny_workload(layers=1)), "the plan has 2 stages"),
    ],
)
def test_what_cannot_be_carried_over_says_why(plan, change, reason):
    with pytest.raises(Infeasible, match=reason):
        carry_over(plan, change(plan.problem))


def test_a_codec_that_is_no_longer_allowed_is_refused(plan):
    allowed = plan.problem.replace(constraints=plan.problem.constraints.replace(codecs=("none", "int8")))
    packed = plan.replace(
        problem=allowed,
        stages=tuple(s.replace(reduce_codec=Codec(name="int8"), error_feedback=True) for s in plan.stages),
    )
    assert carry_over(packed, allowed).stages[0].reduce_codec.name == "int8"
    with pytest.raises(InvalidInput, match="int8"):
        carry_over(packed, plan.problem)
