"""Random OP-DAGs with skips and tied weights: what crosses a boundary, what a stage holds, and all measures agree."""

import random
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cost.capacity import Capacity
from hetplanner.cost.check import peak_bytes
from hetplanner.cost.cuts import MOST_CUTS, choose_cuts
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.reduction import reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Provenance
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.layout import dense_plan
from hetplanner.planners.step_time.species import StepSpecies
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.models.dags import cut_plan, random_dag, residual_network
from tests.support.plans.factories import small_cluster, unlike_cluster
from tests.support.plans.random_plans import random_cluster

seeds = st.integers(0, 2**32 - 1)


def stage_of(workload, cuts):
    return np.searchsorted(cuts, range(len(workload.graph.ops)), side="right")


def readers(workload):
    """By op: the ops that read its output."""
    names = [op.name for op in workload.graph.ops]
    return [[i for i, op in enumerate(workload.graph.ops) if name in op.inputs] for name in names]


def random_cuts(rng, workload, stages):
    return sorted(rng.sample(workload.boundaries, min(stages - 1, len(workload.boundaries))))


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(4, 30))
def test_a_message_holds_every_output_that_later_stages_read(seed, num_ops):
    workload, rng = random_dag(seed, num_ops), random.Random(seed)
    plan = cut_plan(workload, random_cuts(rng, workload, 3), [1, 1, 1], random_cluster(rng, 3, nics=False))
    for s, stage in enumerate(plan.stages[:-1]):
        crossing = [i for i, users in enumerate(readers(workload)) if i < stage.end_op <= max(users, default=-1)]
        elements = sum(workload.graph.ops[i].output_bytes * workload.micro_batch // 4 for i in crossing)
        assert plan.boundary_elements(s) == elements > 0
        assert plan.boundary_bytes(s, s, s + 1, "activation") == 4 * elements
    assert plan.boundary_elements(len(plan.stages) - 1) == 0


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(6, 24))
def test_what_a_stage_holds_is_counted_once(seed, num_ops):
    """The tables by pairs of places, the scalars, and plain enumeration are the same."""
    workload = random_dag(seed, num_ops)
    cluster = random_cluster(random.Random(seed), 2, nics=False)
    tables = CostTables(Problem(cluster=cluster, workload=workload))
    capacity, ops, used_by = Capacity(tables), workload.graph.ops, readers(workload)
    edges = capacity.edges_K.tolist()
    weights, own = tables.trained_between(capacity.edges_K), tables.own_trained_between(capacity.edges_K)
    in_flight = 3
    kept, recomputed = (capacity.stage_bytes_KK(in_flight, recompute=r) for r in (False, True))
    groups = workload.graph.tied_groups
    for a, b in combinations(range(len(edges)), 2):
        first, end = edges[a], edges[b]
        held = {ops[i].tied or ops[i].name: 0 for i in range(first, end)}
        for i in range(first, end):
            name = ops[i].tied or ops[i].name
            held[name] = max(held[name], ops[i].num_params)
        assert weights[a, b] == sum(held.values()) == tables.stage_params(first, end)
        torn = {n: m for n, m in groups.items() if not all(first <= i < end for i in m)}
        alone = sum(op.num_params for op in ops[first:end] if op.tied is None)
        alone -= sum(ops[m[1]].num_params for m in torn.values() if first <= m[0] < end)
        assert own[a, b] == alone
        relayed = sum(
            ops[i].output_bytes * workload.micro_batch
            for i in range(first)
            if max(used_by[i], default=-1) >= end and not any(first <= u < end for u in used_by[i])
        )
        assert tables.relayed_between(np.array([first, end]))[0, 1] == relayed
        assert kept[a, b] == pytest.approx(tables.stage_bytes(first, end, in_flight, False), rel=1e-12)
        assert recomputed[a, b] == pytest.approx(tables.stage_bytes(first, end, in_flight, True), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_gradients_of_every_weight_are_added_up_among_all_who_hold_it(seed):
    rng = random.Random(seed)
    workload = random_dag(seed, rng.randint(5, 25))
    cuts = random_cuts(rng, workload, rng.randint(1, 4))
    replicas = [rng.randint(1, 3) for _ in range(len(cuts) + 1)]
    plan = cut_plan(workload, cuts, replicas, random_cluster(rng, sum(replicas), nics=True))
    stage, ops = stage_of(workload, cuts), workload.graph.ops
    by_name = {group.name: group for group in reduction_groups(plan)}
    for owner, members in workload.graph.tied_groups.items():
        stages = sorted({int(stage[i]) for i in members})
        assert (f"tied {owner}" in by_name) == (len(stages) > 1)
        if len(stages) > 1:
            group = by_name[f"tied {owner}"]
            assert group.stages == tuple(stages)
            assert len(group.ranks) == sum(replicas[s] for s in stages)
            assert group.num_elements == ops[members[1]].num_params
    # Every weight is in exactly one bucket of those that its stage's replicas share.
    tables = CostTables(plan.problem)
    for s, part in enumerate(plan.stages):
        torn = [m for m in workload.graph.tied_groups.values() if len({int(stage[i]) for i in m}) > 1]
        shared = sum(ops[m[1]].num_params for m in torn if s in {int(stage[i]) for i in m})
        own = by_name[f"stage {s}"].num_elements if f"stage {s}" in by_name else None
        if own is not None:
            assert own + shared == tables.stage_params(part.first_op, part.end_op)
    assert (reduction_bytes(plan)[2] >= 0).all()


def times(seed, nics):
    """Estimate and simulated step of a random plan, with any number of shared weights."""
    rng = random.Random(seed)
    workload = random_dag(seed, rng.randint(5, 40), global_batch=2 * rng.randint(3, 24))
    cuts = random_cuts(rng, workload, rng.randint(1, 4))
    replicas = [rng.randint(1, min(3, workload.num_micro_batches))] * (len(cuts) + 1)
    links = {"bandwidth": rng.choice(["20 Mbit/s", "1 Gbit/s"]), "latency": rng.choice(["0 s", "1 ms", "20 ms"])}
    cluster = small_cluster(sum(replicas), nic="100 Mbit/s" if nics else None, **links)
    plan = cut_plan(workload, cuts, replicas, cluster)
    return estimate_plan(plan), summarise_trace(simulate(plan)).step_s


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans())
def test_closed_form_is_near_the_simulation(seed, nics):
    estimate, simulated_s = times(seed, nics)
    assert 0.45 <= estimate.step_s / simulated_s <= 1.4
    assert sum(estimate.terms.values()) == pytest.approx(estimate.step_s)


