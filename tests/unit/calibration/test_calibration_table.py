"""Calibration from tables of measured steps: a few factors, never more than there are rows."""

import json
from dataclasses import replace

import pytest

from hetplanner.calibration.model import apply_calibration, calibration_from_json, calibration_to_data
from hetplanner.calibration.table_fit import MeasuredStep, calibrate_table, match_plans, read_table
from hetplanner.cluster.formats.cluster_files import cluster_to_data
from hetplanner.cluster.model import TransferCost
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.profiles import made_profile
from tests.unit.calibration.test_calibration import ASSUMED, TRUE, mixed_cluster, plan_on


def table_of(true: dict, transfer: TransferCost | None = None) -> list[MeasuredStep]:
    """Steps of six plans: measured on the true cluster, planned on the assumed one."""
    steps = []
    for shares, cut in [((12, 12), 12), ((14, 10), 8), ((4, 4), 12), ((40, 8), 16), ((3, 3), 6), ((24, 24), 12)]:
        tied = preset("gpt2", global_batch=2 * sum(shares), micro_batch=2)
        workload = tied.replace(transformer=tied.transformer.replace(tie_embeddings=False))
        plans = [
            chain_plan(shares, (cut,), cluster=cluster, workload=workload)
            for cluster in (mixed_cluster(**true, transfer=transfer), mixed_cluster(**ASSUMED))
        ]
        steps.append(MeasuredStep(f"{shares}-{cut}", plans[1], estimate_plan(plans[0]).step_s))
    return steps


def test_one_row_tells_the_efficiency():
    step = table_of({"t4": 0.225, "v100": 0.225, "factor": 1.0})[-1]
    found = calibrate_table([step])
    assert [k.efficiency for k in found.kinds] == pytest.approx([0.225, 0.225], rel=0.02)
    assert found.mean_error("after") < 0.01 < found.mean_error("before")


def test_several_rows_tell_efficiency_and_links():
    steps = table_of({"t4": 0.3, "v100": 0.3, "factor": 1.5})
    found = calibrate_table(steps, fit=("efficiency", "latency", "bandwidth"), when="2026-11")
    assert [k.efficiency for k in found.kinds] == pytest.approx([0.3, 0.3], rel=0.05)
    fitted = apply_calibration(found, steps[0].plan.problem.cluster)
    true = mixed_cluster(t4=0.3, v100=0.3, factor=1.5)
    assert fitted.link("d0", "d2").bandwidth == pytest.approx(true.link("d0", "d2").bandwidth, rel=0.05)
    assert fitted.link("d0", "d2").source == "measured"
    assert found.mean_error("after") < 0.01


def test_several_rows_tell_message_cost_and_overlap():
    steps = table_of(ASSUMED, TransferCost(message=0.004, overlap=0.5))
    found = calibrate_table(steps, fit=("message", "overlap"))
    assert found.transfer is not None
    assert found.transfer.message == pytest.approx(0.004, rel=0.15)
    assert found.transfer.overlap == pytest.approx(0.5, abs=0.1)
    assert found.mean_error("after") < 0.01 < found.mean_error("before")
    fitted = apply_calibration(found, steps[0].plan.problem.cluster)
    plan = steps[0].plan.replace(problem=steps[0].plan.problem.replace(cluster=fitted))
    assert estimate_plan(plan).step_s == pytest.approx(found.checks[0].after_s, rel=1e-6)


