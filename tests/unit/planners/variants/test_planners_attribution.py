"""What a plan's advantage is made of: one choice at a time, against numbers computed apart."""

import json
from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.codecs.spec import Codec
from hetplanner.cost.estimate import estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import LinkCodec
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.attribution import attribute_gain, divide_gain
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"
CHOICES = ["placement", "cut", "shares", "depth", "codecs", "reducer"]


def step_s(plan):
    return estimate_plan(plan).step_s


def shares(gain):
    return {part.name: part.share for part in gain.parts}


def plain(**options):
    """Every choice as the baseline makes it: all links alike, 2 stages × 2 pipelines, equal layers and shares."""
    plan = chain_plan([8, 8], [5], **options)
    off = attribute_gain(plan)
    assert off is not None
    return plan, off


def with_codecs(plan, codec=Codec(name="int8")):  # noqa: B008
    """A codec for every message between stages."""
    one, two = ([r[0] for r in stage.replicas] for stage in plan.stages)
    links = tuple(
        LinkCodec(from_device=a, to_device=b, role=role, codec=codec)
        for first, second, role in ((one, two, "activation"), (two, one, "gradient"))
        for a, b in zip(first, second, strict=True)
    )
    problem = plan.problem.replace(constraints=Constraints(codecs=("none", codec.name)))
    return plan.replace(problem=problem, link_codecs=links)


def test_the_baseline_gains_nothing_over_itself():
    plan, off = plain()
    assert off.value == off.baseline == step_s(plan)
    assert off.parts == ()
    assert off.ratio == 1.0


def test_depth_alone():
    plan, off = plain(cluster=small_cluster(4, latency="200 ms"))
    deeper = plan.replace(stages=tuple(stage.replace(in_flight=8) for stage in plan.stages))
    gain = attribute_gain(deeper)
    assert gain.value == step_s(deeper) < off.value
    assert gain.baseline == off.value
    assert shares(gain) == pytest.approx({name: float(name == "depth") for name in CHOICES})


@pytest.mark.parametrize("codec", [Codec(name="int8"), Codec(name="topk", ratio=7.0)], ids=str)
def test_codecs_alone(codec):
    plan, off = plain(cluster=small_cluster(4, bandwidth="1 Mbit/s"))
    gain = attribute_gain(with_codecs(plan, codec))
    assert gain.baseline == off.value > gain.value
    assert shares(gain) == pytest.approx({name: float(name == "codecs") for name in CHOICES})


def test_two_choices_are_told_apart_each_against_the_plan_without_it():
    plan, off = plain(cluster=small_cluster(4, bandwidth="1 Mbit/s", latency="200 ms"))
    both = with_codecs(plan.replace(stages=tuple(stage.replace(in_flight=8) for stage in plan.stages)))
    gain = attribute_gain(both)
    parts = {part.name: part for part in gain.parts}
    assert gain.baseline == off.value
    assert parts["codecs"].value == step_s(both.replace(link_codecs=()))
    assert parts["codecs"].share == (parts["codecs"].value - gain.value) / (gain.baseline - gain.value)
    assert parts["depth"].value == step_s(with_codecs(plan))
    assert parts["placement"].share == pytest.approx(0.0)
    assert parts["codecs"].share > 0
    assert parts["depth"].share > 0


def test_cut_alone_on_unlike_devices():
    """Rank order gives pipeline p the devices 2p and 2p + 1: with odd ones slow, stage 1 is slow in both."""
    fast = small_cluster(4, bandwidth="100 Gbit/s", latency="0.1 ms")
    slow = [d.replace(peak={"float32": 1e9}) if i % 2 else d for i, d in enumerate(fast.devices)]
    even = chain_plan([8, 8], [5], cluster=fast.replace(devices=tuple(slow)))
    pairs = [(("d0",), ("d2",)), (("d1",), ("d3",))]
    order = even.replace(stages=tuple(s.replace(replicas=r) for s, r in zip(even.stages, pairs, strict=True)))
    off = attribute_gain(order)
    assert off.parts == ()
    first, last = order.stages
    uneven = order.replace(stages=(first.replace(end_op=7), last.replace(first_op=7)))
    gain = attribute_gain(uneven)
    assert gain.baseline == off.value > gain.value
    assert shares(gain) == pytest.approx({name: float(name == "cut") for name in CHOICES})


