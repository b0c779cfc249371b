"""Columns of calibrations and profiles: exact values, and plots that draw."""

import holoviews as hv
import pytest

from hetplanner.calibration.dtfm_rows import PredictedRow, PublishedFit
from hetplanner.calibration.model import Calibration, Check
from hetplanner.plots import calibration, collectives, profile, published
from hetplanner.plots.data.runs.calibrations import check_columns, published_columns, seconds_range
from hetplanner.plots.data.runs.profiles import MOST_GROUPS, collective_curves, layer_columns
from hetplanner.plots.live import CollectiveCurves
from hetplanner.workload.presets import preset
from tests.support.plans.profiles import made_collectives, made_profile

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


WORKLOAD = preset("tiny-gpt")
PAIRS_AND_FOURS = made_profile(WORKLOAD, collectives=made_collectives(degrees=(4, 2)))


def test_a_collective_of_a_group_is_a_curve_over_ascending_bytes() -> None:
    curves, groups = collective_curves(PAIRS_AND_FOURS)
    assert groups == 2
    assert [(curve["collective"], curve["group"]) for curve in curves] == [
        (name, group)
        for group in ("2 × CPU generic", "4 × CPU generic")
        for name in ("all-gather", "reduce-scatter", "all-reduce")
    ]
    assert all(curve["sizes"] == [1e3, 1e6] for curve in curves)
    assert curves[0]["seconds"] == pytest.approx([2e-5, 2e-3])
    assert curves[-1]["seconds"] == pytest.approx([4e-5, 4e-3])
    assert collective_curves(made_profile(WORKLOAD)) == ([], 0)


def test_curves_of_one_collective_have_one_colour_and_of_one_group_one_dash() -> None:
    live = CollectiveCurves()
    live.update(PAIRS_AND_FOURS)
    colours, dashes = live.source.data["colour"], live.source.data["dash"]
    assert colours[:3] == colours[3:]
    assert len(set(colours)) == 3
    assert [len(set(part)) for part in (dashes[:3], dashes[3:], dashes)] == [1, 1, 2]
    assert live.keys.data["group"] == ["2 × CPU generic", "4 × CPU generic"]
    assert live.points.data["size"][:2] == ["1 kB", "1 MB"]
    assert live.points.data["time"][:2] == ["20 µs", "2 ms"]
    x, y = live.figure.x_range, live.figure.y_range
    assert (x.start < 1e3, x.end > 1e6, y.start < 2e-5, y.end > 4e-3) == (True,) * 4
    assert live.figure.xaxis[0].major_label_overrides[1e5] == "100 kB"


def test_the_legend_names_only_what_was_measured() -> None:
    live = CollectiveCurves()
    gathers = tuple(row for row in made_collectives() if row.collective == "all-gather")
    live.update(made_profile(WORKLOAD, collectives=gathers[:1]))
    assert [item.visible for item in live._items.values()] == [True, False, False]
    assert live.source.data["xs"] == [[1e6]]
    live.update(PAIRS_AND_FOURS)
    assert all(item.visible for item in live._items.values())


def test_an_axis_says_how_many_groups_are_left_out() -> None:
    live = CollectiveCurves()
    live.update(made_profile(WORKLOAD, collectives=made_collectives(degrees=range(2, MOST_GROUPS + 4))))
    assert len(live.keys.data["group"]) == MOST_GROUPS
    assert live.figure.xaxis[0].axis_label.endswith(f"({MOST_GROUPS} of {MOST_GROUPS + 2} groups)")
    live.update(PAIRS_AND_FOURS)
    assert live.figure.xaxis[0].axis_label == "bytes of the whole tensor"


def test_collectives_are_drawn_in_a_notebook_and_a_profile_without_them_says_how_to_measure_them() -> None:
    remedy = "hetplanner profile --tensor"
    assert remedy not in collectives(PAIRS_AND_FOURS)._repr_mimebundle_()["text/html"]
    assert remedy in collectives(made_profile(WORKLOAD))._repr_mimebundle_()["text/html"]
