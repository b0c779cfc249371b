"""Planning with ZeRO stage 1: a model that fits only so, what it costs, and where it is refused."""

import json

import pytest

from hetplanner.cost.advice.feasibility import advise
from hetplanner.cost.check import peak_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.registry import make_planner
from hetplanner.simulator.simulation import summarise_plan
from tests.support.plans.factories import chain_plan, sharded, sites_cluster, small_cluster, small_gpt

MEMORY = 530e3
"""Of a device: two stages of `small_gpt` in two replicas need 569 kB with all states, 488 kB with half of them."""


def problem(memory: float = MEMORY, **wanted: object) -> Problem:
    cluster = small_cluster(4)
    small = tuple(device.replace(memory=memory, reserve=0.0) for device in cluster.devices)
    shape = {"stages": 2, "replicas": 2} | wanted
    return Problem(
        cluster=cluster.replace(devices=small), workload=small_gpt(vocab=64), constraints=Constraints(**shape)
    )


def test_a_model_fits_when_replicas_shard_the_states() -> None:
    with pytest.raises(Infeasible, match="does not fit in 2 stages x 2 replicas"):
        make_planner("evolution").solve(problem(), budget="200 evaluations")
    found = make_planner("evolution").solve(problem(zero=1), budget="200 evaluations").plan
    assert found.zero == 1
    assert max(peak_bytes(found, CostTables(found.problem))) <= MEMORY
    assert summarise_plan(found).step_s == pytest.approx(found.estimate.step_s, rel=0.1)


def test_it_is_advised_where_there_is_no_stage_more() -> None:
    """One layer is one stage; a micro-batch is one sequence. It needs 707 kB, with a quarter of the states 641 kB."""
    task = problem(670e3, stages=None, replicas=None)
    task = task.replace(workload=small_gpt(vocab=64, layers=1, hidden=48, ffn=192).replace(micro_batch=1))
    advice = advise(CostTables(task))
    assert advice.text == "sharding the optimizer's states over 4 replicas would help (--zero 1)"
    assert advice.problem is not None
    assert make_planner("evolution").solve(advice.problem, budget="200 evaluations").plan.zero == 1


@pytest.mark.parametrize(("reducer", "share"), [
    ("sharded-ps", 1 / 4), ("ring", 1 / 4), ("central-ps", 1.0), ("hierarchical", 1 / 2)
])  # fmt: skip
def test_memory_counts_the_largest_shard(reducer: str, share: float) -> None:
    """In one of two sites of two each has half of the states."""
    plan = chain_plan([2, 2, 2, 2], [], workload=small_gpt(), cluster=sites_cluster([2, 2])).replace(reducer=reducer)
    parts = sharded(plan)
    states = 8.0 * plan.problem.workload.graph.num_trained
    whole, less = (peak_bytes(each, CostTables(each.problem))[0] for each in (plan, parts))
    assert whole - less == pytest.approx(states * (1 - share))
    (group,) = (group for group in reduction_groups(parts) if group.part == "reduce-scatter")
    made = [sum(end - first for first, end in group.shard_of(rank)) for rank in group.ranks]
    assert max(made) == pytest.approx(share * group.num_elements, abs=1)
    assert sum(made) == group.num_holders * group.num_elements


def test_as_many_bytes_travel_as_without_it() -> None:
    plan = chain_plan([2, 3, 4], [4], workload=small_gpt(global_batch=18))
    sent = [
        sum(g.transfer_bytes(t) for g in reduction_groups(each) for t in g.program) for each in (plan, sharded(plan))
    ]
    assert sent[0] == sent[1]


def test_files_of_plans_with_it_have_a_format_of_their_own(tmp_path) -> None:
    plan = chain_plan([2, 2], [4], workload=small_gpt(global_batch=8))
    for each, version in ((plan, 1), (sharded(plan), 4)):
        save_plan(each, tmp_path / "plan.json")
        assert json.loads((tmp_path / "plan.json").read_text())["format"] == f"hetplanner/plan@{version}"
        assert load_plan(tmp_path / "plan.json") == each


def test_a_swarm_refuses_it() -> None:
    task = Problem(cluster=small_cluster(4), workload=small_gpt(), constraints=Constraints(stages=2, zero=1))
    with pytest.raises(InvalidInput, match=r"constraints.zero: a peer of a swarm has all states.*zero 0"):
        make_planner("swarm", {"mode": "elastic"}).solve(task, budget="10 evaluations")
