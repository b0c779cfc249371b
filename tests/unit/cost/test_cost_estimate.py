from dataclasses import replace

import numpy as np
import pytest

from hetplanner.cluster.model import SiteLink
from hetplanner.codecs.spec import Codec
from hetplanner.cost.check import check_plan, check_problem
from hetplanner.cost.closed_form import StepArrays, time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import LinkCodec
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload

PLANS = [
    chain_plan((4,), ()),
    chain_plan((4,), (5,)),
    chain_plan((5, 3), (3, 6)),
    chain_plan((8, 8), (2, 5, 9)),
    chain_plan((6, 2), (4,), schedule="gpipe", in_flight=[8, 8]),
]


def uniform(stages, micro_batches, *, forward=1.0, backward=2.0, hop=0.0, wire=0.0, depth=None):
    shape, edges = (1, stages), (1, stages - 1)
    return StepArrays(
        rank_PS=np.arange(stages)[None, :],
        micro_batches_P=np.array([micro_batches]),
        through_PS=np.full(shape, micro_batches),
        in_flight_S=np.array(depth or [stages - s for s in range(stages)]),
        forward_s_PS=np.full(shape, forward),
        backward_s_PS=np.full(shape, backward),
        activation_s_PE=np.full(edges, hop + wire),
        gradient_s_PE=np.full(edges, hop + wire),
        activation_wire_s_PE=np.full(edges, wire),
        gradient_wire_s_PE=np.full(edges, wire),
        nic_s_P=np.zeros(1),
        reduce_s_S=np.zeros(stages),
        tied=(),
        optimizer_s=0.0,
    )


def test_without_a_network_a_pipeline_takes_m_plus_s_minus_1_slots():
    assert time_step(uniform(4, 8)).step_s == pytest.approx((8 + 3) * 3.0)


def test_round_trips_rule_where_few_micro_batches_are_in_flight():
    # One in flight: every micro-batch waits for the whole round trip, 2 stages x 3 s + 2 x 10 s.
    assert time_step(uniform(2, 5, hop=10.0, depth=[1, 1])).step_s == pytest.approx(5 * 26.0)
    # All in flight: the round trip is paid once.
    assert time_step(uniform(2, 5, hop=10.0, depth=[5, 5])).step_s == pytest.approx(26.0 + 4 * 3.0)


def test_a_slow_wire_sets_the_pace():
    assert time_step(uniform(2, 5, wire=7.0, depth=[5, 5])).step_s == pytest.approx(2 * 3 + 2 * 7 + 4 * 7.0)


def test_gpipe_pays_forwards_and_backwards_in_turn():
    arrays = replace(uniform(2, 5, wire=7.0, depth=[5, 5]), phased=True)
    assert time_step(arrays).step_s == pytest.approx(2 * 3 + 2 * 7 + 4 * (7.0 + 7.0))


def test_reduction_hides_in_the_drain():
    arrays = replace(uniform(3, 4), reduce_s_S=np.array([0.0, 0.0, 4.0]))
    base = time_step(uniform(3, 4)).step_s
    assert time_step(arrays).step_s == pytest.approx(base)  # two backwards of 2 s drain behind the last stage
    longer = replace(arrays, reduce_s_S=np.array([0.0, 0.0, 5.0]))
    assert time_step(longer).step_s == pytest.approx(base + 1.0)


def test_a_tied_weight_waits_for_all_its_stages():
    arrays = replace(uniform(3, 4), reduce_s_S=np.array([1.0, 0.0, 0.0]), tied=((5.0, (0, 2)),))
    assert time_step(arrays).step_s == pytest.approx(time_step(uniform(3, 4)).step_s + 1.0 + 5.0)


def test_tied_weights_are_reduced_one_after_the_other_where_they_share_a_stage():
    base = time_step(uniform(3, 4)).step_s
    in_turn = replace(uniform(3, 4), tied=((5.0, (0, 2)), (3.0, (0, 1))))
    assert time_step(in_turn).step_s == pytest.approx(base + 5.0 + 3.0)


@pytest.mark.parametrize("shared", [2, 6])
@pytest.mark.parametrize("reducer", ["ring", "sharded-ps"])
def test_shared_layers_torn_apart_are_timed_as_simulated(shared, reducer):
    workload = preset("small-gpt", layers=6, shared_layers=shared)
    plan = chain_plan((4, 4), (7,), workload=workload.replace(global_batch=16)).replace(reducer=reducer)
    assert estimate_plan(plan).step_s == pytest.approx(simulate_step_s(plan), rel=0.02)


@pytest.mark.parametrize("plan", PLANS)
def test_terms_sum_to_the_step(plan):
    estimate = estimate_plan(plan)
    assert sum(estimate.terms.values()) == pytest.approx(estimate.step_s, rel=1e-12)
    assert min(estimate.terms.values()) >= 0
    assert estimate.tokens_per_s == pytest.approx(plan.problem.workload.tokens_per_step / estimate.step_s)
    assert 0 <= estimate.bubble <= 1
    assert estimate.bottleneck.step_s_without <= estimate.step_s
    assert [d.device for d in estimate.devices] == list(plan.ranks)


