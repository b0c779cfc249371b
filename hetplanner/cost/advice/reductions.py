"""What would shorten a step that gradient reductions hold back, and is not allowed yet."""

from __future__ import annotations

from dataclasses import replace

from hetplanner.cost.closed_form import time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, step_arrays
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.units import short_seconds

# Reductions that take less of the step are not worth advice, nor is advice that saves less.
BINDING = 0.2
WORTH_SAYING = 0.1
LOCAL_STEPS = 8


def advise_reductions(plan: Plan, model: CostModel | None = None) -> str | None:
    """Another reducer (such as `hierarchical`, which adds up inside sites first) or local steps, with the step they
    would give; None where reductions take little of the step, or neither would help.

    Args:
        plan: a plan with an estimate.
        model: cost model of its problem, if already at hand.
    """
    if plan.estimate is None:
        return None
    step_s = plan.estimate.step_s
    share = plan.estimate.terms["data_parallel"] / step_s
    if share < BINDING:
        return None
    model = model or CostModel.of(plan.problem)
    options = [*_reducers(plan, model), *_local_steps(plan, model)]
    worth = [f"{text} {short_seconds(seconds)}" for seconds, text in options if seconds < step_s * (1 - WORTH_SAYING)]
    if not worth:
        return None
    return f"gradient reductions take {share:.0%} of the step: {'; '.join(worth)} in place of {short_seconds(step_s)}"


def _reducers(plan: Plan, model: CostModel) -> list[tuple[float, str]]:
    """The best of the reducers that the constraints exclude."""
    others = [name for name in REDUCER_NAMES if name not in plan.problem.constraints.reducers]
    found = [(_step_s(plan.replace(reducer=name), model), f"reducer {name} would take") for name in others]
    return [min(found)] if found else []


def _local_steps(plan: Plan, model: CostModel) -> list[tuple[float, str]]:
    if plan.problem.constraints.max_local_steps > 1 or all(group.tied for group in reduction_groups(plan)):
        return []
    arrays = step_arrays(plan, durations_of(plan, model.tables), model)
    seconds = time_step(replace(arrays, local_steps=LOCAL_STEPS)).step_s
    return [(seconds, f"{LOCAL_STEPS} local steps (--max-local-steps; quality not modelled)")]


def _step_s(plan: Plan, model: CostModel) -> float:
    return time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s