def test_most_plans_agree_closely():
    ratios = [estimate.step_s / simulated_s for estimate, simulated_s in (times(seed, seed % 2) for seed in range(80))]
    assert 0.95 <= np.median(ratios) <= 1.05
    assert np.percentile(ratios, 10) >= 0.75


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans(), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["step-time", "cost"]))
def test_the_searchs_kernels_are_the_closed_form(seed, recompute, stages, replicas, objective):
    """With any number of tied weights on any stages; none of the devices lacks memory, and shards are alike."""
    rng = np.random.default_rng(seed)
    workload = random_dag(seed, 12, unit=27_720, global_batch=2 * replicas * 4)
    stages = min(stages, workload.most_stages)
    problem = Problem(
        cluster=unlike_cluster(rng, stages * replicas),
        workload=workload,
        objective=objective,
        constraints={"reducers": ("sharded-ps",)},
    )
    model = CostModel.of(problem)
    species = StepSpecies(model, (stages, replicas), seed, "random", recompute=recompute)
    candidate = species.random()
    plan = dense_plan(species.layout(candidate), problem, Provenance())
    estimate = estimate_plan(plan, model=model)
    value = estimate.step_s if objective != "cost" else estimate.usd_per_mtoken
    assert candidate.value == pytest.approx(value, rel=1e-9)
    again = species.anneal(candidate, 200, 0.05)
    annealed = estimate_plan(dense_plan(species.layout(again), problem, Provenance()), model=model)
    value = annealed.step_s if objective != "cost" else annealed.usd_per_mtoken
    assert again.value == pytest.approx(value, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(100, 300), st.one_of(st.none(), st.integers(1, 40)))
def test_cuts_of_a_long_graph_are_few_cheap_and_spread(seed, num_ops, stages):
    workload = random_dag(seed, num_ops)
    cuts = choose_cuts(workload, stages).tolist()
    assert set(cuts) <= set(workload.boundaries)
    assert cuts == sorted(set(cuts))
    assert (stages or 1) <= len(cuts) + 1
    assert len(cuts) == min(len(workload.boundaries), max(MOST_CUTS, 4 * (stages or 1)))
    flops = CostTables(Problem(cluster=random_cluster(random.Random(0), 2, nics=False), workload=workload)).flops_O
    assert max(flops[b] - flops[a] for a, b in pairwise([0, *cuts, num_ops])) <= flops[-1] / 8


def test_a_residual_network_is_cut_between_blocks():
    """One tensor crosses there, two inside a block; the blocks leave no more cuts than the search looks at."""
    workload = residual_network(64)
    between = {k for k in workload.boundaries if len(workload.graph.crossing_ops[k]) == 1}
    assert len(workload.boundaries) > 400
    cuts = choose_cuts(workload, None).tolist()
    assert len(cuts) == MOST_CUTS
    assert len(set(cuts) - between) <= 2
    # More than blocks: then inside too.
    assert len(choose_cuts(workload, 100)) == 400


def test_peak_memory_is_of_the_stages_ranks():
    rng = random.Random(1)
    workload = random_dag(1, 20)
    plan = cut_plan(workload, random_cuts(rng, workload, 3), [2, 1, 1], random_cluster(rng, 4, nics=False))
    tables = CostTables(plan.problem)
    bytes_of = [tables.stage_bytes(s.first_op, s.end_op, s.in_flight, False) for s in plan.stages]
    assert peak_bytes(plan, tables) == [bytes_of[0], bytes_of[0], bytes_of[1], bytes_of[2]]