def test_measured_durations_take_the_place_of_the_catalog():
    plan = PLANS[2]
    slow = durations_of(plan)
    slow = replace(slow, forward_s_C=slow.forward_s_C + 0.1, message_s=0.01)
    assert estimate_plan(plan, durations=slow).step_s > estimate_plan(plan).step_s + 0.5


def with_slow_link(plan, a, b, bandwidth):
    cluster = plan.problem.cluster
    names = [cluster.site_of(d).name for d in (a, b)]
    pairs = [(names[0], names[1]), (names[1], names[0])]
    slow = tuple(SiteLink(from_site=x, to_site=y, latency=0.01, bandwidth=bandwidth) for x, y in pairs)
    problem = plan.problem.replace(cluster=cluster.replace(site_links=cluster.site_links + slow))
    return plan.replace(problem=problem)


def test_the_one_slow_link_is_named():
    plan = chain_plan((8, 8), (3, 6), cluster=small_cluster(6, bandwidth="1 Gbit/s"))
    one, two = plan.stages[1].replicas[1][0], plan.stages[2].replicas[1][0]
    bottleneck = estimate_plan(with_slow_link(plan, one, two, 20_000.0)).bottleneck
    assert bottleneck.kind == "link"
    assert bottleneck.name == f"{one} ↔ {two}"


def test_the_one_slow_device_is_named():
    cluster = small_cluster(3, bandwidth="10 Gbit/s", latency="0 s")
    slow = cluster.devices[1].replace(peak={"float32": 1e7})
    cluster = cluster.replace(devices=(cluster.devices[0], slow, cluster.devices[2]))
    bottleneck = estimate_plan(chain_plan((8,), (3, 6), cluster=cluster)).bottleneck
    assert (bottleneck.kind, bottleneck.name) == ("device", slow.id)


def test_equal_stages_share_the_blame():
    plan = chain_plan((8, 8), (5,), cluster=small_cluster(4, bandwidth="1 Mbit/s"))
    assert estimate_plan(plan).bottleneck.kind == "stage"


def test_codecs_shorten_the_transfer_and_take_compute():
    plan = chain_plan((8,), (5,), cluster=small_cluster(2, bandwidth="1 Mbit/s"))
    one, two = plan.ranks
    rules = tuple(
        LinkCodec(from_device=a, to_device=b, role=role, codec=Codec(name="int8"))
        for a, b, role in ((one, two, "activation"), (two, one, "gradient"))
    )
    packed = plan.replace(link_codecs=rules)
    dense, small = estimate_plan(plan), estimate_plan(packed)
    assert small.terms["pipeline_transfer"] < 0.4 * dense.terms["pipeline_transfer"]
    assert small.terms["compute"] > dense.terms["compute"]
    with pytest.raises(InvalidInput, match=r"constraints\.codecs"):
        check_plan(packed)


def test_dollars_count_devices_and_egress():
    cluster = small_cluster(2)
    free = cluster.replace(devices=tuple(d.replace(price_usd_per_hour=3.6) for d in cluster.devices))
    paid = free.replace(sites=tuple(s.replace(egress_usd_per_gb=1.0) for s in free.sites))
    cheap, dear = (estimate_plan(chain_plan((8,), (5,), cluster=c)) for c in (free, paid))
    tokens = chain_plan((8,), (5,)).problem.workload.tokens_per_step
    assert cheap.usd_per_mtoken == pytest.approx(2 * 0.001 * cheap.step_s / tokens * 1e6)
    assert dear.usd_per_mtoken > cheap.usd_per_mtoken


def shrunk(plan, memory):
    cluster = plan.problem.cluster
    devices = tuple(d.replace(memory=memory, reserve=0.0) for d in cluster.devices)
    return plan.replace(problem=plan.problem.replace(cluster=cluster.replace(devices=devices)))


@pytest.mark.parametrize(
    ("stages", "replicas", "text"),
    [(9, 1, "4 layers"), (4, 4, "16 devices"), (1, 8, "micro-batches")],
)
def test_shapes_that_cannot_be_are_refused(stages, replicas, text):
    problem = Problem(cluster=small_cluster(8), workload=tiny_workload(layers=4, global_batch=8, micro_batch=2))
    with pytest.raises(InvalidInput, match=text):
        check_problem(problem, stages, replicas)


def test_the_model_of_a_problem_serves_many_plans():
    plan = PLANS[2]
    model = CostModel.of(plan.problem)
    assert estimate_plan(plan, model=model) == estimate_plan(plan)
    other = plan.problem.replace(constraints=Constraints(codecs=("none", "int8")))
    assert estimate_plan(plan.replace(problem=other)).step_s == estimate_plan(plan).step_s
