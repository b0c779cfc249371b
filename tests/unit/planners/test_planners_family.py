"""What every planner promises, whatever its name."""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.compiling import current_watch
from hetplanner.cost.check import check_plan
from hetplanner.cost.dtfm import score_dtfm
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.finish import equal_plan, order_devices
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
OBJECTIVES = ("step-time", "cost", "dtfm")
BUDGET = "30000 evaluations"
# Looks at the budget that a planner may still take once it is over.
MOST_ASKS = 12
NAMES = (*planner_names(), "swarm elastic")
PLANNED = [(name, objective) for name in NAMES for objective in planner_type(name.split()[0]).objectives]
REFUSED = [(n, o) for n in NAMES for o in OBJECTIVES if (n, o) not in PLANNED]


def make(name):
    """A planner, by name and mode."""
    planner, *mode = name.split()
    return make_planner(planner, {"mode": mode[0]} if mode else {})


def first_objective(name):
    return make(name).objectives[0]


def problem(objective="step-time", cluster="continents_4_sites_8", **constraints):
    loaded = load_cluster(SAMPLES / f"{cluster}.json")
    if objective == "cost":
        loaded = loaded.replace(devices=tuple(d.replace(price_usd_per_hour=1.0) for d in loaded.devices))
    shape = {"stages": 4, "replicas": 2} | constraints
    return Problem(
        cluster=loaded,
        workload=preset("tiny-gpt"),
        objective=objective,
        constraints=Constraints(**{k: v for k, v in shape.items() if v is not None}),
    )


@cache
def thousand_devices(objective):
    """A free shape where the objective has one."""
    cluster = mixed_gpus(0, num_devices=1024)
    if objective == "cost":
        cluster = cluster.replace(devices=tuple(d.replace(price_usd_per_hour=1.0) for d in cluster.devices))
    shape = Constraints(stages=8, replicas=128) if objective == "dtfm" else Constraints()
    return Problem(cluster=cluster, workload=preset("gpt2-xl"), objective=objective, constraints=shape)


def solve(name, task, **options):
    return make(name).solve(task, **({"budget": BUDGET} | options))


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_plans_are_valid_and_scored_as_reported(name, objective):
    task = problem(objective)
    result = solve(name, task)
    plan = result.plan
    assert plan.problem == task
    check_plan(plan)
    assert len(plan.stages) == 4
    assert {len(stage.replicas) for stage in plan.stages} == {2}
    assert sum(route.micro_batches for route in plan.routes) == task.workload.num_micro_batches
    alone = estimate_plan(plan)
    assert plan.estimate == alone.replace(notes=plan.estimate.notes)
    assert set(alone.notes) <= set(plan.estimate.notes)  # a swarm's plan says more
    value = {"step-time": plan.estimate.step_s, "cost": plan.estimate.usd_per_mtoken}.get(objective)
    if objective == "dtfm":
        index = task.cluster.device_index
        placement = [[index(replica[0]) for replica in stage.replicas] for stage in plan.stages]
        cluster = task.cluster
        cost = score_dtfm(placement, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)
        assert cost == plan.estimate.dtfm
        value = cost.total_s
    assert result.value == value
    assert 0 < result.lower_bound <= result.value
    assert 0 <= result.gap < 1
    assert plan.provenance.planner == name.split()[0]
    assert plan.provenance.lower_bound == result.lower_bound
    assert plan.provenance.evaluations == result.evaluations


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_same_seed_and_evaluations_give_the_same_plan(name, objective):
    one, two = (solve(name, problem(objective), seed=3) for _ in range(2))
    assert one.plan.stages == two.plan.stages
    assert one.plan.routes == two.plan.routes
    assert one.value == two.value
    assert one.evaluations == two.evaluations


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_events_are_in_the_unit_of_the_result(name, objective):
    """The curve ends where the result is, but for what finishing a plan gains; a wrong unit is a factor of 500."""
    found = solve(name, problem(objective), budget="2000 evaluations")
    assert found.value <= found.events[-1].best * (1 + 1e-6)
    assert found.events[-1].best < 3 * found.value


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_events_only_get_better(name, objective):
    seen = []
    result = solve(name, problem(objective), budget="0.5 s", on_event=seen.append)
    assert seen
    assert tuple(seen) == result.events
    assert [e.best for e in seen] == sorted((e.best for e in seen), reverse=True)
    assert [e.evaluations for e in seen] == sorted(e.evaluations for e in seen)
    gaps = np.diff([e.seconds for e in seen[:-1]])
    assert (gaps >= 0.1 - 1e-9).all()
    assert all(math.isfinite(e.low) and e.best <= e.low <= e.median <= e.high for e in seen)
    used = [d for stage in seen[-1].placement for d in stage]
    assert len(set(used)) == len(used) == 8


