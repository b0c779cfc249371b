"""No bound exceeds the optimum, and the proof finds it: everything is held against plain enumeration."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cluster.model import Cluster, Device, Host, Site
from hetplanner.codecs.spec import NO_CODEC, Codec, least_topk_bytes, topk_of
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.bounds.reduction_bounds import ReductionBounds
from hetplanner.cost.closed_form import time_step
from hetplanner.cost.dollars import usd_per_step
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, step_arrays
from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import reduce_seconds
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import LinkCodec, Plan, Route
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.planners.dtfm.certificates import find_classes, prove_optimum
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import PAYERS, TUNINGS, small_gpt, tuned
from tests.support.plans.random_plans import random_links, stages_of

SHAPES = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (1, 5)]


@st.composite
def problems(draw):
    """Two to five unlike devices, a model of two to four layers, a shape that fits."""
    num_devices = draw(st.integers(2, 5))
    stages, replicas = draw(st.sampled_from([s for s in SHAPES if s[0] * s[1] <= num_devices]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = [f"s{i}" for i in range(draw(st.integers(1, 3)))]
    hosts = [f"{n}-{i}" for n in names for i in range(2)]
    nic = draw(st.booleans())
    alike = draw(st.booleans())
    cluster = Cluster(
        name="random",
        sites=tuple(
            Site(name=n, latitude=0.0, longitude=float(i), **rng.choice([*PAYERS, {"egress_usd_per_gb": 9.0}]))
            for i, n in enumerate(names)
        ),
        hosts=tuple(
            Host(id=h, site=h.split("-")[0], **({"nic_out": 3e7, "nic_in": 6e7} if nic else {})) for h in hosts
        ),
        devices=tuple(
            Device(
                id=f"d{i}",
                kind="any",
                host=str(rng.choice(hosts)),
                peak={"float32": 1e11 if alike else float(rng.choice([1e10, 1e11, 2e12]))},
                memory=1e12,
                memory_bandwidth=1e10 if alike else float(rng.choice([1e9, 1e10, 1e11])),
                efficiency=0.5,
                reserve=0.0,
                price_usd_per_hour=float(rng.uniform(0.1, 3)),
            )
            for i in range(num_devices)
        ),
        site_links=random_links(rng, names),
    )
    workload = small_gpt(
        vocab=draw(st.sampled_from([64, 2000])),
        layers=draw(st.integers(stages, 4)),
        tie_embeddings=draw(st.booleans()),
        global_batch=draw(st.integers(replicas, 6)) * 2,
    )
    codecs = draw(st.sampled_from([("none",), ("none", "fp16", "int8"), ("int4", "topk"), ("bf16", "adatopk")]))
    ratio = draw(st.sampled_from([1.0, 3.0, 50.0, 1e4]))
    reducers = draw(st.sampled_from([*((name,) for name in REDUCER_NAMES), REDUCER_NAMES]))
    zero = draw(st.integers(0, 1)) if reducers != ("central-ps",) else 0
    constraints = Constraints(
        stages=stages, replicas=replicas, codecs=codecs, max_ratio=ratio, reducers=reducers, zero=zero
    )
    workload = tuned(workload, draw(st.sampled_from(TUNINGS)))
    return Problem(cluster=cluster, workload=workload, constraints=constraints)


def all_shares(total, parts):
    """All ways to give every part at least one."""
    for ends in itertools.combinations(range(1, total), parts - 1):
        yield np.diff([0, *ends, total]).tolist()


def all_plans(problem, model, rng):
    """Every cut and share of the shape over a sample of its placements, deep, with and without codecs."""
    stages, replicas = problem.constraints.stages, problem.constraints.replicas
    micro_batches, ids = problem.workload.num_micro_batches, problem.cluster.device_ids
    placements = list(itertools.permutations(ids, stages * replicas))
    cuts = list(itertools.combinations(model.tables.cuts.tolist(), stages - 1))
    shares = list(all_shares(micro_batches, replicas))
    codecs = [strongest(name, problem) for name in ("none", *problem.constraints.codecs)]
    for placement in placements:
        # Cut, share and codec in full would take minutes: each placement gets some.
        for _ in range(3):
            cut = cuts[rng.integers(len(cuts))]
            yield make_plan(
                problem, placement, [0, *cut, model.tables.num_ops], shares[rng.integers(len(shares))],
                codecs[rng.integers(len(codecs))],
            ).replace(reducer=str(rng.choice(problem.constraints.reducers)))  # fmt: skip


def strongest(name, problem):
    """The codec, with the greatest ratio that the checks let pass."""
    if name not in ("topk", "adatopk"):
        return Codec(name=name)
    elements = 2 * 32 * 32
    least = least_topk_bytes(elements, 4, problem.constraints.max_ratio)
    pressed = (topk_of(elements, kept) for kept in range(1, elements + 1))
    return next((codec for codec in pressed if codec.wire_bytes(elements, 4) >= least), NO_CODEC)


def make_plan(problem, placement, edges, share, codec):
    stages, replicas = problem.constraints.stages, problem.constraints.replicas
    rows = np.reshape(placement, (stages, replicas)).tolist()
    links = [
        LinkCodec(from_device=a, to_device=b, role=role, codec=codec)
        for one, two in itertools.pairwise(rows)
        for x, y in zip(one, two, strict=True)
        for a, b, role in ((x, y, "activation"), (y, x, "gradient"))
        if codec.name != "none"
    ]
    return Plan(
        problem=problem,
        stages=stages_of(edges, rows, in_flight=max(share), reduce_codec=codec, error_feedback=codec.name == "topk"),
        routes=tuple(Route(replicas=(r,) * stages, micro_batches=n) for r, n in enumerate(share)),
        ranks=tuple(placement),
        link_codecs=tuple(links),
    )


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_no_plan_is_below_the_bounds_of_its_step_and_its_dollars(problem, seed):
    model = CostModel.of(problem)
    least_s, least_usd = bound_step(model.tables, model.links), bound_cost(model.tables, model.links)
    assert least_s > 0
    assert least_usd > 0
    for plan in all_plans(problem, model, np.random.default_rng(seed)):
        step_s = time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s
        assert least_s <= step_s * (1 + 1e-9)
        usd = usd_per_step(plan, step_s, model.tables, model.links) / problem.workload.tokens_per_step * 1e6
        assert least_usd <= usd * (1 + 1e-9)


@st.composite
def spread_groups(draw):
    """Two to nine devices in up to four sites, some behind NICs; what a bound for so many must stay below."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sites = [f"s{i}" for i in range(draw(st.integers(1, 4)))]
    nic = {"nic_out": 3e6, "nic_in": 5e6} if draw(st.booleans()) else {}
    size = draw(st.integers(2, 9))
    cluster = Cluster(
        name="random",
        sites=tuple(Site(name=n, latitude=0.0, longitude=float(i)) for i, n in enumerate(sites)),
        hosts=tuple(Host(id=f"{n}-{i}", site=n, **nic) for n in sites for i in range(3)),
        devices=tuple(
            Device(id=f"d{i}", kind="CPU generic", host=f"{rng.choice(sites)}-{rng.integers(3)}")
            for i in range(size + draw(st.integers(0, 2)))
        ),
        site_links=random_links(rng, sites),
    )
    chosen = rng.permutation(cluster.device_ids)[:size].tolist()
    return cluster, chosen, draw(st.sampled_from([*((name,) for name in REDUCER_NAMES), REDUCER_NAMES]))


