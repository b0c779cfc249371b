"""A search improvement by improvement: as a figure of a cell, and in the report of its plan."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bokeh.layouts import column, row
from bokeh.models import Column
from bokeh.plotting import figure

from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.planners.interface import OBJECTIVE_UNITS, SearchResult
from hetplanner.plots.data.curves import left_out_of, value_text
from hetplanner.plots.live import AllocationGrid, Ancestry, ConvergenceCurve, CostBars, DeviceMap
from hetplanner.plots.live.search.replay import Replay
from hetplanner.plots.notebook.plans.searches import objective_value
from hetplanner.plots.notebook.steps.bars import estimate_of
from hetplanner.plots.notebook.stills import FIGURE_PX, shown_layout, still
from hetplanner.plots.plan_report_page import plan_report_page
from hetplanner.schema import check_writable, write_text

HEIGHT = 300
GRID_PX = 340
"""Least width of the grid's frame: no server cuts its words again."""


def search_replay(result: SearchResult, baselines: Mapping[str, Plan] | None = None) -> Column:
    """The search as on the Plan page: a slider that shows each improvement in curve, map, grid and cost bars.

    Args:
        result: of `hetplanner.search`.
        baselines: plans to hold it against, by name.

    Raises:
        InvalidInput: the result has no moments, or a baseline no estimate.
    """
    if not result.moments:
        raise InvalidInput("search_replay: this result holds no moments; search with hetplanner.search(problem)")
    plan, problem = result.plan, result.plan.problem
    curve, world = ConvergenceCurve(height=HEIGHT), DeviceMap(height=HEIGHT)
    grid, bars = AllocationGrid(height=HEIGHT, frame_px=GRID_PX), CostBars(height=HEIGHT)
    replay = Replay(curve, world, grid, bars)
    values = {name: objective_value(one) for name, one in (baselines or {}).items()}
    levels = {name: value for name, value in values.items() if value is not None}
    unit, left_out = OBJECTIVE_UNITS[problem.objective], left_out_of(problem.objective, problem.cluster)
    curve.update(result.events, levels, result.lower_bound, unit=unit, left_out=left_out)
    world.update(problem.cluster, plan)
    grid.update(plan)
    bars.update({"planned": estimate_of(plan, "plan")} | estimates_of(baselines))
    replay.update(result.moments, problem.cluster, partial(value_text, objective=problem.objective))
    lives = [curve, world, grid, bars]
    for live in lives:
        live.figure.styles = {"flex": f"1 1 max({FIGURE_PX}px, 34%)", "min-width": "0"}
    figures = row(*(live.figure for live in lives), sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})
    return shown_layout(column(replay.controls, figures, sizing_mode="stretch_width"), lives, "SearchReplay()")


def ancestry(result: SearchResult) -> figure:
    """The parents of the best placement, and theirs, back to the first layouts: value over placements tried.

    Args:
        result: of `hetplanner.search` with the planner `evolution` on one island.

    Raises:
        InvalidInput: the result tells of no parents.
    """
    if not result.ancestry:
        raise InvalidInput("ancestry: this search tells of no parents; use planner evolution with one island")
    return still(Ancestry(), result.ancestry, result.plan.problem.objective)


def write_plan_report(
    found: SearchResult | Plan, path: Path | str, baselines: Mapping[str, Plan] | None = None
) -> Path:
    """Writes a plan's report as one HTML file that needs no server: with the film of its search, if there was one.

    Args:
        found: of `hetplanner.search`, or a plan.
        path: of the file.
        baselines: plans to hold it against, by name.

    Raises:
        InvalidInput: the file cannot be written, or a baseline has no estimate.
    """
    target = Path(path)
    check_writable(target)
    estimates = estimates_of(baselines)
    if isinstance(found, Plan):
        text = plan_report_page(found, baselines=estimates)
    else:
        text = plan_report_page(found.plan, found.moments, found.tried, estimates)
    write_text(target, text)
    return target


def estimates_of(baselines: Mapping[str, Plan] | None) -> dict[str, Estimate]:
    """By label. Raises InvalidInput for a plan without one."""
    return {name: estimate_of(plan, name) for name, plan in (baselines or {}).items()}