def test_plans_of_unlike_models_tell_what_an_operator_takes_to_launch():
    steps = []
    for model, size in (("tiny-gpt", 1), ("tiny-gpt", 8), ("small-gpt", 2)):
        cluster = small_cluster(2).replace(name=f"{model} {size}")
        plan = chain_plan((4,), (5,), cluster=cluster, workload=preset(model, global_batch=4 * size, micro_batch=size))
        devices = tuple(device.replace(efficiency=0.2) for device in cluster.devices)
        true = cluster.replace(devices=devices, transfer=TransferCost(launch=3e-4))
        measured = plan.replace(problem=plan.problem.replace(cluster=true))
        steps.append(MeasuredStep(cluster.name, plan, estimate_plan(measured).step_s))
    found = calibrate_table(steps, fit=("efficiency", "launch"))
    assert found.transfer is not None
    assert found.transfer.launch == pytest.approx(3e-4, rel=0.03)
    assert [k.efficiency for k in found.kinds] == pytest.approx([0.2], rel=0.03)
    assert calibration_from_json(json.dumps(calibration_to_data(found))).transfer == found.transfer
    assert "launch" not in cluster_to_data(steps[0].plan.problem.cluster).get("transfer", {}), "as files were"
    profiled = steps[0].plan.problem.workload
    plan = steps[0].plan.replace(problem=steps[0].plan.problem.replace(profile=made_profile(profiled)))
    with pytest.raises(InvalidInput, match="has a profile, which goes before the devices' launch"):
        calibrate_table([MeasuredStep("profiled", plan, 1.0)], fit=("launch",))


def test_several_rows_tell_what_every_step_costs():
    steps = table_of({"t4": 0.3, "v100": 0.3, "factor": 1.0}, TransferCost(step=0.7))
    found = calibrate_table(steps, fit=("efficiency", "step"))
    assert found.transfer is not None
    assert found.transfer.step == pytest.approx(0.7, rel=0.05)
    assert [k.efficiency for k in found.kinds] == pytest.approx([0.3, 0.3], rel=0.05)
    fitted = apply_calibration(found, steps[0].plan.problem.cluster)
    plan = steps[0].plan.replace(problem=steps[0].plan.problem.replace(cluster=fitted))
    assert estimate_plan(plan).step_s == pytest.approx(found.checks[0].after_s, rel=1e-6)
    assert summarise_plan(plan).step_s == pytest.approx(found.checks[0].after_s, rel=0.1)
    assert "step" not in cluster_to_data(steps[0].plan.problem.cluster).get("transfer", {}), "as files were"


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (("speed",), "unknown 'speed'; choose of efficiency"),
        ((), "nothing to fit"),
        (("efficiency", "message"), "1 rows cannot tell 2 parameters"),
    ],
)
def test_wrong_wishes_are_refused(fit, words):
    with pytest.raises(InvalidInput, match=words):
        calibrate_table(table_of(ASSUMED)[:1], fit=fit)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(seconds):
    step = replace(table_of(ASSUMED)[0], seconds=seconds)
    with pytest.raises(InvalidInput, match="seconds must be above 0"):
        calibrate_table([step])


def moved(plan, name, **change):
    """The plan on a cluster of another name."""
    cluster = plan.problem.cluster.replace(name=name, **change)
    return plan.replace(problem=plan.problem.replace(cluster=cluster))


def test_rows_of_several_clusters_share_what_is_fitted():
    steps = table_of({"t4": 0.225, "v100": 0.225, "factor": 1.0})
    steps = [replace(s, plan=moved(s.plan, "other")) if i % 2 else s for i, s in enumerate(steps)]
    found = calibrate_table(steps)
    assert [k.efficiency for k in found.kinds] == pytest.approx([0.225, 0.225], rel=0.02)
    assert found.mean_error("after") < 0.01
    assert "on 2 clusters (mixed, other)" in found.description
    assert calibrate_table(steps, fit=("latency",)).links, "a link between the same names is one link"


