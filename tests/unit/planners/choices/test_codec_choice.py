"""Which codec the planner puts where: the weakest that is enough, AdaTopK's ratios, and nothing that does not pay."""

import itertools
import json

import pytest

from hetplanner.cluster.formats.cluster_files import cluster_from_data
from hetplanner.codecs.spec import Codec, most_kept
from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.check import check_plan, fits_memory, peak_bytes
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.model import LinkCodec
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.planners.choices.codec import (
    NEARLY_BEST,
    Allowed,
    best_reduction,
    best_seconds_per_byte_DD,
    choose_codecs,
    rough_objective,
    step_seconds_of,
)
from hetplanner.planners.registry import make_planner
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster

TOPK = {"name": "topk", "ratio": 3.0}
ELEMENTS = 2 * 32 * 32  # of a boundary of the test model, in float32


def chosen(plan, *codecs, max_ratio=100.0, **constraints):
    """The plan with its codecs, and its cost model."""
    wanted = Constraints(codecs=("none", *codecs), max_ratio=max_ratio, **constraints)
    plan = plan.replace(problem=plan.problem.replace(constraints=wanted), link_codecs=())
    model = CostModel.of(plan.problem)
    result = choose_codecs(plan, model)
    check_plan(result)
    return result, model


def link_names(plan):
    return {rule.codec.name for rule in plan.link_codecs}


def slow_plan(bandwidth="1 Mbit/s", shares=(8,), cuts=(5,), **options):
    cluster = small_cluster(len(shares) * (len(cuts) + 1), bandwidth=bandwidth, latency="1 ms")
    return chain_plan(shares, cuts, cluster=cluster, **options)


def uneven_plan():
    """Four slow stages in a row; the links are slow, ten times faster, and a thousand times faster."""
    names = [f"site-{i}" for i in range(4)]
    rates = {frozenset(pair): rate for pair, rate in zip(itertools.pairwise(names), (1e5, 1e6, 1e8), strict=True)}
    cluster = small_cluster(4, latency="1 ms")
    links = tuple(
        link.replace(bandwidth=rates.get(frozenset((link.from_site, link.to_site)), 1e9)) for link in cluster.site_links
    )
    devices = tuple(d.replace(peak={"float32": 1e9}) for d in cluster.devices)
    return chain_plan(
        (64,), (4, 6, 8), in_flight=(8, 6, 4, 2), cluster=cluster.replace(site_links=links, devices=devices)
    )


def ratios(plan):
    """Top-k's ratio by boundary; 1 where it is not used."""
    pairs = itertools.pairwise(plan.path_of_micro_batch(0))
    return [plan.codec_between(a, b, "activation").ratio for a, b in pairs]


def test_nothing_allowed_changes_nothing():
    plan = slow_plan()
    assert chosen(plan)[0].link_codecs == ()


@pytest.mark.parametrize("rule", ["topk", "adatopk", "int8"])
def test_links_that_do_not_hold_the_step_back_stay_dense(rule):
    assert chosen(slow_plan("100 Gbit/s"), rule)[0].link_codecs == ()


@pytest.mark.parametrize("rule", ["topk", "adatopk"])
def test_slow_links_are_pressed_both_ways_with_one_ratio(rule):
    plan, model = chosen(slow_plan(), rule, max_ratio=20.0)
    assert link_names(plan) == {"topk"}
    assert len({rule.codec for rule in plan.link_codecs}) == 1
    assert {rule.role for rule in plan.link_codecs} == {"activation", "gradient"}
    assert step_seconds_of(plan, model) < 0.5 * step_seconds_of(plan.replace(link_codecs=()), model)


def test_ours_is_nearly_as_fast_as_the_greatest_ratio_everywhere_and_weaker():
    plan, model = chosen(uneven_plan(), "topk")
    strongest = Codec(name="topk", ratio=max(ratios(chosen(uneven_plan(), "adatopk")[0])))
    path = [plan.ranks[r] for r in plan.path_of_micro_batch(0)]
    rules = [
        LinkCodec(from_device=a, to_device=b, role=role, codec=strongest)
        for one, two in itertools.pairwise(path)
        for a, b, role in ((one, two, "activation"), (two, one, "gradient"))
    ]
    everywhere = step_seconds_of(plan.replace(link_codecs=tuple(rules)), model)
    assert step_seconds_of(plan, model) <= everywhere * (1 + NEARLY_BEST)
    slow, medium, fast = ratios(plan)
    assert strongest.ratio > slow > medium
    assert fast == 1.0


