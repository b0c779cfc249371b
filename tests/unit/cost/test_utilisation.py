"""How busy a run's ranks are, measured and predicted, and as a plot."""

import json

import numpy as np
import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.durations import Durations
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.plots import utilisation
from hetplanner.plots.data.swarms.swarms import utilisation_columns
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reports.utilisation import Utilisation, utilisation_of_run
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import chain_plan, image_workload, small_cluster, tiny_workload
from tests.support.runs.fake_ranks import step_record, write

STEPS = 5


def durations(factor=1.0):
    """Of two ranks: 30 ms of computing for a micro-batch, and next to nothing else."""
    none = np.zeros(2)
    return Durations(
        forward_s_C=np.full(2, 0.010 * factor),
        backward_s_C=np.full(2, 0.020 * factor),
        optimizer_s_N=none,
        encode_s_N=none,
        decode_s_N=none,
        reduce_s_N=none,
        message_s=0.0,
    )


def write_run(folder, workload, measured, *, with_prediction=True):
    """What two ranks leave behind; each message takes 40 ms on its link, each way."""
    tensor_s = 0.040
    bits = 8 * 4 * 2 * 32 * 32
    cluster = small_cluster(2, bandwidth=f"{bits / tensor_s / 1e6} Mbit/s", latency="0 s")
    cut = 3 if workload.transformer else 1
    plan = chain_plan((20,), (cut,), workload=workload, cluster=cluster, in_flight=(8, 1))
    save_plan(plan, folder / "plan.json")
    save_config(TrainConfig(steps=STEPS), folder / "run.json")
    if with_prediction:
        summary = summarise_trace(simulate(plan, durations(), steps=4))
        fields = {"format": "hetplanner/prediction@1", "step_s": summary.step_s, "terms": summary.terms}
        (folder / "prediction.json").write_text(json.dumps(fields))
    trace = simulate(plan, measured, steps=STEPS)
    for step in range(STEPS):
        spans = [s for s in trace.spans if s.step == step]
        for span in spans:
            write(folder, span.rank, {"type": "span"} | span.to_dict())
        end_s = max(s.end_s for s in spans if s.kind == "step")
        for rank in range(2):
            write(folder, rank, step_record(rank, step, 2, end_s))
    return RunReader(folder)


def untied():
    workload = tiny_workload(global_batch=40)
    return workload.replace(transformer=workload.transformer.replace(tie_embeddings=False))


def test_a_step_that_waits_for_its_link_computes_three_quarters_of_it(tmp_path):
    found = utilisation_of_run(write_run(tmp_path, untied(), durations()))
    # 20 micro-batches of 30 ms, the link needs 40 ms for each; the first and the last wait for one message more.
    assert found.hidden == 32
    assert found.measured == pytest.approx(0.030 / 0.040, rel=0.12)
    assert found.predicted == pytest.approx(found.measured, rel=1e-3)
    assert found.least == pytest.approx(found.most, rel=1e-3)


def test_slower_ranks_than_predicted_are_busier(tmp_path):
    found = utilisation_of_run(write_run(tmp_path, untied(), durations(1.2)))
    assert found.measured == pytest.approx(1.2 * found.predicted, rel=0.05)
    assert found.error == pytest.approx(1 / 1.2 - 1, abs=0.04)


def test_what_cannot_be_told_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="must have a prediction and two measured steps"):
        utilisation_of_run(write_run(tmp_path, untied(), durations(), with_prediction=False))
    (tmp_path / "captured").mkdir()
    with pytest.raises(InvalidInput, match="captured model, of which no hidden size is known"):
        utilisation_of_run(write_run(tmp_path / "captured", image_workload(global_batch=80), durations()))


def test_the_plot_has_a_line_and_points_by_width():
    import holoviews as hv

    points = [Utilisation(512, 0.36, 0.35, 0.34, 0.4), Utilisation(128, 0.13, 0.14, 0.13, 0.15)]
    columns = utilisation_columns(points)
    assert columns["hidden"] == [128, 512]
    assert columns["error"][0] == pytest.approx(0.13 / 0.14 - 1)
    overlay = utilisation(points)
    assert next(layer.label for layer in overlay) == "predicted"
    hv.render(overlay)
    with pytest.raises(InvalidInput, match="at least one"):
        utilisation([])