def test_clusters_that_state_otherwise_what_is_fitted_are_refused():
    first, *_ = table_of(ASSUMED)
    other = replace(first, label="other", plan=plan_on(mixed_cluster(**TRUE)))
    with pytest.raises(InvalidInput, match="table: other: cluster mixed is another than in"):
        calibrate_table([first, other])
    other = replace(other, plan=moved(other.plan, "second"))
    with pytest.raises(InvalidInput, match=r"the efficiency of T4 is another than in .*; state it alike"):
        calibrate_table([first, other])
    with pytest.raises(InvalidInput, match="the link between"):
        calibrate_table([first, other], fit=("bandwidth",))
    changed = moved(first.plan, "third", transfer=TransferCost(message=0.01))
    with pytest.raises(InvalidInput, match="its transfer cost"):
        calibrate_table([first, replace(other, plan=changed)], fit=("message",))
    with pytest.raises(InvalidInput, match="no rows"):
        calibrate_table([])


def test_a_fit_leaves_its_plateau():
    """Where all of its sends overlap, the second stage sets the pace, whatever the share."""
    workload = preset("gpt2", global_batch=32, micro_batch=2)
    plans = []
    for overlap in (1.0, 0.0):
        cluster = small_cluster(2, latency="1 ms").replace(transfer=TransferCost(message=0.0, overlap=overlap))
        links = tuple(x.replace(bandwidth=1.9e6 if x.from_site == "site-0" else 1e9) for x in cluster.site_links)
        cluster = cluster.replace(site_links=links)
        plans.append(chain_plan([16], [workload.boundaries[6]], cluster=cluster, workload=workload))
    assumed_s, true_s = (estimate_plan(plan).step_s for plan in plans)
    found = calibrate_table([MeasuredStep("step", plans[0], true_s)], fit=("overlap",))
    assert found.transfer is not None
    assert found.transfer.overlap == pytest.approx(0.0, abs=0.01)
    assert found.mean_error("after") < 0.001 < 1.0 - assumed_s / true_s


def test_rows_that_disagree_are_met_in_the_middle():
    step = table_of(ASSUMED)[-1]
    found = calibrate_table([step, replace(step, seconds=1.5 * step.seconds)])
    ratios = [check.after_s / check.measured_s for check in found.checks]
    assert ratios == pytest.approx([1.5**0.5, 1.5**-0.5], rel=0.02)


def test_tables_are_read_from_csv_and_json(tmp_path):
    (tmp_path / "steps.csv").write_text("plan,seconds,note\na.json,1.5,x\nb,2\n")
    (tmp_path / "steps.json").write_text('[{"plan": "a.json", "seconds": 1.5}, {"plan": "b", "seconds": 2}]')
    plan = plan_on(mixed_cluster(**ASSUMED))
    for name in ("steps.csv", "steps.json"):
        steps = match_plans(read_table(tmp_path / name), {"a.json": plan, "b.json": plan})
        assert [(s.label, s.seconds) for s in steps] == [("a.json", 1.5), ("b", 2.0)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "plan,time\na,1\n", "columns plan and seconds, has plan, time"),
        ("t.csv", "", "columns plan and seconds, has none"),
        ("t.csv", "plan,seconds\n", "holds no rows"),
        ("t.csv", "plan,seconds\na,-3\n", r"line 2: seconds"),
        ("t.csv", "plan,seconds\na,1\nb,nan\n", r"line 3: seconds"),
        ("t.csv", "plan,seconds\na,soon\n", r"line 2: seconds"),
        ("t.csv", "plan,seconds\na\n", r"line 2: seconds"),
        ("t.csv", '"pl\nan",seconds\na,1\n', "columns plan and seconds"),
        ("t.json", "{}", "must be a list"),
        ("t.json", '[{"plan": "a", "seconds": 0}]', r"t.json\[0\]: seconds"),
        ("t.json", '[{"plan": "a", "seconds": NaN}]', "not a number"),
    ],
)
def test_wrong_tables_are_refused_in_one_line(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=words) as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_row_whose_plan_is_not_given_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("plan,seconds\nc.json,1\n")
    with pytest.raises(InvalidInput, match=r"plan 'c.json' is not among those given \(a.json\)"):
        match_plans(read_table(tmp_path / "t.csv"), {"a.json": plan_on(mixed_cluster(**ASSUMED))})
