"""Memory: the exact fit against plain enumeration, and advice that is true when it is followed."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cluster.model import Cluster, Device, Host, Site, SiteLink
from hetplanner.cost.advice.feasibility import advise
from hetplanner.cost.capacity import Capacity, find_fit
from hetplanner.cost.check import check_plan
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
from tests.support.models.dags import random_dag
from tests.support.plans.factories import small_gpt


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_fit_is_found_exactly_if_there_is_one(places, stages, seed):
    rng = np.random.default_rng(seed)
    bytes_KK = np.where(np.triu(np.ones((places, places)), 1), rng.integers(1, 20, (places, places)), np.inf)
    limits = rng.integers(1, 20, stages).astype(float)
    found = find_fit(bytes_KK, limits)
    there_is_one = any(
        all(bytes_KK[a, b] <= limit for (a, b), limit in zip(itertools.pairwise(edges), order, strict=True))
        for inner in itertools.combinations(range(1, places - 1), stages - 1)
        for edges in [(0, *inner, places - 1)]
        for order in itertools.permutations(limits)
    )
    assert (found is not None) == there_is_one
    if found is not None:
        assert (found.edge_S[0], found.edge_S[-1]) == (0, places - 1)
        assert sorted(found.group_S) == list(range(stages))
        for (a, b), group in zip(itertools.pairwise(found.edge_S), found.group_S, strict=True):
            assert bytes_KK[a, b] <= limits[group]


@pytest.mark.parametrize("name", ["gpt2", "tiny-gpt", "llama-1b", "small-gpt"])
@pytest.mark.parametrize(("in_flight", "recompute"), [(1, False), (3, False), (1, True), (3, True)])
def test_the_table_of_stages_is_the_cost_models(name, in_flight, recompute):
    workload = preset(name)
    tables = CostTables(Problem(cluster=tight_cluster([1e9]), workload=workload))
    capacity = Capacity(tables)
    edges = capacity.edges_K.tolist()
    table = capacity.stage_bytes_KK(in_flight, recompute=recompute)
    for a, b in itertools.combinations(range(0, len(edges), 3), 2):
        assert table[a, b] == pytest.approx(tables.stage_bytes(edges[a], edges[b], in_flight, recompute), rel=1e-12)


def tight_cluster(memories):
    return Cluster(
        name="tight",
        sites=(Site(name="s", latitude=0.0, longitude=0.0),),
        hosts=(Host(id="h", site="s"),),
        devices=tuple(device(f"d{i}", m) for i, m in enumerate(memories)),
        site_links=(SiteLink(from_site="s", to_site="s", latency=0.001, bandwidth=1e9),),
    )


def device(name, memory):
    return Device(
        id=name,
        kind="any",
        host="h",
        peak={"float32": 1e11},
        memory=max(float(memory), 1.0),
        memory_bandwidth=1e10,
        efficiency=0.5,
        reserve=0.0,
        price_usd_per_hour=1.0,
    )


@st.composite
def tight_problems(draw):
    """Models about as large as the devices, with free or given shapes, micro-batches and exclusions."""
    layers, num_devices = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    workload = small_gpt(
        vocab=draw(st.sampled_from([64, 1000])),
        max_seq_len=64,
        layers=layers,
        tie_embeddings=draw(st.booleans()),
        micro_batch=draw(st.sampled_from([1, 2, 4, 16])),
    ).replace(seq_len=64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whole = CostTables(Problem(cluster=tight_cluster([1e9]), workload=workload))
    need = whole.stage_bytes(0, whole.num_ops, 1, True)
    kinds = need * rng.uniform(0.05, 0.8, 2)
    cluster = tight_cluster(rng.choice(kinds, num_devices))
    stages = draw(st.one_of(st.none(), st.integers(1, min(layers, num_devices))))
    most = num_devices // (stages or 1)
    replicas = draw(st.one_of(st.none(), st.integers(1, min(most, workload.num_micro_batches))))
    left = num_devices - (stages or 1) * (replicas or 1)
    excluded = tuple(cluster.device_ids[: draw(st.integers(0, min(left, 2)))])
    constraints = Constraints(stages=stages, replicas=replicas, excluded=excluded, zero=draw(st.integers(0, 1)))
    objective = draw(st.sampled_from(["step-time", "cost"]))
    return Problem(cluster=cluster, workload=workload, objective=objective, constraints=constraints)


def solved(problem, budget="0 evaluations"):
    plan = make_planner("evolution").solve(problem, budget=budget).plan
    check_plan(plan)
    return plan


@settings(max_examples=200, deadline=None)
@given(tight_problems())
def test_a_problem_has_a_plan_or_is_told_by_how_much_and_what_would_help(problem):
    try:
        solved(problem)
    except Infeasible as refusal:
        text = str(refusal)
    else:
        return
    assert "short by" in text
    advice = advise(CostTables(problem))
    assert text.endswith(advice.text)
    if advice.problem is not None:
        solved(advice.problem)
        return
    assert re.search("tensor parallelism|sharding of weights|more device|larger devices", advice.text)
    more = re.search(r"(\d+) more devices? like (\w+)", advice.text)
    if more:
        count, name = int(more[1]), more[2]
        memory = problem.cluster.devices[problem.cluster.device_index(name)].memory
        solved(with_more(problem, count, memory))
        with pytest.raises(Infeasible):
            solved(with_more(problem, count - 1, memory))


def with_more(problem, count, memory):
    devices = problem.cluster.devices + tuple(device(f"new{i}", memory) for i in range(count))
    return problem.replace(cluster=problem.cluster.replace(devices=devices))


@settings(max_examples=100, deadline=None)
@given(tight_problems())
def test_shortages_are_those_of_a_layout_and_no_layout_is_short_by_less(problem):
    capacity = Capacity(CostTables(problem))
    stages, replicas = problem.constraints.stages or 1, problem.constraints.replicas or 1
    short = capacity.shortages(stages, replicas)
    assert bool(short) == (capacity.fit(stages, replicas) is None)
    if short:
        worst = short[0].missing_bytes
        limits = capacity.limits_G(stages, replicas)
        assert find_fit(capacity.stage_bytes_KK(replicas=replicas), limits + worst * 1.001) is not None
        assert find_fit(capacity.stage_bytes_KK(replicas=replicas), limits + worst * 0.999) is None
        assert all(one.needed_bytes > one.limit_bytes for one in short)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(4, 90), st.integers(1, 5))
def test_captured_graphs_have_a_plan_or_are_told_too(seed, num_ops, num_devices):
    """With skips that stages relay and weights tied anywhere; of many boundaries only a choice is looked at."""
    rng = np.random.default_rng(seed)
    workload = random_dag(seed, num_ops, unit=50, global_batch=8)
    whole = CostTables(Problem(cluster=tight_cluster([1e9]), workload=workload))
    need = whole.stage_bytes(0, whole.num_ops, 1, True)
    cluster = tight_cluster(rng.choice(need * rng.uniform(0.1, 0.9, 2), num_devices))
    problem = Problem(cluster=cluster, workload=workload)
    try:
        plan = solved(problem)
    except Infeasible as refusal:
        text = str(refusal)
    else:
        assert {stage.end_op for stage in plan.stages[:-1]} <= set(whole.cuts.tolist())
        return
    advice = advise(CostTables(problem))
    assert "short by" in text
    assert text.endswith(advice.text)
    if advice.problem is not None:
        solved(advice.problem)
