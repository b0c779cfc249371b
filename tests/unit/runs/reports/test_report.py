"""Reports of runs: terms of traces, the sentence; runs that were interrupted, failed or written by older versions."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.errors import InvalidInput
from hetplanner.plan.durations import Durations
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.files.trace_files import load_trace
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.plots.data.runs.reports import report_columns
from hetplanner.runs.reports.comparison import simulated_steps
from hetplanner.runs.reports.reordering import reorder_run
from hetplanner.runs.reports.report import report_run
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.simulator.simulation import simulate, summarise_plan, summarise_trace
from hetplanner.simulator.terms import link_uses, mean_terms, steps_with_beginning, terms_of_ranks
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.runs.fake_ranks import step_record, write

STEPS = 6


def durations(plan, factor=1.0, cores=None):
    n = len(plan.ranks)
    return Durations(
        forward_s_C=np.full(n, 0.010 * factor),
        backward_s_C=np.full(n, 0.020 * factor),
        optimizer_s_N=np.full(n, 0.003),
        encode_s_N=np.full(n, 1e-4),
        decode_s_N=np.full(n, 1e-4),
        reduce_s_N=np.full(n, 0.002),
        message_s=1e-4,
        cores_N=cores,
    )


def untied(global_batch):
    config = tiny_workload().transformer.replace(tie_embeddings=False)
    return tiny_workload(global_batch=global_batch).replace(transformer=config)


@pytest.fixture
def plan():
    """Two ranks that reduce nothing: fitted in a moment."""
    cluster = small_cluster(2, bandwidth="20 Mbit/s", latency="20 ms")
    return chain_plan(shares=(3,), cuts=(4,), cluster=cluster, workload=untied(6))


@pytest.fixture
def wide_plan():
    return chain_plan(shares=(3, 1), cuts=(4,), cluster=small_cluster(4, bandwidth="20 Mbit/s", latency="20 ms"))


def write_run(folder, plan, *, measured, predicted=None, state="finished", steps=STEPS, old=False):
    """A run directory as the runtime leaves it, its spans from a simulation."""
    save_plan(plan, folder / "plan.json")
    save_config(TrainConfig(steps=STEPS), folder / "run.json")
    write_status(folder / "status.json", RunStatus(run="r", state=state, created_unix_s=0.0, ranks=len(plan.ranks)))
    if predicted is not None:
        step_s = summarise_trace(simulate(plan, predicted, steps=4)).step_s
        fields = {"format": "hetplanner/prediction@1", "step_s": step_s}
        fields |= {} if old else {"durations": predicted.to_data()}
        (folder / "prediction.json").write_text(json.dumps(fields))
    for rank in range(len(plan.ranks)):
        if old and predicted is not None:
            row = {f"{n}_s": getattr(predicted, f"{n}_s_C")[rank] for n in ("forward", "backward")}
            row |= {f"{n}_s": getattr(predicted, f"{n}_s_N")[rank] for n in ("optimizer", "encode", "decode", "reduce")}
            write(folder, rank, {"type": "profile", "message_s": predicted.message_s, "cores": 1.0} | row)
        else:
            (folder / f"rank-{rank}.jsonl").touch()
    trace = simulate(plan, measured, steps=STEPS)
    for step in range(steps):
        for span in (s for s in trace.spans if s.step == step):
            write(folder, span.rank, {"type": "span"} | span.to_dict())
        end_s = max(s.end_s for s in trace.spans if s.step == step and s.kind == "step")
        for rank in range(len(plan.ranks)):
            write(folder, rank, step_record(rank, step, len(plan.ranks), end_s))
    return Run(folder)


def test_terms_add_up_to_the_step_and_agree_with_the_summary(wide_plan):
    plan = wide_plan
    trace = simulate(plan, durations(plan), steps=3)
    summary = summarise_trace(trace)
    rows = terms_of_ranks(trace, plan, 2)
    mean = mean_terms(rows)
    assert steps_with_beginning(trace) == [1, 2]
    for row in (*rows, mean):
        assert row.step_s == pytest.approx(summary.step_s)
    assert mean.compute == pytest.approx(summary.terms["compute"])
    assert mean.optimizer == pytest.approx(summary.terms["optimizer"])
    assert 0 < mean.pipeline_transfer < summary.terms["wait"]
    assert 0 < mean.data_parallel <= summary.terms["reduce"] + 1e-9
    assert mean.bubble >= summary.terms["idle"] - 1e-9


def test_waiting_for_a_message_is_bubble_until_it_is_made():
    cluster = small_cluster(2, bandwidth="1 Gbit/s", latency="50 ms")
    plan = chain_plan(shares=(1,), cuts=(4,), cluster=cluster, workload=untied(2))
    first, second = terms_of_ranks(simulate(plan, durations(plan), steps=2), plan, 1)
    # One micro-batch: forward here, 50 ms, forward and backward there, 50 ms, backward here; so for both ranks.
    assert second.pipeline_transfer == pytest.approx(0.050, abs=0.002)
    assert first.pipeline_transfer == pytest.approx(0.050, abs=0.002)
    assert first.bubble == pytest.approx(0.080, abs=0.004), "rank 1 waits for the activation, then computes"


def test_links_count_messages_and_their_way(wide_plan):
    plan = wide_plan
    uses = {(u.source, u.target, u.role): u for u in link_uses(simulate(plan, durations(plan), steps=2), 1)}
    assert set(uses) == {(0, 2, "activation"), (1, 3, "activation"), (2, 0, "gradient"), (3, 1, "gradient")}
    use = uses[0, 2, "activation"]
    assert (use.messages, use.bytes) == (3, 3 * plan.boundary_bytes(0, 0, 2, "activation"))
    assert use.transit_s > 0.02
    assert use.wait_s > 0.02


def test_a_report_names_what_differs_most(plan, tmp_path):
    run = write_run(tmp_path, plan, measured=durations(plan, 2.0), predicted=durations(plan))
    found = report_run(run, "slow")
    assert found.terms["measured"].compute == pytest.approx(2.0 * found.terms["predicted"].compute)
    assert found.difference.startswith("A step took ")
    assert "The largest difference is compute: " in found.difference
    assert "most of it on rank " in found.difference
    assert found.step_s["refitted"] == pytest.approx(found.step_s["measured"], rel=0.12)
    assert found.losses[-1][0] == STEPS - 1
    assert found.grad_norms[0] == (0, 1.0)
    assert [row.memory_bytes for row in found.ranks] == [1000] * 2
    assert {(link.source, link.target, link.role) for link in found.links} == {(0, 1, "activation"), (1, 0, "gradient")}
    assert all(link.late is None for link in found.links), "nothing was counted"
    json.dumps(found.to_data(), allow_nan=False)
    columns = report_columns(found)
    assert list(columns) == ["from the catalog", "predicted", "measured", "re-fitted"]
    assert columns["measured"]["term"] == ["compute", "transfer", "reduction", "waiting", "optimizer"]


def test_prediction_and_measurement_that_agree_are_said_to(plan, tmp_path):
    run = write_run(tmp_path, plan, measured=durations(plan), predicted=durations(plan))
    found = report_run(run)
    assert ", as predicted (" in found.difference
    for name, seconds in found.terms["predicted"].to_dict().items():
        assert found.terms["measured"].to_dict()[name] == pytest.approx(seconds, abs=1e-6)


def test_a_run_of_before_predictions_kept_durations_is_compared_by_its_profile(plan, tmp_path):
    with_cores = dataclasses.replace(durations(plan), cores_N=np.full(len(plan.ranks), 4.0 / len(plan.ranks)))
    run = write_run(tmp_path, plan, measured=durations(plan, 1.5), predicted=with_cores, old=True)
    found = report_run(run)
    expected = summarise_trace(simulate(plan, with_cores, steps=4)).step_s
    assert found.terms["predicted"].step_s == pytest.approx(expected)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_ended_early_is_reported_as_far_as_it_came(plan, tmp_path, steps):
    run = write_run(tmp_path, plan, measured=durations(plan), predicted=durations(plan), state="failed", steps=steps)
    found = report_run(run)
    assert found.steps == steps
    assert found.state == "failed"
    assert ("measured" in found.terms) == bool(steps)
    if not steps:
        assert found.difference == "There is nothing to compare: no whole step was measured."
        assert found.calibration is None


def test_damaged_predictions_are_left_out(plan, tmp_path):
    run = write_run(tmp_path, plan, measured=durations(plan), predicted=durations(plan))
    fields = json.loads((tmp_path / "prediction.json").read_text())
    for damage in ({"forward_s_C": [1.0]}, {"forward_s_C": ["x"] * 2}, {"forward_s_C": None}, {"cores_N": "many"}):
        (tmp_path / "prediction.json").write_text(json.dumps(fields | {"durations": fields["durations"] | damage}))
        assert "predicted" not in report_run(Run(tmp_path)).terms
    assert run.predicted_step_s() is not None


def test_the_command_writes_trace_cluster_and_json(plan, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder, plan, measured=durations(plan, 2.0), predicted=durations(plan))
    trace, cluster = tmp_path / "trace.json", tmp_path / "cluster.json"
    runner = CliRunner()
    done = runner.invoke(app, ["runs", "report", str(folder), "--trace", str(trace), "-o", str(cluster), "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["terms"]["measured"]["compute"] > data["terms"]["predicted"]["compute"]
    assert data["trace"] == str(trace)
    assert {e["ph"] for e in json.loads(trace.read_text())["traceEvents"]} == {"M", "X", "C"}
    assert len(load_trace(trace).spans) == len(Run(folder).trace(20).spans)
    assert {link.source for link in load_cluster(cluster).site_links} >= {"measured"}
    table = runner.invoke(app, ["runs", "report", str(folder)])
    assert table.exit_code == 0, table.output
    assert "reduction" in table.stdout
    assert "the re-fitted model predicts" in table.stdout


def test_nothing_is_fitted_to_a_run_without_steps(plan, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder, plan, measured=durations(plan), state="failed", steps=0)
    done = CliRunner().invoke(app, ["runs", "report", str(folder), "-o", str(tmp_path / "cluster.json")])
    assert isinstance(done.exception, InvalidInput | SystemExit)
    assert not (tmp_path / "cluster.json").exists()


def test_a_run_s_plan_is_ordered_anew_for_its_profile(tmp_path):
    workload = preset("tiny-gpt", global_batch=32, micro_batch=2)
    cluster = small_cluster(4, bandwidth="200 Mbit/s", latency="5 ms")
    plan = chain_plan([16], workload.boundaries[:3], cluster=cluster, workload=workload, in_flight=[8] * 4)
    slow = durations(plan)
    (tmp_path / "run").mkdir()
    run = write_run(tmp_path / "run", plan, measured=slow, predicted=slow)
    out = tmp_path / "reordered.json"
    done = CliRunner().invoke(app, ["runs", "reorder", str(run.path), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "simulated (-" in done.output
    found, steps = load_plan(out), simulated_steps(plan)
    assert found.replace(order_scale=None) == plan
    assert summarise_plan(found, slow, steps=steps).step_s < 0.97 * summarise_plan(plan, slow, steps=steps).step_s
    save_plan(found, run.path / "plan.json")
    again = CliRunner().invoke(app, ["runs", "reorder", str(run.path), "-o", str(tmp_path / "second.json")])
    assert "no other order of actions is faster" in again.output
    assert not (tmp_path / "second.json").exists()


def test_a_run_without_a_profile_is_not_ordered(plan, tmp_path):
    run = write_run(tmp_path, plan, measured=durations(plan))
    with pytest.raises(InvalidInput, match="its ranks have not measured themselves yet"):
        reorder_run(run)
