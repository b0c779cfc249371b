"""Calibration from traces: a cluster that was assumed wrongly is found from what a run on the true one shows."""

import pytest
from factories import chain_plan

from hetplanner.calibration.model import (
    apply_calibration,
)
from hetplanner.calibration.trace_fit import calibrate_trace
from hetplanner.cluster.model import Cluster, TransferCost
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.model import Plan
from hetplanner.schema import checked
from hetplanner.simulator.jitter import Jitter
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.workload.presets import preset

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
