"""Calibration from traces: a cluster that was assumed wrongly is found from what a run on the true one shows."""

import json
import random
from dataclasses import replace

import pytest

from hetplanner.calibration.model import (
    Calibration,
    KindFit,
    apply_calibration,
    calibration_from_json,
    load_calibration,
    save_calibration,
)
from hetplanner.calibration.observations import observe_trace
from hetplanner.calibration.trace_fit import calibrate_trace
from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json
from hetplanner.cluster.model import Cluster, TransferCost
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.trace_files import load_trace, trace_from_json
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Trace
from hetplanner.schema import checked
from hetplanner.simulator.jitter import Jitter
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan

WORKLOAD = preset("gpt2", global_batch=24, micro_batch=2)


def mixed_cluster(*, t4: float, v100: float, factor: float, transfer: TransferCost | None = None) -> Cluster:
    """Two T4 and two V100 at two sites; `factor` makes links slower and latencies longer than their base."""
    sites = ("Delft", "Turin")
    data = {
        "name": "mixed",
        "sites": [{"name": n, "latitude": 50.0, "longitude": 5.0} for n in sites],
        "hosts": [{"id": f"h{i}", "site": sites[i // 2]} for i in range(4)],
        "devices": [
            {"id": f"d{i}", "kind": kind, "host": f"h{i}", "efficiency": efficiency}
            for i, (kind, efficiency) in enumerate([("T4", t4), ("V100-16", v100)] * 2)
        ],
        "site_links": [
            {"from": a, "to": b, "latency": (0.001 if a == b else 0.02) * factor, "bandwidth": rate / factor}
            for a, b, rate in [
                ("Delft", "Delft", 1e9),
                ("Turin", "Turin", 1e9),
                ("Delft", "Turin", 4e8),
                ("Turin", "Delft", 2e8),
            ]
        ],
    }
    return checked(Cluster, data, "mixed").replace(transfer=transfer)


def plan_on(cluster: Cluster) -> Plan:
    """Two stages over two sites, two replicas."""
    return chain_plan((7, 5), (len(WORKLOAD.graph.ops) // 2,), cluster=cluster, workload=WORKLOAD)


TRUE = {"t4": 0.31, "v100": 0.52, "factor": 1.4}
ASSUMED = {"t4": 0.45, "v100": 0.45, "factor": 1.0}


@pytest.mark.parametrize("jitter", [Jitter(), Jitter(compute=0.1, network=0.1)])
def test_true_efficiencies_and_links_are_found_from_a_trace(jitter):
    transfer = TransferCost(message=0.003, overlap=0.6)
    true, assumed = plan_on(mixed_cluster(**TRUE, transfer=transfer)), plan_on(mixed_cluster(**ASSUMED))
    found = calibrate_trace(simulate(true, steps=6, jitter=jitter, seed=1), assumed, when="2026-11-20")
    close = 0.01 if jitter == Jitter() else 0.05
    assert {k.kind: k.efficiency for k in found.kinds} == pytest.approx({"T4": 0.31, "V100-16": 0.52}, rel=close)
    assert found.transfer is not None
    assert found.transfer.message == pytest.approx(0.003, rel=3 * close)
    assert found.transfer.overlap == pytest.approx(0.6, abs=0.05)
    fitted = apply_calibration(found, assumed.problem.cluster)
    for link in found.links:
        one, two = true.problem.cluster, fitted
        size = true.boundary_bytes(0, 0, 2, "activation")
        a, b = (next(d.id for d in one.devices if one.site_of(d.id).name == n) for n in (link.from_name, link.to_name))
        if a != b:
            seconds = [c.link(a, b).latency + size / c.link(a, b).bandwidth for c in (one, two)]
            assert seconds[1] == pytest.approx(seconds[0], rel=close)
            assert (fitted.link(a, b).source, fitted.link(a, b).when) == ("measured", "2026-11-20")


def test_the_calibrated_cluster_gives_the_measured_step_by_estimate_and_by_simulation():
    true, assumed = plan_on(mixed_cluster(**TRUE)), plan_on(mixed_cluster(**ASSUMED))
    trace = simulate(true, steps=3)
    found = calibrate_trace(trace, assumed)
    fitted = plan_on(apply_calibration(found, assumed.problem.cluster))
    measured = summarise_trace(trace).step_s
    assert summarise_trace(simulate(fitted, steps=3)).step_s == pytest.approx(measured, rel=0.02)
    assert estimate_plan(fitted).step_s == pytest.approx(estimate_plan(true).step_s, rel=0.03)
    step = found.checks[0]
    assert step.label == "step"
    assert abs(step.after_s / step.measured_s - 1) < 0.02 < abs(step.before_s / step.measured_s - 1)
    assert found.mean_error("after") < 0.02 < found.mean_error("before")


def test_late_sends_of_a_busy_machine_are_no_queue_at_a_link():
    plan, rng = plan_on(mixed_cluster(**ASSUMED)), random.Random(3)
    trace = simulate(plan, steps=6)

    def late(span):
        shift_s = rng.uniform(0.1, 3.0) * (span.end_s - span.start_s) if span.kind == "send" else 0.0
        return replace(span, start_s=span.start_s + shift_s, end_s=span.end_s + shift_s)

    found = observe_trace(Trace(tuple(late(span) for span in trace.spans), trace.rank_labels), plan)
    assert found.transit
    assert found.wire == {}


def test_reductions_of_fragments_tell_their_links():
    """A trace of one round has each fragment once; the fit simulates as many steps, to compare them."""
    streaming = {"local_steps": 12, "fragments": 2}
    true, assumed = (plan_on(mixed_cluster(**v)).replace(**streaming) for v in (TRUE, ASSUMED))
    found = calibrate_trace(simulate(true, steps=24), assumed)
    assert found.mean_error("after") < 0.05 < found.mean_error("before")


def test_a_perfect_assumption_stays_as_it_is():
    plan = plan_on(mixed_cluster(**TRUE))
    found = calibrate_trace(simulate(plan, steps=3), plan)
    assert found.mean_error("after") < 1e-3
    for kind, efficiency in (("T4", 0.31), ("V100-16", 0.52)):
        assert next(k.efficiency for k in found.kinds if k.kind == kind) == pytest.approx(efficiency, rel=1e-2)
    assert found.transfer == TransferCost(message=0.0, overlap=1.0)


def test_links_that_nothing_measured_stay_as_they_are():
    # One replica a stage: only d0 -> d1 and back carry anything, and both are at one site.
    workload = preset("gpt2", global_batch=8, micro_batch=2)
    plan = chain_plan((4,), (12,), cluster=mixed_cluster(**ASSUMED), workload=workload)
    found = calibrate_trace(simulate(plan, steps=2), plan, when="2026-11-20")
    assert [(link.from_name, link.to_name) for link in found.links] == [("Delft", "Delft")]
    assert apply_calibration(found, plan.problem.cluster).link("d0", "d2").source == "assumed"


def test_what_measurements_cannot_tell_apart_is_said():
    # Boundary messages of one size and no reduction over that link: latency and bandwidth are told in sum only.
    workload = preset("gpt2", global_batch=8, micro_batch=2)
    untied = workload.replace(transformer=workload.transformer.replace(tie_embeddings=False))
    plans = [
        chain_plan((2, 2), (len(untied.graph.ops) // 2,), cluster=mixed_cluster(**numbers), workload=untied)
        for numbers in (TRUE, ASSUMED)
    ]
    found = calibrate_trace(simulate(plans[0], steps=3), plans[1])
    between = [link for link in found.links if link.from_name != link.to_name]
    assert between
    assert all(link.latency_error is None or link.latency_error > 0.05 for link in between)
    told = next(k for k in found.kinds if k.kind == "T4")
    assert told.efficiency_error is not None
    assert told.efficiency_error < 0.05


def test_an_efficiency_above_the_whole_raises_the_peak():
    assumed = mixed_cluster(t4=1.0, v100=0.5, factor=1.0)
    faster = assumed.replace(
        devices=tuple(
            d.replace(peak={"float16": 2e14, "float32": 2e13}) if d.kind == "T4" else d for d in assumed.devices
        )
    )
    found = calibrate_trace(simulate(plan_on(faster), steps=3), plan_on(assumed))
    fitted = apply_calibration(found, assumed)
    t4 = next(d for d in fitted.devices if d.kind == "T4")
    assert t4.efficiency == 1.0
    assert found.mean_error("after") < 0.02
    measured = plan_on(assumed).problem.workload.dtype
    (fit,) = (fit for fit in found.kinds if fit.kind == "T4")
    assert fit.dtype == measured
    before, after = (resolve_device(next(d for d in c.devices if d.kind == "T4")) for c in (assumed, fitted))
    rates = {dtype: after.flops_per_s(dtype) / before.flops_per_s(dtype) for dtype in ("float32", "float16")}
    assert rates.pop(measured) > 1.2
    assert all(rate == pytest.approx(1.0) for rate in rates.values()), "formats that were not measured stay"


def test_calibrations_survive_their_file(tmp_path):
    plan = plan_on(mixed_cluster(**ASSUMED))
    found = calibrate_trace(simulate(plan_on(mixed_cluster(**TRUE)), steps=2), plan)
    save_calibration(found, tmp_path / "calibration.json")
    assert load_calibration(tmp_path / "calibration.json") == found
    assert json.loads((tmp_path / "calibration.json").read_text())["format"] == "hetplanner/calibration@1"


def test_a_calibrated_cluster_survives_its_file():
    cluster = mixed_cluster(**TRUE, transfer=TransferCost(message=0.015, overlap=0.75))
    again = cluster_from_json(cluster_to_json(cluster))
    assert again == cluster
    assert again.transfer == TransferCost(message=0.015, overlap=0.75)
    assert "transfer" not in cluster_to_json(mixed_cluster(**TRUE))


def test_messages_and_overlap_of_the_cluster_count_in_estimate_and_simulation():
    free = plan_on(mixed_cluster(**TRUE))
    costly = plan_on(mixed_cluster(**TRUE, transfer=TransferCost(message=0.002, overlap=0.5)))
    estimates = [estimate_plan(p).step_s for p in (free, costly)]
    simulated = [summarise_trace(simulate(p)).step_s for p in (free, costly)]
    assert estimates[1] > 1.02 * estimates[0]
    assert estimates[1] / estimates[0] == pytest.approx(simulated[1] / simulated[0], rel=0.05)


# -- bad input ------------------------------------------------------------------------------------


def test_a_trace_of_another_plan_is_refused_with_the_difference():
    plan = plan_on(mixed_cluster(**ASSUMED))
    other = chain_plan(
        (6,), (4,), cluster=mixed_cluster(**ASSUMED), workload=preset("gpt2", global_batch=12, micro_batch=2)
    )
    with pytest.raises(InvalidInput, match=r"another plan: 2 ranks, the plan has 4; of the plan alone: d2, d3"):
        calibrate_trace(simulate(other), plan)
    turned = Trace(simulate(plan).spans, plan.ranks[::-1])
    with pytest.raises(InvalidInput, match="same devices in another order"):
        calibrate_trace(turned, plan)
    moved = tuple(replace(s, stage=1 - s.stage) if s.kind == "forward" else s for s in simulate(plan).spans)
    with pytest.raises(InvalidInput, match="computes stage"):
        calibrate_trace(Trace(moved, plan.ranks), plan)


def test_an_empty_trace_is_refused():
    plan = plan_on(mixed_cluster(**ASSUMED))
    with pytest.raises(InvalidInput, match="no forward or backward span"):
        calibrate_trace(Trace((), plan.ranks), plan)


def test_a_calibration_of_other_devices_is_refused():
    kinds = (KindFit(kind="H100", efficiency=0.4, observations=1),)
    other = Calibration(cluster="elsewhere", source="table", kinds=kinds)
    with pytest.raises(InvalidInput, match=r"names no device kind or link of cluster 'mixed' .*H100"):
        apply_calibration(other, mixed_cluster(**ASSUMED))


HEAD = '"format": "hetplanner/calibration@1", "cluster": "a"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "required field is missing"),
        ('{"format": "hetplanner/plan@1"}', "must be 'hetplanner/calibration@1'"),
        ('{"format": "hetplanner/calibration@2"}', "newer"),
        (f'{{{HEAD}, "source": "guess"}}', "source"),
        (f'{{{HEAD}, "source": "table", "kinds": [{{"kind": "T4"}}]}}', "kinds"),
    ],
)
def test_wrong_calibration_files_are_refused_in_one_line(text, words):
    with pytest.raises(InvalidInput, match=words) as error:
        calibration_from_json(text, "c.json")
    assert "\n" not in str(error.value)


# -- trace files ----------------------------------------------------------------------------------


def test_a_trace_file_calibrates_like_the_trace(tmp_path):
    assumed = plan_on(mixed_cluster(**ASSUMED))
    trace = simulate(plan_on(mixed_cluster(**TRUE)), steps=3)
    (tmp_path / "trace.json").write_text(json.dumps(trace.to_perfetto()))
    again = load_trace(tmp_path / "trace.json")
    assert again.rank_labels == trace.rank_labels
    assert [(s.rank, s.kind, s.stage, s.role) for s in again.spans] == [
        (s.rank, s.kind, s.stage, s.role) for s in trace.spans
    ]
    one, two = calibrate_trace(trace, assumed, when="now"), calibrate_trace(again, assumed, when="now")
    assert [k.efficiency for k in two.kinds] == pytest.approx([k.efficiency for k in one.kinds], rel=1e-4)
    assert [k.bandwidth for k in two.links] == pytest.approx([k.bandwidth for k in one.links], rel=1e-3)


EVENT = {"ph": "X", "name": "forward 0", "cat": "forward", "pid": 0, "ts": 0, "dur": 1.0}
FACTS = {"step": 0, "micro_batch": 0, "bytes": 0, "peer": -1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "traceEvents: must be a list"),
        ({"traceEvents": {}}, "traceEvents: must be a list"),
        ({"traceEvents": []}, "holds no spans"),
        ({"traceEvents": [3]}, "must be an object"),
        ({"traceEvents": [EVENT]}, r"traceEvents\[0\]: args"),
        ({"traceEvents": [EVENT | {"args": FACTS, "dur": -1}]}, "dur"),
        ({"traceEvents": [EVENT | {"args": FACTS, "pid": 10**9}]}, "pid"),
        ({"traceEvents": [EVENT | {"args": FACTS, "cat": "gc"}]}, "cat"),
        ({"traceEvents": [{"ph": "M", "name": "process_name", "pid": -1, "args": {"name": "x"}}]}, "process_name"),
    ],
)
def test_wrong_trace_files_are_refused_in_one_line(data, words):
    with pytest.raises(InvalidInput, match=words) as error:
        trace_from_json(json.dumps(data), "t.json")
    assert "\n" not in str(error.value)
