import numpy as np
import pytest

from hetplanner.plan.action import Kind
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.schedule.order import make_schedule
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload


def ragged_plan() -> Plan:
    """1, 3 and 2 replicas; three routes."""
    cluster, workload = small_cluster(6), tiny_workload(global_batch=18)
    ends = (0, 4, 7, len(workload.graph.ops))
    ids = iter(cluster.device_ids)
    stages = tuple(
        Stage(first_op=a, end_op=b, replicas=tuple((next(ids),) for _ in range(n)), in_flight=3)
        for a, b, n in zip(ends[:-1], ends[1:], (1, 3, 2), strict=True)
    )
    routes = tuple(Route(replicas=(0, r, r % 2), micro_batches=n) for r, n in enumerate((4, 3, 2)))
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=stages,
        routes=routes,
        ranks=cluster.device_ids,
    )


PLANS = [
    chain_plan((4,), (5,)),
    chain_plan((5, 3), (3, 6)),
    chain_plan((8, 8), (2, 5, 9)),
    chain_plan((6, 2), (4,), schedule="gpipe"),
    ragged_plan(),
]


@pytest.mark.parametrize("plan", PLANS)
def test_every_micro_batch_is_computed_once_by_every_stage_of_its_path(plan):
    schedule = make_schedule(plan)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        done = sorted((a.micro_batch, a.stage, a.rank) for a in schedule.actions if a.kind == kind)
        paths = [plan.path_of_micro_batch(m) for m in range(plan.problem.workload.num_micro_batches)]
        assert done == sorted((m, s, rank) for m, path in enumerate(paths) for s, rank in enumerate(path))


@pytest.mark.parametrize("plan", PLANS)
def test_the_global_order_sends_before_it_receives(plan):
    sent = set()
    for action in make_schedule(plan).actions:
        if action.kind == Kind.SEND:
            sent.add((action.rank, action.peer, action.micro_batch, action.role))
        elif action.kind == Kind.RECV:
            assert (action.peer, action.rank, action.micro_batch, action.role) in sent
            sent.remove((action.peer, action.rank, action.micro_batch, action.role))
    assert not sent


@pytest.mark.parametrize("plan", PLANS)
def test_no_rank_holds_more_than_its_in_flight_depth(plan):
    schedule = make_schedule(plan)
    for rank, stage in plan.chunks:
        held = most = 0
        for action in schedule.of_rank(rank):
            held += {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(action.kind, 0)
            most = max(most, held)
        if plan.schedule == "1f1b":
            assert most <= plan.stages[stage].in_flight


def test_gpipe_does_all_forwards_first():
    schedule = make_schedule(PLANS[3])
    for rank in range(schedule.num_ranks):
        kinds = [a.kind for a in schedule.of_rank(rank) if a.kind in (Kind.FORWARD, Kind.BACKWARD)]
        assert kinds == sorted(kinds, key=lambda k: k == Kind.BACKWARD)


def test_1f1b_alternates_on_the_first_stage():
    plan = chain_plan((6,), (5,))
    kinds = [a.kind for a in make_schedule(plan).of_rank(0) if a.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert kinds[:2] == [Kind.FORWARD, Kind.FORWARD]
    assert kinds[2:4] == [Kind.BACKWARD, Kind.FORWARD]


@pytest.mark.parametrize("plan", PLANS)
def test_every_rank_ends_with_its_reductions_and_one_step(plan):
    groups = reduction_groups(plan)
    schedule = make_schedule(plan)
    for rank in range(schedule.num_ranks):
        tail = [a for a in schedule.of_rank(rank) if a.kind in (Kind.REDUCE, Kind.STEP)]
        assert [a.group for a in tail[:-1]] == [g for g, group in enumerate(groups) if rank in group.ranks]
        assert tail[-1].kind == Kind.STEP
        assert schedule.of_rank(rank)[-len(tail) :] == tuple(tail)


def test_tied_weights_across_stages_get_a_group_and_are_counted_once():
    plan = chain_plan((4, 4), (5,))
    groups = reduction_groups(plan)
    graph = plan.problem.workload.graph
    assert [g.name for g in groups] == ["stage 0", "stage 1", "tied embedding"]
    assert sum(g.num_elements for g in groups) == graph.num_params
    assert groups[2].ranks == (0, 1, 2, 3)
    assert groups[2].num_elements == 256 * 32


def test_micro_batches_are_dealt_by_share():
    plan = chain_plan((6, 2), (5,))
    order = np.array(plan.route_of_micro_batch)
    assert np.bincount(order).tolist() == [6, 2]
    assert np.bincount(order[:4]).tolist() == [3, 1]
