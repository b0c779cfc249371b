"""Columns of compared planners: exact values from a made-up comparison."""

import math
from dataclasses import replace

import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.planners.comparison import Comparison, ComparisonRow
from hetplanner.planners.interface import SearchResult
from hetplanner.plots import comparison, convergences
from hetplanner.plots.data.search.comparisons import planner_columns, search_columns, value_axis
from tests.support.plans.factories import chain_plan

PLAN = chain_plan([6, 5, 5], [3, 5, 7])
PLAN = PLAN.replace(estimate=estimate_plan(PLAN))


def row(planner, seed, value=None, error=None):
    result = None if value is None else SearchResult(PLAN, value, 6.0, 10, 0.5, seed)
    return ComparisonRow(planner, seed, result, error)


FOUND = Comparison(
    problem=PLAN.problem,
    planners=("slow", "good", "none"),
    seeds=(0, 1, 2),
    budget="1 s",
    baseline="slow",
    rows=(
        row("slow", 0, 16.0),
        row("good", 0, 8.0),
        row("none", 0, error="plan: too large"),
        row("slow", 1, 20.0),
        row("good", 1, 8.0),
        row("none", 1, error="plan: too large"),
        row("slow", 2, 24.0),
        row("good", 2, 9.0),
        row("none", 2, error="plan: too large"),
    ),
)


def test_the_best_planner_is_on_top_and_one_without_a_plan_below():
    columns = planner_columns(FOUND)
    assert columns["planner"] == ["good", "slow", "none"]
    assert columns["y"] == [0, -1, -2]
    assert columns["median"][:2] == [8.0, 20.0]
    assert (columns["best"][1], columns["worst"][1]) == (16.0, 24.0)
    assert math.isnan(columns["median"][2])
    assert columns["text"] == ["8 (slow: 2.5 ×)", "20", "no plan: plan: too large"]


def test_every_seed_is_a_point_and_equal_ones_can_be_told_apart():
    columns = search_columns(FOUND)
    assert columns["planner"] == ["good"] * 3 + ["slow"] * 3
    assert columns["value"] == [8.0, 8.0, 9.0, 16.0, 20.0, 24.0]
    assert columns["seed"] == [0, 1, 2] * 2
    assert len(set(columns["y"])) == 6
    assert all(round(y) == want for y, want in zip(columns["y"], [0] * 3 + [-1] * 3, strict=True))
    assert columns["gap"][0] == pytest.approx(0.25)


def test_a_failed_seed_among_others_is_said():
    found = replace(FOUND, rows=(row("slow", 0, 16.0), row("slow", 1, error="plan: no")))
    assert planner_columns(found)["text"][0] == "16, 1 without a plan"


def test_the_axis_shows_all_values_and_a_bound_that_is_near():
    low, high, log = value_axis([8.0, 9.0, 24.0], 6.0)
    assert low < 6.0
    assert high > 24.0
    assert not log
    assert value_axis([8.0, 9.0], 1.0)[0] > 1.0
    assert value_axis([8.0, 900.0], 7.0)[2]
    assert value_axis([], None) == (0.0, 1.0, False)
    low, high, _ = value_axis([5.0], 5.0)
    assert low < 5.0 < high


def test_the_drawing_has_a_line_at_the_bound_and_a_tick_for_every_planner():
    drawn = comparison(FOUND)
    assert "lower bound 6" in {layer.label for layer in drawn}
    assert "lower bound" not in {layer.label for layer in comparison(replace(FOUND, rows=()))}
    far = replace(FOUND, rows=(row("slow", 0, 100.0), row("good", 0, 90.0)))
    assert not any("lower bound" in layer.label for layer in comparison(far))


def test_convergences_of_a_planner_without_a_plan_are_refused():
    assert len(list(convergences(FOUND, "good"))) == 4  # three seeds and the bound
    with pytest.raises(InvalidInput, match="none"):
        convergences(FOUND, "none")
