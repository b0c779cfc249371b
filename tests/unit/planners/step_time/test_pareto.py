"""The front of step time and dollars: against plain enumeration, and as the interface promises it."""

import itertools

import numpy as np
import pytest

from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.finish import try_plan
from hetplanner.planners.layout import deepest_layout
from hetplanner.planners.registry import make_planner
from hetplanner.planners.step_time.fronts import search_front
from hetplanner.planners.step_time.pareto import undominated
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tied_workload, tiny_workload, unlike_cluster

BUDGET = "60000 evaluations"
# A finished plan gives up to a thousandth of its step away for less depth.
CLOSE = 2e-3


def small_problem(seed, devices=4, micro_batches=4, **constraints):
    rng = np.random.default_rng(seed)
    return Problem(
        cluster=unlike_cluster(rng, devices),
        workload=tied_workload(rng, micro_batches),
        constraints=Constraints(**constraints),
    )


def points(plans):
    return [(plan.estimate.step_s, plan.estimate.usd_per_mtoken) for plan in plans]


def all_plans(problem):
    """Every placement, cut and share of every shape."""
    model = CostModel.of(problem)
    devices, micro_batches = len(problem.cluster.devices), problem.workload.num_micro_batches
    cuts = model.tables.cuts.tolist()
    for stages in range(1, min(devices, len(cuts) + 1) + 1):
        for replicas in range(1, min(devices // stages, micro_batches) + 1):
            for chosen in itertools.permutations(range(devices), stages * replicas):
                if list(chosen[:replicas]) != sorted(chosen[:replicas]):
                    continue  # pipelines have no order
                placement = np.reshape(chosen, (stages, replicas))
                for inner in itertools.combinations(cuts, stages - 1):
                    for ends in itertools.combinations(range(1, micro_batches), replicas - 1):
                        share = np.diff([0, *ends, micro_batches])
                        edges = (0, *inner, model.tables.num_ops)
                        yield try_plan(deepest_layout(placement, edges, share, False, model), model)


@pytest.mark.parametrize("seed", [0, 4, 5, 6, 7])
def test_the_front_of_a_small_problem_is_that_of_all_its_plans(seed):
    problem = small_problem(seed, devices=3 + seed % 2, micro_batches=3)
    found = points(search_front(problem, seed=seed, budget=BUDGET).plans)
    everything = points(plan for plan in all_plans(problem) if plan is not None)
    best = [everything[i] for i in undominated(everything)]
    for step_s, usd in best:
        assert any(s <= step_s * (1 + CLOSE) and u <= usd * (1 + CLOSE) for s, u in found), (step_s, usd)
    for step_s, usd in found:
        assert any(s <= step_s * (1 + CLOSE) and u <= usd * (1 + CLOSE) for s, u in best), (step_s, usd)


@pytest.mark.parametrize("seed", range(2))
def test_no_plan_of_a_front_is_dominated_and_all_are_valid(seed):
    problem = small_problem(seed, devices=8, micro_batches=12)
    front = search_front(problem, seed=seed, budget=BUDGET)
    assert len(front.plans) > 1
    times, dollars = zip(*points(front.plans), strict=True)
    assert list(times) == sorted(set(times))
    assert list(dollars) == sorted(set(dollars), reverse=True)
    for plan in front.plans:
        check_plan(plan)
        assert plan.estimate == estimate_plan(plan)
        assert plan.problem == problem
    assert front.least_step_s <= times[0]
    assert front.least_usd_per_mtoken <= dollars[-1]
    assert (front.fastest, front.cheapest) == (front.plans[0], front.plans[-1])
    assert [row["step_s"] for row in front.to_rows()] == list(times)


@pytest.mark.parametrize("objective", ["step-time", "cost"])
def test_its_ends_are_no_worse_than_a_search_for_one_alone(objective):
    problem = small_problem(1, devices=8, micro_batches=12)
    front = search_front(problem, seed=3, budget=BUDGET)
    alone = make_planner("evolution").solve(problem.replace(objective=objective), seed=3, budget="12000 evaluations")
    end = front.fastest.estimate.step_s if objective == "step-time" else front.cheapest.estimate.usd_per_mtoken
    assert end <= alone.value * (1 + 1e-9)


def test_same_seed_and_evaluations_give_the_same_front():
    problem = small_problem(2, devices=6)
    one, two = (search_front(problem, seed=5, budget="30000 evaluations") for _ in range(2))
    assert points(one.plans) == points(two.plans)
    assert [plan.stages for plan in one.plans] == [plan.stages for plan in two.plans]
    assert one.evaluations == two.evaluations


def test_events_are_fronts_and_a_stop_keeps_what_was_found():
    seen = []
    problem = small_problem(3, devices=8, micro_batches=12)
    front = search_front(problem, budget="60 s", on_event=seen.append, should_stop=lambda: len(seen) > 3)
    assert front.cancelled
    assert tuple(seen) == front.events
    assert seen[-1].phase == "done"
    for event in seen:
        assert list(event.points) == [event.points[i] for i in undominated(event.points)]
    check_plan(front.fastest)


def test_however_long_the_ends_take_there_is_time_between_them():
    front = search_front(small_problem(3, devices=8, micro_batches=12), budget="0.6 s")
    assert "between" in {event.phase for event in front.events}
    assert {plan.provenance.budget for plan in front.plans} == {"0.6 s"}


@pytest.mark.parametrize("budget", ["0 s", "0 evaluations", "1 evaluation"])
def test_a_budget_of_next_to_nothing_still_gives_a_plan(budget):
    for plan in search_front(small_problem(4), budget=budget).plans:
        check_plan(plan)


def test_a_fixed_shape_is_kept():
    front = search_front(small_problem(5, devices=8, stages=2, replicas=3), budget="20000 evaluations")
    assert {(len(p.stages), len(p.stages[0].replicas)) for p in front.plans} == {(2, 3)}


def test_free_devices_cost_nothing_and_the_fastest_plan_is_the_front():
    cluster = small_cluster(4)
    free = cluster.replace(devices=tuple(d.replace(price_usd_per_hour=0.0) for d in cluster.devices))
    front = search_front(Problem(cluster=free, workload=tiny_workload()), budget="5000 evaluations")
    assert [plan.estimate.usd_per_mtoken for plan in front.plans] == [0.0]


def test_what_cannot_be_is_refused():
    own = {"kind": "prototype", "peak": {"float32": 1e12}, "memory": 1e10, "memory_bandwidth": 1e10}
    problem = small_problem(0)
    cluster = problem.cluster
    unpriced = cluster.replace(devices=tuple(d.replace(**own, price_usd_per_hour=None) for d in cluster.devices))
    with pytest.raises(InvalidInput, match="price_usd_per_hour"):
        search_front(problem.replace(cluster=unpriced))
    with pytest.raises(InvalidInput, match="devices"):
        search_front(small_problem(0, stages=3, replicas=3))
    with pytest.raises(Infeasible, match="short by"):
        search_front(Problem(cluster=small_cluster(4), workload=preset("llama-70b")))
    pinned = problem.constraints.replace(pinned={problem.cluster.device_ids[0]: 0})
    with pytest.raises(InvalidInput, match="pins"):
        search_front(problem.replace(constraints=pinned))
    with pytest.raises(InvalidInput, match="seed"):
        search_front(problem, seed=-1)
    with pytest.raises(InvalidInput, match="budget"):
        search_front(problem, budget=float("nan"))


def test_points_that_others_beat_in_both_are_left_out():
    assert undominated([(2, 1), (1, 2), (2, 2), (1, 2), (3, 0.5)]) == [1, 0, 4]
    assert undominated([]) == []
    assert undominated([(1, 1), (2, 0.9999)], same=0.01) == [0]