@pytest.mark.parametrize("asks", [0, 1, 2, 7, 40])
@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_a_stop_at_any_time_gives_the_best_so_far(name, objective, asks):
    """Whatever the planner does when it is asked to stop; it then asks no more than a few times again."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > asks

    result = solve(name, problem(objective, stages=None), budget="600 s", should_stop=stop)
    check_plan(result.plan)
    assert result.cancelled == (len(asked) > asks)
    assert len(asked) <= asks + MOST_ASKS


@pytest.mark.parametrize(("name", "objective"), PLANNED)
@pytest.mark.parametrize("cluster", ["dtfm_2_spot", "dtfm_5_worldwide"])
def test_a_budget_that_is_spent_at_once_ends_large_problems(name, objective, cluster):
    """A usable plan or a clear refusal, behind a bounded number of looks at the budget."""
    asked = []
    loaded = load_cluster(SAMPLES / f"{cluster}.json")
    shape = Constraints(stages=8, replicas=8)
    task = Problem(cluster=loaded, workload=preset("gpt3-xl"), objective=objective, constraints=shape)
    try:
        result = solve(name, task, budget="0 s", should_stop=lambda: bool(asked.append(1)))
    except InvalidInput as error:
        refusal = str(error)
    else:
        check_plan(result.plan)
        refusal = None
    assert refusal is None or "more than 2000000 layouts" in refusal
    assert len(asked) <= MOST_ASKS


class Asked:
    """Says stop behind so many questions; those between two kernels that are compiled are none of them."""

    def __init__(self, answered_no=math.inf):
        self.answered_no, self.count = answered_no, 0

    def __call__(self):
        watch = current_watch()
        if watch is not None and watch.is_compiling:
            return False
        self.count += 1
        return self.count > self.answered_no


def solve_thousand(name, objective, budget, asked):
    """The result, or None where the planner says clearly that it proves nothing of so many devices."""
    try:
        return solve(name, thousand_devices(objective), budget=budget, should_stop=asked)
    except InvalidInput as error:
        if name not in ("exhaustive", "cp-sat"):
            raise
        refusal = str(error)
    assert "more than 2000000 layouts" in refusal or "too many for a proof" in refusal
    return None


@pytest.mark.parametrize("asks", [0, 2, 7])
@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_a_stop_at_any_time_ends_the_search_of_a_thousand_devices(name, objective, asks):
    """With a usable plan; behind the stop come only a few more questions, so no phase goes on."""
    asked = Asked(asks)
    result = solve_thousand(name, objective, "600 s", asked)
    assert asked.count <= asks + MOST_ASKS
    if result is not None:
        check_plan(result.plan)
        assert 0 < result.lower_bound <= result.value
        assert result.cancelled == (asked.count > asks)


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_a_budget_that_is_spent_at_once_ends_the_search_of_a_thousand_devices(name, objective):
    asked = Asked()
    result = solve_thousand(name, objective, "0 s", asked)
    assert asked.count <= 2 * MOST_ASKS
    if result is not None:
        check_plan(result.plan)


def test_a_stop_between_reducers_takes_the_best_so_far():
    """The first plan of very many devices is complete without the choices that were still to come."""
    task = thousand_devices("step-time")
    place = order_devices(task, (8, 128))
    asked = []
    free, stopped = CostModel.of(task), CostModel.of(task, lambda: bool(asked.append(1)) or len(asked) > 2)
    best, hurried = equal_plan(place, free), equal_plan(place, stopped)
    check_plan(hurried)
    assert best.estimate.step_s <= hurried.estimate.step_s
    assert hurried.estimate == estimate_plan(hurried)
    assert 2 < len(asked) <= 2 + MOST_ASKS


def test_a_stop_while_kernels_are_compiled_gives_a_plan(tmp_path):
    """In a process without compiled kernels: every planner is stopped as soon as it begins to compile one."""
    program = Path(__file__).parents[2] / "support/processes/stop_compiling.py"
    done = subprocess.run(
        [sys.executable, program], env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, check=True
    )
    told = json.loads(done.stdout)
    assert [(row["name"], row["objective"]) for row in told] == [(n, o) for n, o in PLANNED if " " not in n]
    for row in told:
        check_plan(plan_from_json(json.dumps(row["plan"])))
        assert row["cancelled"] == row["compiled"]
        assert row["events"]
    assert {row["name"] for row in told if row["compiled"]} >= {"evolution", "random", "exhaustive", "gcma", "cp-sat"}


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_a_budget_of_zero_still_gives_a_plan(name, objective):
    check_plan(solve(name, problem(objective), budget="0 s").plan)
    check_plan(solve(name, problem(objective), budget="0 evaluations").plan)
    if objective != "dtfm":
        free = problem(objective, stages=None, replicas=None)
        for budget in ("0 s", "0 evaluations"):
            check_plan(solve(name, free, budget=budget).plan)


@pytest.mark.parametrize("name", NAMES)
def test_plans_survive_their_file(name):
    plan = solve(name, problem(first_objective(name))).plan
    assert plan_from_json(json.dumps(plan_to_data(plan))) == plan


@pytest.mark.parametrize("name", NAMES)
def test_excluded_devices_stay_out(name):
    task = problem(first_objective(name), stages=2, replicas=2)
    out = task.cluster.device_ids[:3]
    constraints = task.constraints.replace(excluded=out)
    plan = solve(name, task.replace(constraints=constraints)).plan
    assert not set(plan.ranks) & set(out)


@pytest.mark.parametrize("name", NAMES)
def test_a_free_shape_is_chosen(name):
    objective = first_objective(name)
    if objective != "dtfm":
        check_plan(solve(name, problem(objective, stages=None, replicas=None)).plan)
    plan = solve(name, problem(objective, stages=None, replicas=2)).plan
    assert {len(stage.replicas) for stage in plan.stages} == {2}
    plan = solve(name, problem(objective, stages=2, replicas=None)).plan
    assert len(plan.stages) == 2


@pytest.mark.parametrize(("name", "objective"), [(n, o) for n, o in PLANNED if o != "cost"])
def test_impossible_shapes_and_models_are_refused(name, objective):
    with pytest.raises(InvalidInput, match="devices"):
        solve(name, problem(objective, stages=3, replicas=3))
    with pytest.raises(InvalidInput, match="layers"):
        solve(name, problem(objective, stages=8, replicas=1))
    huge = problem(objective).replace(workload=preset("llama-70b"))
    with pytest.raises(Infeasible, match="short by"):
        solve(name, huge)


@pytest.mark.parametrize("name", NAMES)
def test_one_device_is_a_cluster_too(name):
    one = Constraints(stages=1, replicas=1)
    task = Problem(cluster=small_cluster(1), workload=tiny_workload(), objective=first_objective(name), constraints=one)
    result = solve(name, task)
    assert len(result.plan.ranks) == 1
    assert result.lower_bound <= result.value


@pytest.mark.parametrize("name", [n for n, o in PLANNED if o == "cost"])
def test_dollars_need_prices(name):
    task = problem()
    own = {"kind": "prototype", "peak": {"float32": 1e12}, "memory": 1e10, "memory_bandwidth": 1e10}
    unpriced = task.cluster.replace(devices=tuple(d.replace(**own) for d in task.cluster.devices))
    with pytest.raises(InvalidInput, match="price_usd_per_hour"):
        solve(name, task.replace(cluster=unpriced, objective="cost"))


def test_dtfm_needs_a_shape():
    with pytest.raises(InvalidInput, match="number of stages"):
        solve("evolution", problem("dtfm", stages=None, replicas=None))


@pytest.mark.parametrize(("name", "objective"), REFUSED)
def test_an_objective_that_a_planner_cannot_plan_for_is_refused_in_one_line(name, objective):
    with pytest.raises(InvalidInput, match=f"planner {name.split()[0]}: plans for objective") as refusal:
        solve(name, problem(objective))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "objective"), PLANNED)
def test_plans_can_be_run(name, objective):
    """The simulator's schedule holds every forward and backward once and comes to an end."""
    plan = solve(name, problem(objective)).plan
    spans = simulate(plan).spans
    for kind in ("forward", "backward"):
        assert sum(s.kind == kind for s in spans) == plan.problem.workload.num_micro_batches * len(plan.stages)