def test_placement_alone_on_the_published_objective():
    problem = Problem(
        cluster=load_cluster(SAMPLES / "dtfm_2_spot.json"),
        workload=preset("gpt3-xl"),
        objective="dtfm",
        constraints=Constraints(stages=8, replicas=8),
    )
    result = make_planner("evolution").solve(problem, budget="20000 evaluations")
    gain = attribute_gain(result.plan)
    assert gain.value == result.value
    assert gain.baseline == pytest.approx(make_planner("rank-order").solve(problem).value)
    assert shares(gain) == {name: float(name == "placement") for name in CHOICES}


def test_a_cut_that_fits_no_other_placement_goes_with_it():
    """Stage 0, with one layer, on a small slow device; rank order would put stage 1, with three, on it."""
    even = chain_plan([16], [5])
    tables = CostTables(even.problem)
    room = max(tables.stage_bytes(0, 5, 1, False), tables.stage_bytes(5, 12, 1, False)) + 1024
    assert tables.stage_bytes(3, 12, 1, False) > room
    big, small = even.problem.cluster.devices
    small = small.replace(memory=int(room), reserve=0, peak={"float32": 1e9})
    first, last = even.stages
    plan = even.replace(
        problem=even.problem.replace(cluster=even.problem.cluster.replace(devices=(big, small))),
        stages=(
            first.replace(end_op=3, replicas=((small.id,),)),
            last.replace(first_op=3, replicas=((big.id,),)),
        ),
        ranks=(small.id, big.id),
    )
    parts = {part.name: part for part in attribute_gain(plan).parts}
    assert parts["placement"].beside == "cut"
    assert parts["placement"].share == pytest.approx(1.0)
    assert parts["cut"].beside is None


@pytest.mark.parametrize("seed", range(3))
def test_every_choice_has_a_number_on_mixed_gpus(seed):
    problem = Problem(cluster=mixed_gpus(seed), workload=preset("gpt2-xl"))
    gain = attribute_gain(make_planner("evolution").solve(problem, budget="200000 evaluations").plan)
    assert gain.ratio > 1
    assert [part.name for part in gain.parts] == CHOICES
    data = json.loads(json.dumps(gain.to_data(), allow_nan=False))
    assert data["parts"]["placement"]["share"] > 0


def test_a_baseline_that_fits_nowhere_gives_no_gain():
    plan, _ = plain()
    tight = plan.problem.cluster.replace(
        devices=tuple(d.replace(memory=2**16, reserve=0) for d in plan.problem.cluster.devices)
    )
    assert attribute_gain(plan.replace(problem=plan.problem.replace(cluster=tight))) is None


# -- divided so that it adds up -------------------------------------------------------------------


def test_divided_shares_add_up_to_the_whole_gain():
    problem = Problem(
        cluster=load_cluster(SAMPLES / "dtfm_5_worldwide.json"),
        workload=preset("gpt3-xl"),
        constraints=Constraints(stages=8, replicas=8),
    )
    plan = make_planner("evolution").solve(problem, seed=0, budget="3000 evaluations").plan
    gain = divide_gain(plan)
    assert (gain.value, gain.baseline) == (pytest.approx(step_s(plan)), attribute_gain(plan).baseline)
    assert sum(part.share for part in gain.parts) == pytest.approx(1.0)
    names = [name for part in gain.parts for name in part.name.split(" + ")]
    assert len(set(names)) == len(names)
    assert set(names) <= set(CHOICES), "only choices that the plan made differently"
    values = [part.value for part in gain.parts]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(gain.value)


def test_a_single_choice_has_the_whole_gain():
    plan, _ = plain(cluster=small_cluster(4, latency="200 ms"))
    deep = plan.replace(stages=tuple(stage.replace(in_flight=8) for stage in plan.stages))
    found = divide_gain(deep)
    assert found.parts[0].name == "depth"
    assert found.parts[0].share == pytest.approx(1.0)
    assert divide_gain(plan).parts == ()


def test_what_gains_most_is_made_first_and_the_next_one_beside_it():
    plan, _ = plain(cluster=small_cluster(4, bandwidth="1 Mbit/s", latency="100 ms"))
    both = with_codecs(plan.replace(stages=tuple(stage.replace(in_flight=8) for stage in plan.stages)))
    base, value = step_s(plan), step_s(both)
    alone = {"depth": step_s(both.replace(link_codecs=())), "codecs": step_s(with_codecs(plan))}
    first = min(alone, key=lambda name: alone[name])
    found = divide_gain(both).parts
    assert found[0].name == first
    assert found[0].value == pytest.approx(alone[first])
    assert found[0].share == pytest.approx((base - alone[first]) / (base - value))
    assert sum(part.share for part in found) == pytest.approx(1.0)