def test_adatopk_follows_its_rule():
    plan, _ = chosen(uneven_plan(), "adatopk", max_ratio=30.0)
    slow, medium, fast = ratios(plan)
    dense = 4 * ELEMENTS
    # Seconds of a dense message there and back, 1 ms of latency each way.
    times = [2 * (0.001 + dense / rate) for rate in (1e5, 1e6)]
    assert ELEMENTS / slow == pytest.approx(most_kept(ELEMENTS, dense / 30.0), abs=1)
    assert ELEMENTS / medium == pytest.approx(most_kept(ELEMENTS, dense / (30.0 * times[1] / times[0])), abs=1)
    assert fast == 1.0


@pytest.mark.parametrize("rule", ["topk", "adatopk"])
@pytest.mark.parametrize("limit", [1.0, 1.5, 3.0, 40.0, 1e5])
def test_no_message_is_pressed_beyond_the_greatest_ratio(rule, limit):
    plan, _ = chosen(slow_plan("10 kbit/s"), rule, max_ratio=limit)
    for link in plan.link_codecs:
        assert link.codec.wire_bytes(ELEMENTS, 4) * limit >= 4 * ELEMENTS
    # Even with all elements kept, 16-bit values with a bitmap are 1.9 times shorter.
    assert bool(plan.link_codecs) == (limit > 2)


def test_int8_goes_where_topk_would_not_be_shorter():
    plan, _ = chosen(slow_plan("10 kbit/s"), "int8", "topk", max_ratio=3.0)
    assert link_names(plan) == {"int8"}
    plan, _ = chosen(slow_plan("10 kbit/s"), "int8", "adatopk", max_ratio=3.0)
    assert link_names(plan) == {"int8"}
    plan, _ = chosen(slow_plan("10 kbit/s"), "int8", "topk", max_ratio=50.0)
    assert link_names(plan) == {"topk"}


def test_the_weakest_within_the_bytes_wanted():
    codecs = ("none", "fp16", "bf16", "int8", "int4", "topk")
    plan = slow_plan()
    problem = plan.problem.replace(constraints=Constraints(codecs=codecs, max_ratio=100.0))
    dense = 4 * ELEMENTS

    def pair(share, back=1.0):
        return [str(c) for c in Allowed(problem).weakest(ELEMENTS, dense * share, dense * back)]

    assert pair(1.0) == ["none", "none"]
    assert pair(0.99) == ["fp16", "none"]
    assert pair(0.3, 0.5) == ["int8", "fp16"]
    assert pair(0.2, 0.2) == ["int4", "int4"]
    there, back = Allowed(problem).weakest(ELEMENTS, dense * 0.05, dense)
    assert there == back
    assert there.name == "topk"
    assert dense * 0.049 < there.wire_bytes(ELEMENTS, 4) <= dense * 0.05
    there, back = Allowed(problem).weakest(ELEMENTS, 0.0, 0.0)
    assert dense / 100 <= there.wire_bytes(ELEMENTS, 4) <= dense / 100 + 4


def test_reductions_take_the_weakest_codec_that_is_enough():
    plan = slow_plan("2 Mbit/s", shares=(4, 4), cuts=(5,))
    packed, model = chosen(plan, "fp16", "bf16", "int8")
    assert {stage.reduce_codec.name for stage in packed.stages} <= {"none", "int8"}
    assert any(stage.reduce_codec.name == "int8" for stage in packed.stages)
    dense = packed.replace(stages=tuple(s.replace(reduce_codec=Codec()) for s in packed.stages))
    assert step_seconds_of(packed, model) < 0.7 * step_seconds_of(dense, model)
    share, passes = best_reduction(packed.problem)
    assert share == pytest.approx((1 + 4 / 256) / 4)
    assert passes > 0
    assert not any(stage.error_feedback for stage in packed.stages)


@pytest.mark.parametrize(("codec", "least"), [("int4", 0.6), ("topk", 0.2), ("adatopk", 0.2)])
def test_coarse_reductions_feed_their_errors_back(codec, least):
    plan = slow_plan("2 Mbit/s", shares=(4, 4), cuts=(5,))
    packed, model = chosen(plan, codec, max_ratio=100.0)
    coarse = [stage for stage in packed.stages if stage.reduce_codec.name != "none"]
    assert coarse
    assert all(stage.error_feedback and stage.reduce_codec.name == codec.removeprefix("ada") for stage in coarse)
    check_plan(packed, model.tables)
    dense = packed.replace(stages=tuple(s.replace(reduce_codec=Codec(), error_feedback=False) for s in packed.stages))
    assert step_seconds_of(packed, model) < least * step_seconds_of(dense, model)
    share, _ = best_reduction(packed.problem)
    assert share == pytest.approx({"int4": (0.5 + 4 / 256) / 4}.get(codec, 0.01), rel=0.01)