@settings(max_examples=300, deadline=None)
@given(spread_groups(), st.integers(1, 3000))
def test_no_reducer_is_faster_than_its_bound(group, hidden):
    cluster, chosen, reducers = group
    links = LinkTable.of(cluster)
    config = TransformerConfig(vocab=8, max_seq_len=8, hidden=2 * (hidden // 16 + 1), layers=1, heads=1, ffn=hidden)
    workload = Workload(
        name="x", transformer=config, global_batch=len(chosen), micro_batch=1, seq_len=8, dtype="float32"
    )
    plan = Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=stages_of([0, len(workload.graph.ops)], [chosen], in_flight=1),
        routes=tuple(Route(replicas=(r,), micro_batches=1) for r in range(len(chosen))),
        ranks=tuple(chosen),
    )
    nothing = np.zeros(len(chosen))
    still = Durations(nothing, nothing, nothing, nothing, nothing, nothing)
    least = min(float(reduce_seconds(plan.replace(reducer=name), still, links)[0][0]) for name in reducers)
    num_bytes = workload.graph.num_params * 4
    bounds = ReductionBounds(links, np.arange(len(cluster.devices)), reducers, float(num_bytes))
    bound = float(bounds.least_s(np.array([num_bytes], dtype=float), len(chosen))[0])
    assert 0 < bound <= least * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(problems())
def test_a_free_shape_has_the_least_bound_of_all_shapes(problem):
    model = CostModel.of(problem)
    free = CostModel.of(problem.replace(constraints=problem.constraints.replace(stages=None, replicas=None)))
    assert bound_step(free.tables, free.links) <= bound_step(model.tables, model.links) * (1 + 1e-12)
    assert bound_cost(free.tables, free.links) <= bound_cost(model.tables, model.links) * (1 + 1e-12)
    # Of given replicas only the shapes that there are devices for count.
    some = CostModel.of(problem.replace(constraints=problem.constraints.replace(stages=None)))
    assert 0 < bound_step(free.tables, free.links) <= bound_step(some.tables, some.links) * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_stages_with_unlike_numbers_of_replicas_are_not_below_the_bounds_of_a_free_shape(problem, seed):
    stages = problem.constraints.stages
    free = problem.replace(constraints=problem.constraints.replace(stages=None, replicas=None))
    given_stages = problem.replace(constraints=problem.constraints.replace(replicas=None))
    for task in (free, given_stages):
        model = CostModel.of(task)
        least_s, least_usd = bound_step(model.tables, model.links), bound_cost(model.tables, model.links)
        for plan in ragged_plans(task, stages, model, np.random.default_rng(seed)):
            step_s = time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s
            assert 0 < least_s <= step_s * (1 + 1e-9)
            usd = usd_per_step(plan, step_s, model.tables, model.links) / task.workload.tokens_per_step * 1e6
            assert 0 < least_usd <= usd * (1 + 1e-9)


def ragged_plans(problem, stages, model, rng):
    """Random splits of the devices over the stages; micro-batches take the replicas of each stage in turn."""
    ids, micro_batches = problem.cluster.device_ids, problem.workload.num_micro_batches
    cuts = list(itertools.combinations(model.tables.cuts.tolist(), stages - 1))
    for _ in range(20):
        order = rng.permutation(ids).tolist()
        ends = [0, *sorted(rng.choice(np.arange(1, len(ids)), stages - 1, replace=False).tolist()), len(ids)]
        groups = [order[a:b][:micro_batches] for a, b in itertools.pairwise(ends)]
        taken = Counter(tuple(m % len(group) for group in groups) for m in range(micro_batches))
        edges = [0, *cuts[rng.integers(len(cuts))], model.tables.num_ops]
        yield Plan(
            problem=problem,
            stages=stages_of(edges, groups, in_flight=micro_batches),
            routes=tuple(Route(replicas=replicas, micro_batches=n) for replicas, n in taken.items()),
            ranks=tuple(d for group in groups for d in group),
            reducer=str(rng.choice(problem.constraints.reducers)),
        )


@st.composite
def networks(draw):
    """Published delays and bandwidths of up to seven devices in a few places, and a shape that fits."""
    num_devices = draw(st.integers(2, 7))
    shapes = [(s, r) for s in range(1, 7) for r in range(1, 7) if s * r <= min(num_devices, 6)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places = draw(st.integers(1, 4))
    place = rng.integers(0, places, num_devices)
    delay, bandwidth = rng.choice([1.0, 20.0, 90.0], (places, places)), rng.choice([0.5, 1.0, 5.0], (places, places))
    grid = np.ix_(place, place)
    return (delay + delay.T)[grid], (bandwidth + bandwidth.T)[grid], draw(st.sampled_from(shapes))


def enumerate_dtfm(delay, bandwidth, stages, replicas):
    """The least cost of all placements, by the independent scoring function."""
    best = np.inf
    for chosen in itertools.permutations(range(len(delay)), stages * replicas):
        first = chosen[:replicas]
        if list(first) != sorted(first):
            continue  # pipelines have no order
        best = min(best, score_dtfm(np.reshape(chosen, (stages, replicas)), delay, bandwidth).total_s)
    return best


@settings(max_examples=40, deadline=None)
@given(networks())
def test_the_proof_is_the_optimum_of_plain_enumeration_and_the_cheap_bound_is_below(network):
    delay, bandwidth, (stages, replicas) = network
    optimum = enumerate_dtfm(delay, bandwidth, stages, replicas)
    costs = pair_costs(delay, bandwidth, replicas)
    assert bound_dtfm(*costs, stages, replicas) <= optimum * (1 + 1e-12)
    classes = find_classes(*costs)
    proof = prove_optimum(classes, (stages, replicas), workers=1)
    assert proof.is_optimal
    assert proof.lower_bound_s == pytest.approx(optimum, abs=1e-6)
    assert proof.lower_bound_s <= optimum + 1e-12
    assert proof.count_SC.sum(axis=1).tolist() == [replicas] * stages
    placed = classes.place(proof.count_SC)
    assert len(set(placed.reshape(-1).tolist())) == stages * replicas
    warm = prove_optimum(classes, (stages, replicas), workers=1, upper_s=optimum, hint_SC=classes.count(placed))
    assert warm.lower_bound_s == pytest.approx(optimum, abs=1e-6)
