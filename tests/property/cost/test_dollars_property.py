"""Dollars of a plan, held against a computation of their own: every message written out, nothing shared."""

import itertools
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.codecs.spec import Codec
from hetplanner.cost.bounds.lower_bounds import bound_cost
from hetplanner.cost.dollars import list_dollars
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.plan.model import LinkCodec, Plan, Provenance, Route, Stage
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.layout import dense_plan
from hetplanner.planners.step_time.species import StepSpecies
from tests.support.plans.factories import tied_workload, unlike_cluster
from tests.support.plans.random_plans import stages_of

MICRO_BATCHES = 12


@st.composite
def ragged_plans(draw):
    """Stages of unlike numbers of replicas, routes between any of them, codecs on some links and reductions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    problem = Problem(
        cluster=unlike_cluster(rng, sum(replicas) + draw(st.integers(0, 2))),
        workload=tied_workload(rng, MICRO_BATCHES),
        constraints=Constraints(codecs=("none", "fp16", "int8")),
    )
    ids = rng.permutation(problem.cluster.device_ids).tolist()
    ends = np.cumsum([0, *replicas])
    groups = [ids[a:b] for a, b in itertools.pairwise(ends)]
    cuts = CostModel.of(problem).tables.cuts
    edges = [0, *sorted(rng.choice(cuts, len(replicas) - 1, replace=False).tolist()), len(problem.workload.graph.ops)]
    codecs = [Codec(name=name) for name in ("none", "fp16", "int8")]
    stages = tuple(
        stage.replace(reduce_codec=codecs[rng.integers(3)])
        for stage in stages_of(edges, groups, in_flight=MICRO_BATCHES)
    )
    width = max(replicas)
    shares = np.diff(
        [0, *sorted(rng.choice(range(1, MICRO_BATCHES), width - 1, replace=False).tolist()), MICRO_BATCHES]
    )
    routes = tuple(Route(replicas=tuple(r % n for n in replicas), micro_batches=int(shares[r])) for r in range(width))
    rules = tuple(
        LinkCodec(from_device=x, to_device=y, role=role, codec=codecs[rng.integers(3)])
        for one, two in itertools.pairwise(groups)
        for x in one
        for y in two
        for role in ("activation", "gradient")
        for x, y in [(x, y) if role == "activation" else (y, x)]
        if rng.integers(2)
    )
    ranks = tuple(d for group in groups for d in group)
    return Plan(problem=problem, stages=stages, routes=routes, ranks=ranks, link_codecs=rules)


def wire_bytes(codec, elements, width):
    """Bytes of one message: fp16 two an element, int8 one and a float32 scale for every block."""
    if codec.name == "fp16":
        return 2 * elements
    if codec.name == "int8":
        return elements + 4 * ceil(elements / codec.block)
    return width * elements


LISTED = {("us-east-1", "us-east-2"): 0.01, ("us-east-2", "us-east-1"): 0.01}
FROM = {"us-east-1": (0.02, 0.09), "us-east-2": (0.02, 0.09), "ap-south-1": (0.086, 0.1093)}


def price_of(sender, receiver):
    """Dollars a GB, from the price list by hand; None if unknown."""
    if sender.egress_usd_per_gb is not None:
        return sender.egress_usd_per_gb
    if sender.provider is None:
        return None
    if receiver.provider is not None and sender.region == receiver.region:
        return 0.02
    prices = FROM.get(sender.region)
    if prices is None:
        return None
    if receiver.provider is None:
        return prices[1]
    return LISTED.get((sender.region, receiver.region), prices[0])


def trained(op):
    """Weights of an op that have gradients."""
    return op.num_params if op.num_trained is None else op.num_trained


def dollars(plan, step_s, unpriced=None):
    """Device hours and egress of one step, message by message; bytes without a price go into `unpriced`, by site."""
    problem = plan.problem
    cluster, ops = problem.cluster, problem.workload.graph.ops
    device = {d.id: d for d in cluster.devices}
    place = {h.id: h.site for h in cluster.hosts}
    site = {d: place[device[d].host] for d in device}
    sites = {s.name: s for s in cluster.sites}
    unpriced = {} if unpriced is None else unpriced
    used = [replica[0] for stage in plan.stages for replica in stage.replicas]
    hours = sum(device[d].price_usd_per_hour for d in used) * step_s / 3600

    def paid(source, target, size):
        if site[source] == site[target]:
            return 0.0
        price = price_of(sites[site[source]], sites[site[target]])
        if price is None:
            unpriced[site[source]] = unpriced.get(site[source], 0) + size
            return 0.0
        return size * price / 1e9

    egress = 0.0
    rules = {(r.from_device, r.to_device, r.role): r.codec for r in plan.link_codecs}
    for route in plan.routes:
        path = [plan.stages[s].replicas[r][0] for s, r in enumerate(route.replicas)]
        for s, (x, y) in enumerate(itertools.pairwise(path)):
            elements = ops[plan.stages[s].end_op - 1].output_bytes // 4 * problem.workload.micro_batch
            # No gradient goes back to ops of which none is trained.
            is_trained = any(trained(op) for op in ops[: plan.stages[s].end_op])
            for source, target, role in ((x, y, "activation"), (y, x, "gradient"))[: 1 + is_trained]:
                codec = rules.get((source, target, role), Codec(name="none"))
                egress += paid(source, target, wire_bytes(codec, elements, 4) * route.micro_batches)
    stage_of = [s for s, stage in enumerate(plan.stages) for _ in range(stage.first_op, stage.end_op)]
    buckets = [[0, [r[0] for r in stage.replicas], stage.reduce_codec] for stage in plan.stages]
    index = {op.name: i for i, op in enumerate(ops)}
    torn = {}
    for i, op in enumerate(ops):
        if op.tied is None:
            buckets[stage_of[i]][0] += trained(op)
        elif stage_of[i] != stage_of[index[op.tied]]:
            first = stage_of[index[op.tied]]
            torn.setdefault(op.tied, (trained(op), {first: None}))[1][stage_of[i]] = None
    for elements, users in torn.values():
        first = next(iter(users))
        buckets[first][0] -= elements
        members = [d for s in users for d in buckets[s][1]]
        buckets.append([elements, members, plan.stages[first].reduce_codec])
    for elements, members, codec in buckets:
        if elements and len(members) > 1:
            shard = wire_bytes(codec, ceil(elements / len(members)), 4)
            # There to the owner of the shard, and the sum back.
            egress += sum(paid(x, y, 2 * shard) for x, y in itertools.permutations(members, 2))
    return hours, egress


@settings(max_examples=150, deadline=None)
@given(ragged_plans())
def test_dollars_are_device_hours_and_egress_of_every_message(plan):
    estimate = estimate_plan(plan)
    unpriced = {}
    hours, egress = dollars(plan, estimate.step_s, unpriced)
    assert estimate.unpriced_egress_bytes == pytest.approx(unpriced)
    assert bool(estimate.left_out_text) == bool(unpriced)
    assert estimate.device_usd == pytest.approx(hours, rel=1e-12, abs=1e-30)
    assert estimate.egress_usd == pytest.approx(egress, rel=1e-12, abs=1e-30)
    tokens = plan.problem.workload.global_batch * plan.problem.workload.seq_len
    assert estimate.usd_per_mtoken == pytest.approx((hours + egress) / tokens * 1e6, rel=1e-12)
    assert estimate.tokens_per_usd == pytest.approx(tokens / (hours + egress), rel=1e-12)
    model = CostModel.of(plan.problem)
    paid = list_dollars(plan, estimate.step_s, model.tables, model.links)
    assert sum(usd for _, usd in paid) == pytest.approx(hours + egress, rel=1e-12)
    assert sum(usd for name, usd in paid if name.startswith("egress")) == pytest.approx(egress, rel=1e-12, abs=1e-30)
    assert [usd for _, usd in paid] == sorted((usd for _, usd in paid), reverse=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 2), (2, 4), (1, 1)]), st.booleans())
def test_the_search_counts_the_same_dollars(seed, shape, recompute):
    """The kernels' value of a layout is what its plan costs, tied weights included."""
    rng = np.random.default_rng(seed)
    problem = Problem(
        cluster=unlike_cluster(rng, shape[0] * shape[1] + 1),
        workload=tied_workload(rng, MICRO_BATCHES),
        objective="cost",
    )
    model = CostModel.of(problem)
    species = StepSpecies(model, shape, seed % 1000, "random", recompute=recompute)
    candidate = species.random()
    plan = dense_plan(species.layout(candidate), problem, Provenance())
    estimate = estimate_plan(plan)
    hours, egress = dollars(plan, estimate.step_s)
    per_mtoken = 1e6 / problem.workload.tokens_per_step
    assert candidate.value == pytest.approx((hours + egress) * per_mtoken, rel=1e-4)


