"""What if more or fewer devices of a host shared layers: the same devices at the same stages, in other groups."""

import pytest

from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.variants import regroup
from hetplanner.planners.variants.regroup import workers_text
from hetplanner.planners.variants.schedules import interleave
from hetplanner.planners.variants.whatif import ChangeDegree, Changes, DropDevice, WhatIf, evaluate_changes
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import GPT, grouped_plan, hosts


def with_degree(plan: Plan, degree: int) -> WhatIf:
    return evaluate_changes(plan, Changes(changes=(ChangeDegree(degree=degree),)))


def stage_devices(plan: Plan) -> list[set[str]]:
    """Devices of each stage, those of groups included."""
    members = plan.problem.members_of
    return [{d for replica in stage.replicas for d in members(replica[0])} for stage in plan.stages]


@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_stages_keep_their_devices_in_groups_of_the_other_size(before: int, after: int) -> None:
    plan = grouped_plan(before)
    found = with_degree(plan, after)
    assert stage_devices(found.plan) == stage_devices(plan)
    assert {found.plan.problem.degree_of(device) for device in found.plan.ranks} == {after}
    assert [len(stage.replicas) for stage in found.plan.stages] == [4 // after] * 2
    check_plan(found.plan)
    assert found.plan.estimate == estimate_plan(found.plan)
    assert found.plan.problem.constraints.tensor == (after,)
    assert found.plan.problem.groups == (None if after == 1 else grouped_plan(after).problem.groups)
    assert sum(route.micro_batches for route in found.plan.routes) == 16


def test_the_same_degree_is_no_slower_and_says_what_serves() -> None:
    plan = grouped_plan(2)
    found = with_degree(plan, 2)
    assert found.plan.estimate.step_s <= plan.estimate.step_s
    text = "4 groups of 2: 2 stages with 2 replicas each; their places were not searched"
    assert found.notes == (text,)


def test_a_group_whose_devices_served_several_stages_serves_the_one_that_lacks_most() -> None:
    pipelines = chain_plan([8, 8], [13], workload=GPT, cluster=hosts(("T4", 2), ("T4", 2)))
    stages = tuple(
        stage.replace(replicas=((f"h0-{s}",), (f"h1-{s}",))) for s, stage in enumerate(pipelines.stages)
    )  # each host has both stages
    plan = pipelines.replace(stages=stages, ranks=("h0-0", "h0-1", "h1-0", "h1-1"))
    found = with_degree(plan, 2).plan
    assert [stage.replicas for stage in found.stages] == [(("h0-0",),), (("h1-0",),)]


def test_devices_left_over_serve_alone_and_have_smaller_shares() -> None:
    plan = chain_plan([5, 5, 6], [], workload=GPT, cluster=hosts(("T4", 3)))
    found = with_degree(plan, 2).plan
    assert [found.problem.degree_of(device) for device in found.ranks] == [2, 1]
    assert [route.micro_batches for route in found.routes] == [11, 5]
    assert workers_text(found.ranks, found.problem) == "1 group of 2 and 1 single device"


def test_a_plan_recomputes_where_larger_groups_held_all_activations() -> None:
    workload = preset("gpt2", global_batch=16 * 48, micro_batch=48, dtype="float16")
    cluster = hosts(*[("T4", 2)] * 4)
    grouped = regroup.with_degree(Problem(cluster=cluster, workload=workload), 2)
    plan = chain_plan([16], [7, 13, 19], workload=workload, cluster=cluster.subset(grouped.usable_devices))
    found = with_degree(plan.replace(problem=grouped), 1).plan
    assert any(stage.recompute for stage in found.stages)
    assert all(e.peak_bytes <= e.limit_bytes for e in found.estimate.devices)


def test_devices_that_cannot_hold_their_share_are_named_with_what_would_help() -> None:
    plan = grouped_plan(4, kind="V100-16", workload=preset("gpt3-xl", global_batch=8, micro_batch=1), cut=26)
    short = r"4 x V100-16 \(h0-0, .* are short by .* GB each .*; another cut or placement would fit"
    with pytest.raises(Infeasible, match=short):
        with_degree(plan, 1)


def test_what_cannot_be_is_said_with_the_remedy() -> None:
    plan = grouped_plan(2)
    with pytest.raises(InvalidInput, match=r"^what if: degree 8: 12 heads are no multiple of 8; use 4"):
        with_degree(plan, 8)
    small = chain_plan([16], [], workload=GPT, cluster=hosts(("T4", 2)).subset(["h0-0"]))
    with pytest.raises(InvalidInput, match=r"^what if: no host has 2 usable devices of one kind"):
        with_degree(small, 2)
    deep = chain_plan([16], [7, 13, 19], workload=GPT, cluster=hosts(("T4", 4)))
    with pytest.raises(Infeasible, match=r"the plan's devices make 1 group of 4, fewer than its 4 stages"):
        with_degree(deep, 4)
    with pytest.raises(Infeasible, match="interleaved"):
        with_degree(interleave(chain_plan([16], [13], workload=GPT, cluster=hosts(("T4", 2))), 2), 2)


def test_a_group_whose_device_is_dropped_is_gone() -> None:
    plan = grouped_plan(2)
    found = evaluate_changes(plan, Changes(changes=(DropDevice(device="h0-0"),)))
    assert {"h0-0", "h0-1"}.isdisjoint(d for group in found.plan.problem.groups for d in group.devices)
    assert found.plan.problem.constraints.excluded == ("h0-0",)
    both = Changes(changes=(DropDevice(device="h0-0"), ChangeDegree(degree=1)))
    again = evaluate_changes(plan, both)
    assert "h0-0" not in again.plan.ranks
    assert WhatIf.from_data(again.to_data(), plan, both) == again


def test_changes_of_the_degree_survive_the_address() -> None:
    changes = Changes(changes=(ChangeDegree(degree=4),))
    assert changes.to_data() == [{"do": "degree", "degree": 4}]
    assert Changes.of(changes.to_data()) == changes
    with pytest.raises(InvalidInput, match="degree"):
        Changes.of([{"do": "degree", "degree": 3}])
