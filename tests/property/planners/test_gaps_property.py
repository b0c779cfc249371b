"""Planners on clusters where many sites have no link to each other: what they return is what check(plan) allows."""

import itertools

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetplanner.cluster.model import Cluster, Device, Host, Site, SiteLink
from hetplanner.cluster.parts import parts_of
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.finish import try_plan
from hetplanner.planners.layout import deepest_layout
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.planners.step_time.fronts import search_front
from hetplanner.planners.step_time.space import even_layers
from tests.support.plans.factories import tied_workload

BUDGET = "2000 evaluations"
FREE_OR_FIXED = st.booleans()


@st.composite
def gapped_problems(draw, shapes=FREE_OR_FIXED):
    """Two to five sites of one or two devices; a spanning tree of links, and some more."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(2, 5))
    names = [f"s{i}" for i in range(count)]
    pairs = {(int(rng.integers(i)), i) for i in range(1, count)} | {(i, i) for i in range(count)}
    pairs |= {pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.3}
    sizes = rng.integers(1, 3, count)
    hosts = [(f"h{i}-{k}", names[i]) for i in range(count) for k in range(sizes[i])]
    cluster = Cluster(
        name="gapped",
        sites=tuple(Site(name=n, latitude=0.0, longitude=float(i)) for i, n in enumerate(names)),
        hosts=tuple(Host(id=h, site=s) for h, s in hosts),
        devices=tuple(
            Device(
                id=h.replace("h", "d"),
                kind="any",
                host=h,
                peak={"float32": float(rng.choice([3e8, 1e9, 4e9]))},
                memory=1e12,
                memory_bandwidth=1e10,
                efficiency=0.5,
                reserve=0.0,
                price_usd_per_hour=1.0,
            )
            for h, _ in hosts
        ),
        site_links=tuple(
            SiteLink(from_site=names[a], to_site=names[b], latency=0.002, bandwidth=float(10 ** rng.uniform(6, 9)))
            for one, two in sorted(pairs)
            for a, b in {(one, two), (two, one)}
        ),
    )
    stages, replicas = None, None
    if draw(shapes):
        stages = draw(st.integers(1, min(4, len(hosts))))
        replicas = draw(st.integers(1, len(hosts) // stages))
    objective = draw(st.sampled_from(["step-time", "cost", "dtfm"]))
    if objective == "dtfm" and stages is None:
        stages = 1
    constraints = Constraints(stages=stages, replicas=replicas, zero=draw(st.integers(0, 1)))
    return Problem(cluster=cluster, workload=tied_workload(rng, 8), objective=objective, constraints=constraints)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(gapped_problems())
def test_every_planner_gives_a_plan_whose_routes_exist_or_says_why_not(problem):
    for name in planner_names():
        if problem.objective not in planner_type(name).objectives:
            continue
        options = {"most": 20_000} if name == "exhaustive" else None
        try:
            plan = make_planner(name, options).solve(problem, budget=BUDGET).plan
        except (Infeasible, InvalidInput) as error:
            refused = str(error)
        else:
            check_plan(plan)
            continue
        assert "link" in refused or "exhaustive: the problem has more than" in refused, name


@settings(max_examples=25, deadline=None)
@given(gapped_problems(shapes=st.just(False)), st.sampled_from(["0 s", BUDGET]))
def test_a_free_shape_always_has_a_plan(problem, budget):
    """One device holds the model, so there is a plan without any route."""
    if problem.objective == "dtfm":
        return
    check_plan(make_planner("evolution").solve(problem, budget=budget).plan)
    for plan in search_front(problem, budget=budget).plans:
        check_plan(plan)


@settings(max_examples=30, deadline=None)
@given(gapped_problems(shapes=st.just(True)))
def test_a_plan_is_found_where_a_placement_exists(problem):
    problem = problem.replace(objective="step-time")
    stages, replicas = problem.constraints.stages, problem.constraints.replicas
    if stages * replicas > 4:
        return
    model = CostModel.of(problem)
    share = np.diff([0, *(8 * k // replicas for k in range(1, replicas + 1))])
    placements = itertools.permutations(range(len(problem.cluster.devices)), stages * replicas)
    exists = any(
        try_plan(
            deepest_layout(np.reshape(chosen, (stages, replicas)), even_layers(model, stages), share, False, model),
            model,
        )
        for chosen in placements
    )
    try:
        check_plan(make_planner("evolution").solve(problem, budget="20000 evaluations").plan)
        found = True
    except Infeasible:
        found = False
    assert found == exists


@given(gapped_problems())
def test_clusters_that_load_are_connected(problem):
    assert len(parts_of(problem.cluster.joined_DD)) == 1
