"""Laws of simulated time: what the closed form gives exactly, what may never lengthen a step, what must not matter."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.durations import Durations
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.packing import pack_plan
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.simulator.timing import simulate_step_s, time_packed
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.plans.random_plans import random_plan


def even_durations(stages, codec_s=0.0):
    """Every stage computes 10 ms forward and 20 ms backward."""
    codec = np.full(stages, codec_s)
    return Durations(np.full(stages, 0.01), np.full(stages, 0.02), np.full(stages, 0.001), codec, codec, codec * 0)


@st.composite
def uniform_chains(draw, links):
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 16))
    bandwidth, latency = draw(links)
    schedule, everything = draw(st.sampled_from([("gpipe", True), ("1f1b", True), ("1f1b", False)]))
    return chain_plan(
        (micro_batches,),
        [1 + 8 * s for s in range(1, stages)],
        schedule=schedule,
        in_flight=[micro_batches if everything else stages - s for s in range(stages)],
        cluster=small_cluster(stages, bandwidth=bandwidth, latency=latency),
        workload=tiny_workload(layers=24, global_batch=2 * micro_batches),
    )


def closed_over_simulated(plan):
    durations = even_durations(len(plan.stages))
    simulated = summarise_trace(simulate(plan, durations, schedule=make_schedule(plan, durations))).step_s
    return estimate_plan(plan, durations=durations).step_s / simulated


slow_links = st.tuples(
    st.sampled_from(["1 Gbit/s", "100 Mbit/s", "5 Mbit/s"]), st.sampled_from(["0 s", "1 ms", "30 ms"])
)


@settings(max_examples=80, deadline=None)
@given(uniform_chains(slow_links))
def test_on_a_uniform_chain_the_closed_form_is_the_simulation(plan):
    """Exact for GPipe, and for 1F1B with every micro-batch in flight, on any links; close where depth is short."""
    ratio = closed_over_simulated(plan)
    if plan.held_S == (plan.problem.workload.num_micro_batches,) * len(plan.stages):
        assert ratio == pytest.approx(1.0, rel=1e-9)
    else:
        assert 0.9 <= ratio <= 1.0 + 1e-9


@settings(max_examples=40, deadline=None)
@given(uniform_chains(st.just(("100000 Gbit/s", "0 s"))))
def test_without_a_network_usual_depths_are_exact_too(plan):
    assert closed_over_simulated(plan) == pytest.approx(1.0, rel=1e-6)


def unordered(plan):
    """With the one reducer whose transfers do not depend on the links: a ring goes round another way on others."""
    return plan.replace(reducer="sharded-ps")


def made_faster(seed, which):
    """A plan without NICs, and with one thing better: links with more bandwidth or less latency, or a device faster."""
    plan, rng = unordered(random_plan(seed, nics=False)), random.Random(which)
    cluster, durations = plan.problem.cluster, durations_of(plan)
    factor = rng.uniform(1.05, 3.0)
    match rng.randrange(3):
        case 0:
            links = tuple(k.replace(bandwidth=k.bandwidth * factor) for k in cluster.site_links)
        case 1:
            links = tuple(k.replace(latency=k.latency / factor) for k in cluster.site_links)
        case _:
            links = cluster.site_links
            chunk = rng.randrange(len(plan.chunks))
            quick = {name: getattr(durations, name).copy() for name in ("forward_s_C", "backward_s_C")}
            for seconds in quick.values():
                seconds[chunk] /= factor
            durations = replace(durations, **quick)
    better = plan.replace(problem=plan.problem.replace(cluster=cluster.replace(site_links=links)))
    return plan, better, durations


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_better_links_and_devices_never_lengthen_the_same_order(seed, which):
    """Without NICs: there a rank's messages queue behind those of others in the order of time, which may change."""
    plan, better, durations = made_faster(seed, which)
    packed = pack_plan(plan)
    before, after = time_packed(packed), time_packed(pack_plan(better, durations, order=packed.order))
    assert after.step_s <= before.step_s * (1 + 1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_engine_takes_the_order_as_an_argument_too(seed, which):
    plan, better, durations = made_faster(seed, which)
    schedule = make_schedule(plan)
    before = summarise_trace(simulate(plan, schedule=schedule)).step_s
    after = summarise_trace(simulate(better, durations, schedule=schedule)).step_s
    assert after <= before * (1 + 1e-12)
    retimed = time_packed(pack_plan(better, durations, order=pack_plan(plan).order)).step_s
    assert retimed == pytest.approx(after, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_relabelling_devices_changes_no_time(seed, nics):
    plan = random_plan(seed, nics=nics)
    cluster = plan.problem.cluster
    assume(len(cluster.devices) > 1)
    rng = random.Random(seed)
    names = {d.id: f"other-{i}" for i, d in enumerate(rng.sample(cluster.devices, len(cluster.devices)))}
    shuffled = rng.sample([d.replace(id=names[d.id]) for d in cluster.devices], len(cluster.devices))
    renamed = plan.replace(
        problem=plan.problem.replace(cluster=cluster.replace(devices=tuple(shuffled))),
        ranks=tuple(names[d] for d in plan.ranks),
        stages=tuple(
            s.replace(replicas=tuple(tuple(names[d] for d in replica) for replica in s.replicas)) for s in plan.stages
        ),
        link_codecs=tuple(
            k.replace(from_device=names[k.from_device], to_device=names[k.to_device]) for k in plan.link_codecs
        ),
    )
    assert simulate_step_s(renamed) == pytest.approx(simulate_step_s(plan), rel=1e-12)
    assert estimate_plan(renamed).step_s == pytest.approx(estimate_plan(plan).step_s, rel=1e-12)