def test_errors_are_fed_back_only_where_there_is_memory_for_them():
    plan = slow_plan("2 Mbit/s", shares=(4, 4), cuts=(5,))
    packed, model = chosen(plan, "int8", "topk")
    used = max(peak_bytes(plan, model.tables))
    assert max(peak_bytes(packed, model.tables)) > used
    devices = tuple(d.replace(memory=used * 1.0001, reserve=0.0) for d in plan.problem.cluster.devices)
    tight = plan.problem.replace(cluster=plan.problem.cluster.replace(devices=devices))
    packed, model = chosen(plan.replace(problem=tight), "int8", "topk")
    assert "int8" in {stage.reduce_codec.name for stage in packed.stages}
    assert "topk" not in {stage.reduce_codec.name for stage in packed.stages}
    check_plan(packed, model.tables)


def test_a_stage_whose_reduction_nobody_waits_for_stays_dense():
    """The embedding's stage holds most weights; the others reduce beside it."""
    plan = slow_plan("2 Mbit/s", shares=(4, 4), cuts=(1,))
    packed, _ = chosen(plan, "int8")
    sizes = [sum(op.num_params for op in plan.ops_of(s)) for s in range(2)]
    assert [stage.reduce_codec.name for stage in packed.stages].count("int8") >= 1
    assert sizes[1] > sizes[0]
    assert packed.stages[1].reduce_codec.name == "int8"


def test_dollars_count_what_leaves_a_site():
    """Links too fast to hold the step back, but every byte costs: the objective decides."""
    plan = slow_plan("100 Gbit/s")
    cluster = plan.problem.cluster
    dear = cluster.replace(
        sites=tuple(s.replace(egress_usd_per_gb=100.0) for s in cluster.sites),
        devices=tuple(d.replace(price_usd_per_hour=0.01) for d in cluster.devices),
    )
    plan = plan.replace(problem=plan.problem.replace(cluster=dear, objective="cost"))
    packed, model = chosen(plan, "topk", max_ratio=10.0)
    assert link_names(packed) == {"topk"}
    assert rough_objective(packed, model) < 0.5 * rough_objective(packed.replace(link_codecs=()), model)


def test_the_search_counts_the_best_ratio_allowed():
    plan = slow_plan("1 Mbit/s")
    rates = {}
    for codecs, ratio in ((("none",), 1.0), (("int8",), 1.0), (("topk",), 10.0), (("adatopk",), 100.0)):
        problem = plan.problem.replace(constraints=Constraints(codecs=codecs, max_ratio=ratio))
        rates[codecs[0]] = float(best_seconds_per_byte_DD(CostModel.of(problem))[0, 1])
    assert rates["none"] == 8e-6
    assert rates["int8"] == pytest.approx(8e-6 / 4, rel=0.05)
    # Gradients go without positions, so both ways together are shorter than the ratio says.
    assert 0.5 * 8e-7 < rates["topk"] < 8e-7
    assert 0.5 * 8e-8 < rates["adatopk"] < 8e-8


def test_lossy_choices_are_noted():
    plan = slow_plan(shares=(4, 4))
    assert estimate_plan(plan).notes == ()
    packed, _ = chosen(plan, "int8", "topk")
    (note,) = estimate_plan(packed).notes
    assert note.startswith("quality not modelled: topk on 4 of 4 links between stages")
    assert "topk in the gradient reduction of" in note


# -- refusals ------------------------------------------------------------------------------------


def data_with(plan, change):
    data = json.loads(json.dumps(plan_to_data(plan)))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["link_codecs"][0]["codec"].update(ratio=0.5), r"link_codecs\[0\]\.codec\.ratio: must be greater"),
        (lambda d: d["link_codecs"][0]["codec"].update(ratio="9"), r"link_codecs\[0\]\.codec\.ratio"),
        (lambda d: d["link_codecs"][0]["codec"].update(ratio=9.0), r"link_codecs\[\d\]\.codec: topk needs the same"),
        (lambda d: d["link_codecs"].pop(), r"link_codecs\[0\]\.codec: topk needs the same codec for the gradients"),
        (lambda d: d["link_codecs"][0]["codec"].update(name="zip"), r"codec\.name: must be 'none', 'fp16', 'bf16'"),
        (
            lambda d: d["stages"][1].update(reduce_codec=TOPK, error_feedback=False),
            r"stages\[1\]: reduce_codec: topk would drop",
        ),
        (
            lambda d: d["stages"][1].update(reduce_codec=TOPK | {"name": "int8"}),
            r"reduce_codec: ratio: belongs to topk only",
        ),
        (lambda d: d["problem"]["constraints"].update(max_ratio=0.1), r"constraints\.max_ratio: must be greater"),
        (lambda d: d["problem"]["constraints"].update(codecs=["topk", "adatopk"]), "allow one of them"),
    ],
)
def test_plan_files_with_nonsense_are_refused_with_the_path(change, words):
    plan, _ = chosen(slow_plan(), "topk")
    with pytest.raises(InvalidInput, match=words):
        plan_from_json(data_with(plan, change), "x.json")


