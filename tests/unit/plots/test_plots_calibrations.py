"""Columns of calibration plots: exact values, and plots that draw."""

import holoviews as hv
import pytest

from hetplanner.calibration.dtfm_rows import PredictedRow, PublishedFit
from hetplanner.calibration.model import Calibration, Check
from hetplanner.plots import calibration, profile, published
from hetplanner.plots.data.runs.calibrations import check_columns, published_columns, seconds_range
from hetplanner.plots.data.runs.profiles import layer_columns
from hetplanner.workload.presets import preset
from tests.support.plans.profiles import made_profile

FOUND = Calibration(
    cluster="lab",
    source="trace",
    checks=(
        Check(label="step", measured_s=2.0, before_s=1.0, after_s=2.1),
        Check(label="idle", measured_s=0.0, before_s=0.5, after_s=0.1),
        Check(label="compute", measured_s=1.0, before_s=0.5, after_s=1.0),
    ),
)
PUBLISHED = PublishedFit(
    0.4,
    0.8,
    (
        PredictedRow("case 1, dtfm, a", "efficiency", 10.0, 10.0),
        PredictedRow("case 1, dtfm-random, a", "predicted", 20.0, 18.0),
        PredictedRow("case 1, megatron, a", "check", 20.5, 17.0),
    ),
    (),
)


def test_checks_without_time_are_left_out():
    columns = check_columns(FOUND)
    assert columns["label"] == ["step", "compute"]
    assert columns["error_before"] == [-0.5, -0.5]
    assert columns["error_after"] == pytest.approx([0.05, 0.0])


def test_published_rows_are_told_apart_by_use():
    columns = published_columns(PUBLISHED)
    assert columns["use"] == ["fitted", "predicted", "check"]
    assert columns["error"] == pytest.approx([0.0, -0.1, 17.0 / 20.5 - 1])
    assert PUBLISHED.mean_error == pytest.approx(0.1)


def test_placements_that_measure_alike_are_not_ordered():
    assert PUBLISHED.wrong_orders() == []
    rows = (*PUBLISHED.rows[:2], PredictedRow("case 1, megatron, a", "check", 30.0, 17.0))
    swapped = PublishedFit(0.4, 0.8, rows, ())
    assert swapped.wrong_orders() == [("case 1, dtfm-random, a", "case 1, megatron, a")]


def test_axes_hold_all_that_is_above_zero():
    low, high = seconds_range([1.0, 0.0], [100.0])
    assert low < 1.0
    assert high > 100.0
    assert seconds_range([0.0]) == (0.1, 1.0)


@pytest.mark.parametrize("plot", [lambda: calibration(FOUND), lambda: published(PUBLISHED)])
def test_plots_draw(plot):
    overlay = plot()
    assert isinstance(overlay, hv.Overlay)
    assert hv.render(overlay).renderers


def test_a_profile_is_drawn_with_equal_layers_added_up() -> None:
    found = made_profile(preset("tiny-gpt"), seconds={4: 0.04, 1: 0.01})
    columns = layer_columns(found)
    blocks = [i for i, name in enumerate(columns["series"]) if name == "block × 6 forward, CPU generic"]
    assert [(columns["micro_batch"][i], columns["seconds"][i]) for i in blocks] == [(1, 0.06), (4, 0.24)]
    drawn = profile(found)
    hv.render(drawn)
    assert len(drawn) == 2 * 6, "a line and its points for each layer and way"
