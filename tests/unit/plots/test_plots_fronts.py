"""Columns of a front, and the plot of one."""

import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.planners.step_time.pareto import ParetoFront
from hetplanner.plots import pareto
from hetplanner.plots.data.search.fronts import (
    COLUMNS,
    front_axis,
    front_columns,
    log_ends,
    log_ticks,
    named_points,
    point_columns,
)
from tests.support.plans.factories import chain_plan

PLAN = chain_plan([6, 5, 5], [3, 5, 7])
ESTIMATE = estimate_plan(PLAN)


def plan(step_s, usd, egress=0.25):
    prices = {"usd_per_mtoken": usd, "tokens_per_usd": 1e6 / usd, "device_usd": 1 - egress, "egress_usd": egress}
    return PLAN.replace(estimate=ESTIMATE.replace(step_s=step_s, **prices))


FRONT = ParetoFront(PLAN.problem, (plan(1.0, 4.0), plan(2.0, 3.0, 0.0), plan(5.0, 2.0)), 0.9, 0.1, 100, 1.0, 0)


def test_every_plan_is_a_point_with_its_facts():
    columns = front_columns(FRONT.to_rows())
    assert columns["step_s"] == [1.0, 2.0, 5.0]
    assert columns["usd_per_mtoken"] == [4.0, 3.0, 2.0]
    assert columns["egress"] == [0.25, 0.0, 0.25]
    assert columns["devices"] == [12] * 3
    assert columns["text"] == ["12 devices"] * 3


def test_a_logarithmic_axis_has_equal_room_at_both_ends():
    low, high = log_ends([1.0, 100.0, 0.0])
    assert low < 1.0
    assert high > 100.0
    assert 1.0 / low == pytest.approx(high / 100.0)
    one = log_ends([5.0])
    assert one[0] < 5.0 < one[1]
    assert log_ends([]) == (1.0, 10.0)


def test_axes_have_room_and_turn_logarithmic_for_wide_spans():
    low, high, log = front_axis([1.0, 2.0])
    assert (low < 1.0, high > 2.0, log) == (True, True, False)
    low, high, log = front_axis([1.0, 100.0], words=0.2)
    assert log
    assert (low < 1.0, high) == (True, pytest.approx(100 * 100**0.2))


def test_labels_of_neighbours_do_not_cover_each_other():
    assert named_points([0.0, 0.01, 0.5, 1.0], [1.0, 0.99, 0.5, 0.0]) == [0, 2, 3]
    assert named_points([1.0, 1.0], [2.0, 2.0]) == [0, 1]
    assert named_points([], []) == []


def test_the_plot_shows_the_bound_that_lies_in_its_frame():
    import holoviews as hv

    found = pareto(FRONT)
    assert [layer.label for layer in found].count("lower bound") == 1
    points = next(layer for layer in found if isinstance(layer, hv.Points))
    assert points.dimension_values("step_s").tolist() == [1.0, 2.0, 5.0]
    hv.render(found, backend="bokeh")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (10.8, 11.9, [11.0, 11.5]),
        (9.0, 120.0, [10.0, 20.0, 30.0, 50.0, 100.0]),
        (0.001, 1000.0, [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]),
        (0.0, 1.0, []),
        (2.0, 2.0, []),
    ],
)
def test_a_logarithmic_axis_has_round_ticks_however_long_it_is(low, high, ticks):
    assert log_ticks(low, high) == ticks


def test_points_on_the_way_have_what_the_live_figure_reads():
    columns = point_columns([(1.0, 2.0)])
    told = {"left_out": ["known at the end of the search"], "text": ["still searching"]}
    told |= {"step": ["1 s"], "price": ["$2 per million tokens"]}
    assert columns == {"step_s": [1.0], "usd_per_mtoken": [2.0]} | told
    assert set(COLUMNS) <= set(front_columns(FRONT.to_rows()))