def test_an_unknown_price_leaves_egress_known():
    plan = ragged_plan_of_two_sites()
    cluster = plan.problem.cluster
    unpriced = cluster.replace(devices=tuple(d.replace(price_usd_per_hour=None) for d in cluster.devices))
    estimate = estimate_plan(plan.replace(problem=plan.problem.replace(cluster=unpriced)))
    assert estimate.device_usd is None
    assert estimate.usd_per_mtoken is None
    assert estimate.tokens_per_usd is None
    assert estimate.egress_usd == pytest.approx(dollars(plan, 1.0)[1])
    assert estimate.egress_usd > 0


def ragged_plan_of_two_sites():
    """Two stages at two sites, the first of which charges for egress."""
    rng = np.random.default_rng(0)
    cluster = unlike_cluster(rng, 2)
    sites = tuple(s.replace(egress_usd_per_gb=0.1) for s in cluster.sites)
    devices = tuple(d.replace(host=h) for d, h in zip(cluster.devices, ("ha", "hb"), strict=True))
    problem = Problem(cluster=cluster.replace(sites=sites, devices=devices), workload=tied_workload(rng, MICRO_BATCHES))
    stages = (
        Stage(first_op=0, end_op=5, replicas=(("d0",),), in_flight=2),
        Stage(first_op=5, end_op=len(problem.workload.graph.ops), replicas=(("d1",),), in_flight=1),
    )
    routes = (Route(replicas=(0, 0), micro_batches=MICRO_BATCHES),)
    return Plan(problem=problem, stages=stages, routes=routes, ranks=("d0", "d1"))


def test_the_bound_counts_egress_where_every_pipeline_must_leave_its_site():
    """Two stages on one device each at two sites; of three stages none fits, of one it may stay at home."""
    plan = ragged_plan_of_two_sites()
    for stages, must_leave in ((2, True), (1, False)):
        problem = plan.problem.replace(constraints=Constraints(stages=stages, replicas=1))
        free = problem.replace(
            cluster=problem.cluster.replace(
                sites=tuple(site.replace(egress_usd_per_gb=0.0) for site in problem.cluster.sites)
            )
        )
        paid, unpaid = (bound_cost(CostModel.of(task).tables) for task in (problem, free))
        tables = CostModel.of(problem).tables
        least_bytes = 2 * MICRO_BATCHES * float(tables.boundary_bytes_O[tables.cuts].min())
        egress = 0.1e-9 * least_bytes / problem.workload.tokens_per_step * 1e6
        assert paid == pytest.approx(unpaid + (egress if must_leave else 0.0), rel=1e-12)
        assert paid > 0
    assert estimate_plan(plan).usd_per_mtoken >= bound_cost(
        CostModel.of(plan.problem.replace(constraints=Constraints(stages=2))).tables
    )
