"""Elastic plans of any shape: the steady state is a sound static plan, forecasts stay between 0 and the optimum."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cost.check import check_plan
from hetplanner.cost.elastic.steady_state import stage_seconds, steady_state_plan
from hetplanner.cost.elastic.swarm_costs import cost_swarm
from hetplanner.cost.estimate import estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.elastic.forecast.forecast import forecast_plan
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions
from hetplanner.elastic.protocol.settings import settings_of
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.rebalancing import REBALANCER_NAMES
from hetplanner.plan.files.plan_files import any_plan_from_data, plan_to_data
from hetplanner.simulator.simulation import simulate
from tests.support.plans.factories import swarm_plan, tied_workload, unlike_cluster

SEEDS = st.integers(0, 2**31)


def drawn_plan(seed: int) -> ElasticPlan:
    """Any stages, peers, codecs and settings on unlike devices."""
    rng = np.random.default_rng(seed)
    workload = tied_workload(rng, int(rng.integers(1, 40)))
    stages = int(rng.integers(1, 5))
    cuts = sorted(rng.choice(np.arange(1, len(workload.graph.ops)), stages - 1, replace=False).tolist())
    peers = [int(n) for n in rng.integers(1, 5, stages)]
    codecs = {
        f"{what}_codec": {"name": str(rng.choice(["none", "fp16", "int8", "int4"]))}
        for what in ("activation", "gradient", "averaging")
    }
    plan = swarm_plan(
        peers,
        cuts,
        in_flight=int(rng.integers(1, 6)),
        cluster=unlike_cluster(rng, sum(peers)),
        workload=workload,
        **codecs,
    )
    some = [stage.replace(recompute=bool(rng.integers(2))) for stage in plan.stages]
    wiring = plan.wiring.replace(slots=int(rng.integers(1, 20)), trainers=int(rng.integers(1, 3)))
    return plan.replace(stages=tuple(some), wiring=wiring)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_a_steady_state_step_is_a_sound_plan_of_the_same_peers(seed):
    plan = drawn_plan(seed)
    steady = steady_state_plan(plan)
    assert any_plan_from_data(json.loads(json.dumps(plan_to_data(plan)))) == plan
    assert settings_of(plan).stages == len(plan.stages) == len(steady.stages)
    for stage, still in zip(plan.stages, steady.stages, strict=True):
        assert {replica[0] for replica in still.replicas} <= set(stage.peers)
        assert (still.first_op, still.end_op, still.recompute) == (stage.first_op, stage.end_op, stage.recompute)
        assert still.reduce_codec == plan.averaging_codec
    for path in map(steady.path_of_micro_batch, range(plan.num_micro_batches)):
        for one, two in pairwise(path):
            there, back = (steady.ranks[one], steady.ranks[two]), (steady.ranks[two], steady.ranks[one])
            assert steady.codec_between(one, two, "activation") == plan.codec_between(*there, "activation")
            assert steady.codec_between(two, one, "gradient") == plan.codec_between(*back, "gradient")
    allowed = steady.problem.constraints.replace(codecs=("none", "fp16", "int8", "int4"))
    check_plan(steady.replace(problem=steady.problem.replace(constraints=allowed)))
    assert simulate(steady).end_s > 0


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_costs_repeat_the_steady_state_estimate_and_shares_follow_speed(seed):
    plan = drawn_plan(seed)
    costs = cost_swarm(plan)
    assert abs(sum(costs.load_S) - 1) < 1e-9
    assert costs.steady_tokens_per_s == estimate_plan(steady_state_plan(plan)).tokens_per_s
    assert costs.overhead_s >= 0
    steady, first = steady_state_plan(plan), plan.stages[0].peers
    load = Counter(steady.ranks[steady.path_of_micro_batch(m)[0]] for m in range(plan.num_micro_batches))
    rows = np.array([plan.problem.cluster.device_index(peer) for peer in first])
    speed = 1.0 / stage_seconds(plan, CostTables(plan.problem), rows)[:, 0]
    share = np.array([load[peer] for peer in first])
    assert np.abs(share - plan.num_micro_batches * speed / speed.sum()).max() <= len(first)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(REBALANCER_NAMES))
def test_forecasts_lie_between_nothing_and_the_optimum(seed, policy):
    plan = drawn_plan(seed)
    trace = generate_preemptions(seed % 1000, peers=len(plan.peers), lifetime_s=1800.0, duration_s=7200.0)
    found = forecast_plan(
        plan,
        cost_swarm(plan),
        lambda _: trace,
        [0],
        rebalancing=plan.rebalancing.replace(policy=policy),
        download_s=60.0,
    )
    assert 0 <= found.share_of_optimal <= 1 + 1e-9
    assert 0 <= found.stalled <= 1
    assert found.tokens_per_s.mean >= 0