def test_files_from_before_ratios_read_the_same():
    plan, _ = chosen(slow_plan(), "int8")

    def age(data):
        for rule in data["link_codecs"]:
            del rule["codec"]["ratio"]
        for stage in data["stages"]:
            del stage["reduce_codec"]["ratio"]
        del data["problem"]["constraints"]["max_ratio"]

    assert plan_from_json(data_with(plan, age), "x.json") == plan


def test_plans_beyond_their_constraints_are_refused():
    plan, _ = chosen(slow_plan(), "topk", max_ratio=50.0)
    tight = plan.problem.constraints.replace(max_ratio=5.0)
    with pytest.raises(InvalidInput, match=r"sends less than 1/5 of the dense bytes"):
        check_plan(plan.replace(problem=plan.problem.replace(constraints=tight)))
    without = plan.problem.constraints.replace(codecs=("none", "int8"))
    with pytest.raises(InvalidInput, match=r"link_codecs\[0\]\.codec: 'topk' is not among constraints\.codecs"):
        check_plan(plan.replace(problem=plan.problem.replace(constraints=without)))
    fed_back = {"reduce_codec": Codec(name="topk", ratio=51.0), "error_feedback": True}
    with pytest.raises(InvalidInput, match=r"stages\[0\]\.reduce_codec: topk keeps one gradient in 51, beyond"):
        check_plan(plan.replace(stages=tuple(s.replace(**fed_back) for s in plan.stages)))
    packed = plan.replace(stages=tuple(s.replace(reduce_codec=Codec(name="int8")) for s in plan.stages))
    with pytest.raises(InvalidInput, match=r"stages\[0\]\.reduce_codec: 'int8' is not among constraints\.codecs"):
        check_plan(packed)


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
def test_powersgd_is_timed_as_its_two_factors(reducer):
    """Latency twice, few bytes: on slow links it pays, on far ones it does not."""
    steps = {}
    for latency in ("1 ms", "500 ms"):
        cluster = small_cluster(4, bandwidth="2 Mbit/s", latency=latency)
        plan = chain_plan((4, 4), (5,), cluster=cluster).replace(reducer=reducer)
        allowed = Constraints(codecs=("none", "powersgd"))
        plan = plan.replace(problem=plan.problem.replace(constraints=allowed))
        factors = Codec(name="powersgd", rank=2)
        pressed = plan.replace(stages=tuple(s.replace(reduce_codec=factors) for s in plan.stages))
        check_plan(pressed)
        model = CostModel.of(pressed.problem)
        steps[latency] = tuple(estimate_plan(p, model=model).step_s for p in (plan, pressed))
        assert simulate_step_s(pressed) == pytest.approx(summarise_plan(pressed).step_s, rel=1e-9)
        assert bound_step(model.tables, model.links) <= steps[latency][1]
    assert steps["1 ms"][1] < steps["1 ms"][0]
    assert steps["500 ms"][1] > steps["500 ms"][0]


UNLIKE_SITES = {
    "name": "two sites",
    "sites": [
        {"name": "lab", "latitude": 52.0, "longitude": 4.0},
        {"name": "tower", "latitude": 45.0, "longitude": 7.0},
    ],
    "hosts": [{"id": "l", "site": "lab"}, {"id": "t", "site": "tower"}],
    "devices": [
        *({"id": f"l{i}", "kind": "RTX 4090", "host": "l"} for i in range(3)),
        *({"id": f"t{i}", "kind": "A100-40", "host": "t"} for i in range(2)),
    ],
    "site_links": [
        {"from": "lab", "to": "lab", "latency": "0.1 ms", "bandwidth": "1 Gbit/s"},
        {"from": "tower", "to": "tower", "latency": "0.1 ms", "bandwidth": "1 Gbit/s"},
        {"from": "lab", "to": "tower", "latency": "35 ms", "bandwidth": "90 Mbit/s", "symmetric": True},
    ],
}


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("codecs", [("int8",), ("int4",), ("adatopk",)])
def test_the_plan_is_worth_what_its_search_says(shape, codecs):
    """A weight that stages share travels, too, and what a codec loses is kept where memory seemed full."""
    constraints = Constraints(stages=shape[0], replicas=shape[1], codecs=("none", *codecs))
    problem = Problem(cluster=cluster_from_data(UNLIKE_SITES), workload=preset("gpt2-large"), constraints=constraints)
    seen = []
    result = make_planner("evolution").solve(problem, budget="500 evaluations", on_event=lambda e: seen.append(e.best))
    assert result.value <= min(seen) * (1 + NEARLY_BEST)
    assert all(stage.reduce_codec.name != "none" for stage in result.plan.stages)
    assert fits_memory(result.plan, CostModel.of(problem).tables)
